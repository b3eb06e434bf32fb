"""A job that is killed at a fail point between its writes, and run again."""

import signal
from pathlib import Path
from typing import Any

from seaweedq import Client
from seaweedq.spark import read_generation
from seaweedq.spark.jobs.generations import Generations, Place
from tests.support.spark.job_process import environment, run


def kill_and_run_again(spark: Any, url: str, topic: str, folder: Path, kind: str, place: str) -> None:
    """Checks that the second run leaves what one would have: `topic` has the messages 0 to 29, and gets ten more."""
    arguments = (kind, topic, "--to", folder, "--url", url, "--keep", "0")
    assert run(*arguments, env=environment(SEAWEEDQ_FAIL_AT=place))[0] == -signal.SIGKILL
    there = Generations(Place.parse(str(folder)))
    assert there.numbers() == ([1] if place == "generation.recorded" else [])
    with Client(url) as client:
        client.publish(topic, [{"key": f"k{n % 11}", "value": n} for n in range(30, 40)])
        code, said, err = run(*arguments, env=environment())
        assert code == 0, err
        expected = sorted(map(int, client.read_table(topic, live=True)["value"].to_pylist()))
    kept = sorted(int(row.value) for row in read_generation(spark, str(folder)).collect())
    newest = there.newest()
    assert newest
    assert {*newest.folders} == {path.name for path in folder.glob("gen=*")}, said
    assert newest.generation == (2 if place == "generation.recorded" else 1)
    assert kept == (expected if kind == "export" else list(range(29, 40)))
