"""The command line: parse, build, run."""
