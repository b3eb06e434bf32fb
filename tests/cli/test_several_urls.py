"""Commands that were given several brokers, the first of which is dead."""

import json

import pytest

from tests.support.processes.command import seaweedq

pytestmark = pytest.mark.process


@pytest.fixture
def run(real_broker):
    def command(*arguments):
        done = seaweedq(*arguments, env={"SEAWEEDQ_URL": f"http://127.0.0.1:9,{real_broker.url}"})
        assert done.returncode == 0, done.stderr
        return done.stdout

    return command


def test_the_next_one_answers_and_lines_to_paste_name_one(run):
    run("topic", "create", "several")
    shown = run("topic", "show", "several")
    assert "curl http://127.0.0.1:9/v1/topics/several\n" in shown
    run("topic", "delete", "several", "--yes")


def test_bench_goes_by_the_next_one(run):
    told = run("bench", "--messages", "500", "--consumers", "1", "-o", "json")
    figures = [json.loads(line) for line in told.splitlines()]
    assert [(row["what"], row["messages"]) for row in figures if "messages" in row] == [
        ("publish", 500),
        ("pull, ack", 500),
    ]
