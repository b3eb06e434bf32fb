"""The Spark session of a job: what it needs on this machine, how it begins and ends, and why it failed, in one line.

A job that spark-submit has started gets its master and its configuration from there. Any other one starts a JVM of its
own, whose stderr is a file: the JVM prints warnings before a setting can stop it, and its traces would hide the
progress and the error.
"""

import logging
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seaweedq.extras import install_command

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17
_SUBMITTED = "PYSPARK_GATEWAY_PORT"  # of the JVM that has started this process
_OWN = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
_TRACE = re.compile(r"^Traceback \(most recent call last\):\n(?:[ \t].*\n)*(\S.*)", re.MULTILINE)
_CLASS = re.compile(r"^(?:[\w$]+\.)*[A-Z][\w$]*: ")
_CONDITION = re.compile(r"^\[[A-Z0-9_.]+\] | SQLSTATE: \w+.*$")
# These print each error of a query as JSON to stderr, with its traces, beside raising it.
_LOUD = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def missing_for_spark() -> str:
    """Returns what Spark lacks here; empty if it can run."""
    java = LEAST_JAVA if _SUBMITTED in os.environ else _java_version()
    if java < LEAST_JAVA:
        found = f"this is Java {java}" if java else "no Java was found"
        return (
            f"Spark needs Java {LEAST_JAVA} or newer, but {found}; install Java, and set JAVA_HOME if java is not in "
            "the PATH"
        )
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return f"pyspark is not installed ({install_command('spark')})"
    return ""


def _java_version() -> int:
    """Returns the major version of the Java that pyspark would use; 0 for none."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        return 0
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found[1]) if found else 0


@contextmanager
def job_session(name: str, master: str | None, conf: Mapping[str, str], log: Path) -> Iterator["SparkSession"]:
    """Yields a session named `name`, with its JVM's messages in the file `log`, and ends it.

    `master` None is that of spark-submit, and without spark-submit `local[*]`. A session that this process has already
    is used as it is, and goes on. The JVM ends with this process. Raises the errors of pyspark.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of pyspark 4.3 on pandas 3
        from pyspark.logger import PySparkLogger
        from pyspark.sql import SparkSession

        for loud in _LOUD:
            PySparkLogger.getLogger(loud).setLevel(logging.CRITICAL)
        if there := SparkSession.getActiveSession():
            yield there
            return
        builder = SparkSession.builder
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers are python3 of the PATH
        if _SUBMITTED in os.environ:
            session = _started(builder.appName(name), master, conf)
        else:
            at = master or "local[*]"
            own = {**_OWN, **(_LOCAL if at.startswith("local") else {})}
            with _into_log(log):
                session = _started(builder.appName(name), at, {**own, **conf})
        try:
            yield session
        finally:
            session.stop()


def _started(builder: Any, master: str | None, conf: Mapping[str, str]) -> "SparkSession":
    session: SparkSession = (builder.master(master) if master else builder).config(map=dict(conf)).getOrCreate()
    return session


@contextmanager
def _into_log(log: Path) -> Iterator[None]:
    """Redirects the stderr of this process, and of the children that it starts, to a file."""
    sys.stderr.flush()
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def cause_of(error: BaseException) -> str:
    """Returns the line of an error of Spark that says why: of a task or a source in Python the last line of the trace,
    else the first line, without names of classes."""
    text = str(error).strip() or type(error).__name__
    traces = _TRACE.findall(text)
    line: str = traces[-1] if traces else text.splitlines()[0]
    return _CONDITION.sub("", _CLASS.sub("", line))
