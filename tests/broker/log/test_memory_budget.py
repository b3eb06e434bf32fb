"""When the allocator's free memory is given back: once it is quiet, only where it is worth it, and not for nothing."""

import asyncio
import threading

import pytest

from seaweedq.broker.log.memory_budget import (
    BUSY_BYTES,
    EACH_S,
    QUIET_S,
    WORTH_BYTES,
    Budget,
    UnusedMemory,
    resident_bytes,
)

MIB = 1 << 20
START = 200 * MIB


class Process:
    """A process of so much memory, of which a trim leaves `used`."""

    def __init__(self) -> None:
        self.resident = self.used = START
        self.trims = 0

    def release(self) -> None:
        """A trim."""
        assert threading.current_thread() is not threading.main_thread(), "a trim would hold up the event loop"
        self.trims += 1
        self.resident = self.used


class Clock:
    now_s = 100.0

    def monotonic_s(self) -> float:
        """Seconds."""
        return self.now_s


@pytest.fixture
def budget():
    return Budget(1 << 30)


@pytest.fixture
def process():
    return Process()


@pytest.fixture
def passed(budget, process):
    """Lets seconds pass, with a tick each tenth."""
    clock = Clock()
    unused = UnusedMemory(budget, clock, lambda: process.resident, process.release)

    def let(seconds):
        for _ in range(round(10 * seconds)):
            clock.now_s += 0.1
            if unused.is_due():
                asyncio.run(unused.give_back())

    return let


def test_what_was_freed_is_given_back_once_it_is_quiet(budget, process, passed):
    process.resident += WORTH_BYTES
    budget.answers = BUSY_BYTES
    passed(10 * EACH_S)
    assert not process.trims
    budget.answers = 0
    passed(QUIET_S - 0.2)
    assert not process.trims
    passed(EACH_S)
    assert process.trims == 1
    assert process.resident == START


def test_small_requests_are_quiet(budget, process, passed):
    process.resident += WORTH_BYTES + BUSY_BYTES
    budget.requests = BUSY_BYTES - 1
    passed(2 * EACH_S)
    assert process.trims == 1


def test_little_is_left_alone(process, passed):
    process.resident += WORTH_BYTES - 1
    passed(10 * EACH_S)
    assert not process.trims


def test_what_the_budget_counts_is_in_use(budget, process, passed):
    process.resident += 2 * WORTH_BYTES
    budget.tails = budget.cached = WORTH_BYTES
    passed(10 * EACH_S)
    assert not process.trims
    budget.cached = 0
    passed(2 * EACH_S)
    assert process.trims == 1


def test_what_cannot_be_given_back_is_tried_once(process, passed):
    process.resident = process.used = START + 3 * WORTH_BYTES
    passed(20 * EACH_S)
    assert process.trims == 1
    process.resident += WORTH_BYTES
    passed(2 * EACH_S)
    assert process.trims == 2


def test_what_is_freed_after_a_release_is_given_back_too(process, passed):
    process.resident = process.used = START + 5 * WORTH_BYTES
    passed(3 * EACH_S)
    process.resident, process.used = START + 3 * WORTH_BYTES, START  # a part went by itself, the rest was freed
    passed(3 * EACH_S)
    assert process.trims == 2
    assert process.resident == START


def test_this_process_has_memory():
    assert resident_bytes() > 10 * MIB
