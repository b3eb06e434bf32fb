"""The messages of etcd's gRPC interface, as the etcd3 package has generated them. No other module imports protobuf.

They are older than today's protobuf, which accepts them only in its pure Python implementation. The first import of
protobuf selects the implementation for the whole process: so it is selected here, before that, for this process only.
"""

import importlib
import os
import sys
import warnings
from typing import Any

from seaweedq.extras import install_command

CHOICE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
CHOOSER = "google.protobuf.internal.api_implementation"


def load() -> Any:
    """Imports the generated module. Raises ModuleNotFoundError without etcd3, ImportError if protobuf was imported
    before."""
    if CHOOSER in sys.modules and (chosen := sys.modules[CHOOSER].Type()) != "python":
        raise ImportError(
            f"protobuf was imported with its implementation {chosen!r} before coordination on etcd could choose "
            f"'python': set {CHOICE}=python in the environment of this process"
        )
    before = os.environ.get(CHOICE)
    os.environ[CHOICE] = "python"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module("etcd3.etcdrpc.rpc_pb2")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"coordination on etcd needs more packages: {install_command('etcd')}") from error
    finally:
        if before is None:
            del os.environ[CHOICE]
        else:
            os.environ[CHOICE] = before


rpc = load()
