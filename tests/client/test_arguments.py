"""Arguments of subscribers that no broker could fulfil: they are refused at the call, by name, value and bound."""

import asyncio
from math import inf, nan
from typing import Any

import pytest

from seaweedq import AsyncClient, Client

NOWHERE = "http://127.0.0.1:1"
SUBSCRIBERS = [
    ({"max_messages": 0}, ValueError, "max_messages is 0; it must be a whole number from 1 to 10,000"),
    ({"max_messages": 10_001}, ValueError, "max_messages is 10001; it must be a whole number from 1 to 10,000"),
    ({"max_messages": 2.5}, TypeError, r"max_messages is 2.5 \(float\); it must be a whole number from 1 to 10,000"),
    ({"max_messages": True}, TypeError, "max_messages is True"),
    ({"idle_timeout_s": -1}, ValueError, "idle_timeout_s is -1; it must be a finite number of seconds from 0 on"),
    ({"idle_timeout_s": nan}, ValueError, "idle_timeout_s is nan"),
    ({"idle_timeout_s": inf}, ValueError, "idle_timeout_s is inf"),
    ({"idle_timeout_s": "1"}, TypeError, r"idle_timeout_s is '1' \(str\)"),
    ({"consumer": ""}, ValueError, "consumer is ''; it must have 1 to 255 characters"),
    ({"consumer": "x" * 256}, ValueError, "it must have 1 to 255 characters"),
    ({"consumer": 7}, TypeError, r"consumer is 7 \(int\)"),
]
POOLS = [
    ({"handler": None}, TypeError, r"handler is None \(NoneType\); it must be callable"),
    ({"workers": 0}, ValueError, "workers is 0; it must be a whole number from 1 to 10,000"),
    ({"workers": 1.5}, TypeError, r"workers is 1.5 \(float\); it must be a whole number from 1 to 10,000"),
    ({"max_extension_s": -1}, ValueError, "max_extension_s is -1; it must be a number of seconds from 0 on"),
    ({"max_extension_s": nan}, ValueError, "max_extension_s is nan"),
    ({"max_extension_s": None}, TypeError, "max_extension_s is None"),
]


@pytest.mark.parametrize(("wrong", "error", "says"), SUBSCRIBERS)
def test_a_subscriber_is_refused_at_the_call(wrong: dict[str, Any], error: type[Exception], says: str) -> None:
    client = AsyncClient(NOWHERE)
    with Client(NOWHERE) as here:
        for call in (here.subscribe, here.batches, client.subscribe, client.batches):
            with pytest.raises(error, match=says):
                call("t", "s", **wrong)


@pytest.mark.parametrize(("wrong", "error", "says"), SUBSCRIBERS + POOLS)
def test_a_pool_is_refused_at_the_call(wrong: dict[str, Any], error: type[Exception], says: str) -> None:
    arguments: dict[str, Any] = {"handler": print, **wrong}
    with Client(NOWHERE) as here, pytest.raises(error, match=says):
        here.work("t", "s", **arguments)
    with pytest.raises(error, match=says):
        asyncio.run(AsyncClient(NOWHERE).work("t", "s", **arguments))
