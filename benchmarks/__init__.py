"""How fast it is, and how fast it could be: each figure beside a limit that is measured in the same run.

`python -m benchmarks [NAME ...] [--json]`. A benchmark starts its own broker process on a folder of a real disk and
loads it from this one process, with a client that does no more than it has to (`benchmarks.http`), so that the client
does not hide the broker.
"""
