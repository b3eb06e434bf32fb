"""What a job's session needs, and why one failed, in a line."""

from pathlib import Path

import pytest

from seaweedq.cli.main import main
from seaweedq.spark.jobs.session import cause_of, missing_for_spark


@pytest.mark.process
@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ('openjdk version "17.0.15" 2025-04-15', ""),
        ('openjdk version "21" 2023-09-19', ""),
        ('openjdk version "11.0.2" 2019-01-15', "this is Java 11"),
        ('java version "1.8.0_202"', "this is Java 8"),
        ("The operation couldn't be completed.", "no Java"),
    ],
)
def test_a_java_that_is_too_old_is_named(said, missing, tmp_path, monkeypatch):
    pytest.importorskip("pyspark")
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert missing in missing_for_spark()
    assert bool(missing) == bool(missing_for_spark())


TASK = """[PYTHON_EXCEPTION] An exception was thrown from a worker:
  File "x.py", line 1, in <module>
Traceback (most recent call last):
  File "source.py", line 3, in read
    raise ClientError("rows are gone")
seaweedq.errors.ClientError: rows are gone: 3 to 7

JVM stacktrace:
org.apache.spark.SparkException: job aborted
"""


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (TASK, "rows are gone: 3 to 7"),
        ("[TABLE_NOT_FOUND] The table `x` is none. SQLSTATE: 42P01; line 1\nmore", "The table `x` is none."),
        ("", "ValueError"),
    ],
)
def test_the_cause_is_one_line(said: str, cause: str) -> None:
    assert cause_of(ValueError(said)) == cause


@pytest.mark.parametrize("asked", ["audit t", "replay t --into u --checkpoint at"])
def test_without_java_a_job_says_what_to_install(
    asked: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["spark", *asked.split()])
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith(
        "seaweedq: Spark cannot run here: Spark needs Java 17 or newer, but no Java was found; install"
    )
