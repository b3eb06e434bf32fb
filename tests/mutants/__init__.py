"""Rules of the package, each with a patch that leaves it out and the tests that find it: `make mutants`."""
