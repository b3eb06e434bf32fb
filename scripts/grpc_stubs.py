#!/usr/bin/env python
"""Makes the module with the messages of the gRPC port from proto/seaweedq/v1/queue.proto.

`python scripts/grpc_stubs.py` writes it; `--check` writes nothing, and fails if it differs, as `make check` has it.
"""

import argparse
import sys
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory

from grpc_tools import protoc

ROOT = Path(__file__).parent.parent
SOURCE, TARGET = "seaweedq/v1/queue.proto", Path("seaweedq/api/grpc/queue_pb2.py")


def stubs() -> str:
    """Returns the generated module. Raises RuntimeError if the file is not valid."""
    with TemporaryDirectory() as folder:
        known = f"-I{files('grpc_tools') / '_proto'}"
        if protoc.main(["protoc", f"-I{ROOT / 'proto'}", known, f"--python_out={folder}", SOURCE]):
            raise RuntimeError(f"protoc refuses {SOURCE}")
        return (Path(folder) / SOURCE).with_name(TARGET.name).read_text()


def main() -> int:
    """Writes or checks the module; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the module is out of date")
    is_check, path, made = parser.parse_args().check, ROOT / TARGET, stubs()
    if not is_check:
        path.write_text(made)
    elif not path.exists() or path.read_text() != made:
        print(f"{TARGET} is out of date: run python scripts/grpc_stubs.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
