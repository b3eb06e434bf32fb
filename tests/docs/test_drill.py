"""The drill of a lost coordination, as far as it needs no service, is run as it is written, and prints what it shows.
`soak_drill` runs all of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.docs.operator import ETCD, operating
from tests.support.docs.page import DRILL, Block, blocks
from tests.support.processes.broker_process import BrokerProcess

ALONE = "--data-dir alone"


def on_one_machine() -> list[Block]:
    """The blocks from the first broker on that has everything in its folder."""
    found = blocks(DRILL)
    (first, *_) = [at for at, block in enumerate(found) if ALONE in block.text]
    return found[first:]


@pytest.mark.process
@pytest.mark.long
def test_coordination_db_is_removed_as_the_drill_says(
    tmp_path: Path, broker_process: Callable[..., BrokerProcess]
) -> None:
    with operating(tmp_path, broker_process(start=False), {}) as operator:
        for block in on_one_machine():
            operator.follow(block)


def test_the_drill_has_each_way_to_lose_coordination() -> None:
    text = "\n".join(block.text for block in blocks(DRILL))
    ways = ("snapshot restore", f"{ETCD} etcd-3", "rm alone/coordination.db", "s3.copy")
    assert all(way in text for way in ways)
    assert text.count("cluster rebuild\n") == 4
