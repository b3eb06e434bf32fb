"""Every module can be imported: a package that is named like an old module makes a forgotten import an error at run
time alone."""

import pkgutil
import subprocess
import sys

import pytest

import seaweedq

MODULES = [found.name for found in pkgutil.walk_packages(seaweedq.__path__, "seaweedq.")]


def test_there_are_modules_in_each_room() -> None:
    rooms = {name.split(".")[1] for name in MODULES}
    assert {"segments", "storage", "coordination", "journal", "rows", "balancer", "broker", "api", "client"} <= rooms
    assert len(MODULES) > 250


@pytest.mark.process
def test_every_module_is_imported_in_one_process() -> None:
    names = [name for name in MODULES if name != "seaweedq.__main__"]
    program = "import sys, importlib\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
