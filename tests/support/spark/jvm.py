"""How tests start the JVMs of Spark: with what lets one that lives for seconds take half of the CPU.

The quick compiler alone, the simplest collector, and an archive of the classes that a session loads, which saves as
much again (Java's class data sharing). The first session of the fixture `spark` writes the archive into the virtual
environment. Another Java, or another pyspark, writes its own; a JVM on another class path ignores it.
"""

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
WRITES_S = 180.0  # at the end of the JVM, on a busy machine


def archive() -> Path | None:
    """Where the archive is or will be: the JVM and pyspark are in its name. None without them."""
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    with suppress(OSError, PackageNotFoundError):
        of = f"{Path(java or 'java').resolve(strict=True).stat()} {version('pyspark')}"
        return Path(sys.prefix) / f"spark-{sha256(of.encode()).hexdigest()[:16]}.jsa"
    return None


def options() -> str:
    """The options of a JVM that uses the archive, if there is one. It says nothing of classes that are not as there."""
    path = archive()
    return f"{QUICK} -XX:SharedArchiveFile={path} -Xlog:disable" if path and path.exists() else QUICK


@contextmanager
def writing() -> Iterator[str]:
    """Yields the options of a JVM that ends within the context, and writes the archive if nobody has."""
    path = archive()
    if path is None or path.exists() or not os.access(path.parent, os.W_OK):
        yield options()
        return
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # another worker writes it
            yield options()
            return
        draft = path.with_suffix(".new")
        yield f"{QUICK} -XX:ArchiveClassesAtExit={draft} -Xlog:disable"
        with suppress(OSError):
            draft.rename(path)
