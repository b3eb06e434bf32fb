"""A broker under load is killed at random moments, again and again; at last the whole history is judged."""

import random
import time

import pytest

from tests.support.history.checker import Run, check
from tests.support.history.final_read import flush, in_files, over_http
from tests.support.history.history import Row
from tests.support.history.load import Load, create

pytestmark = pytest.mark.process

KILLS = 20
LOADED_S = (0.05, 1.2)  # after it is ready
STARTING_S = (0.3, 1.5)  # after it was started: while it imports, recovers, takes over
SETTINGS = ("--journal-file-bytes", "65536", "--checkpoint-s", "1", "--log-level", "warning")


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_nothing_is_lost_or_doubled_over_twenty_kills(broker_process, history, seed):
    rng = random.Random(seed)
    broker = broker_process(*SETTINGS)
    create(broker.url)
    listings: list[list[Row]] = []
    with Load(broker.url, history, seed) as load:
        for kill in range(KILLS):
            ready = kill % 4 != 3  # each fourth time it is killed while it starts
            time.sleep(rng.uniform(*LOADED_S if ready else STARTING_S))
            broker.kill()
            load.check()
            listings.append(in_files(broker.store))
            broker.start(wait=(kill + 1) % 4 != 3)
        load.settle()
    flush(broker.url)
    run = Run(history.events, over_http(broker.url), in_files(broker.store), listings)
    assert check(run) == []
    assert min(acknowledged(history, publisher.name) for publisher in load.publishers) > 10 * KILLS
    assert len(listings[-1]) > len(listings[0])


def acknowledged(history, producer):
    return sum(event.type == "ok" and event.producer == producer for event in history.events)
