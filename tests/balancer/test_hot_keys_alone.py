"""The hot keys that an owner tells are those that the leader decides on."""

import random

from seaweedq.balancer.load import costs
from seaweedq.balancer.scaling import HotKey, decide, hot_keys
from tests.support.balancer.scaled import HOSTS, POLICY, TOPIC, load, row


def test_hot_keys_alone_are_those_of_all_decisions() -> None:
    chance, seen = random.Random(1), set()
    for _ in range(200):
        loads = [
            load(chance.choice([0.1, 2.5, 6.0, 9.0]), hottest=4711, hot_share=chance.choice([0.0, 0.4, 0.5, 0.9, 1.0]))
            for _ in range(chance.randrange(1, 6))
        ]
        segments = row(*loads)
        counted = costs({each.id: each.load for each in segments if each.load})
        plans = decide(segments, {TOPIC: POLICY}, counted, HOSTS, 100)
        told = hot_keys(segments, {TOPIC: POLICY}, HOSTS)
        assert told == [plan for plan in plans if isinstance(plan, HotKey)]
        seen |= {len(told)}
    assert len(seen) > 2
    assert hot_keys([], {TOPIC: POLICY}, HOSTS) == []
    assert hot_keys(row(load(9.0, hottest=1, hot_share=1.0)), {}, HOSTS) == []
