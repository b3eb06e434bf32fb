"""The messages of etcd's gRPC interface, as the etcd3 package has generated them. Nothing else imports protobuf.

They are older than today's protobuf, which takes them in its pure Python implementation alone. That is chosen when
protobuf is first imported, for the whole process: so it is chosen here, before, and for this process only.
"""

import importlib
import os
import sys
import warnings
from typing import Any

CHOICE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
CHOOSER = "google.protobuf.internal.api_implementation"


def load() -> Any:
    """The generated module. Raises ModuleNotFoundError without etcd3, ImportError where protobuf was chosen before."""
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
        raise ModuleNotFoundError("coordination on etcd needs more packages: pip install 'seaweedq[etcd]'") from error
    finally:
        if before is None:
            del os.environ[CHOICE]
        else:
            os.environ[CHOICE] = before


rpc = load()
