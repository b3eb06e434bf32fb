"""The log lines of handovers that fail, which are tried twice a second."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from seaweedq.broker.subscriptions.dispatcher import Handoff
from seaweedq.errors import NeedsNewerBroker, SeaweedqError, Unavailable


@pytest.mark.parametrize(("error", "lines"), [(NeedsNewerBroker("a cursor"), 0), (Unavailable("no answer"), 2)])
async def test_a_subscription_that_needs_a_newer_broker_is_no_line_each_time(
    error: SeaweedqError, lines: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def hand_over(*subscription: Any) -> None:
        raise error

    none = cast(Any, None)
    handoff = Handoff(cast(Any, SimpleNamespace(hand_over=hand_over)), none, none, none)
    for _ in range(2):
        await handoff._hand_over((cast(Any, SimpleNamespace(name="t")), "s"))
    assert len(caplog.records) == lines
