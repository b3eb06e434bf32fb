"""The sync and the async client are one client: the same names, parameters, defaults, types and docstrings.

The sync client is generated. Producers, receipts and messages are written twice, since they differ in more than
`await`: threads and locks here, tasks there.
"""

import inspect
import re
from typing import Any

import msgspec
import pytest

from seaweedq.client.aio.client import AsyncClient
from seaweedq.client.aio.producer import AsyncDelivery, AsyncProducer, AsyncReceipt
from seaweedq.client.core.delivery import Outcome
from seaweedq.client.core.message import AsyncMessage, Message
from seaweedq.client.core.wire import Published
from seaweedq.client.sync.client import Client
from seaweedq.client.sync.producer import Delivery, Producer, Receipt
from seaweedq.errors import ClientError

PAIRS = [
    (Client, AsyncClient),
    (Producer, AsyncProducer),
    (Message, AsyncMessage),
    (Receipt, AsyncReceipt),
    (Delivery, AsyncDelivery),
]
WORDS = (  # how the async client says what the sync client says
    (r"\bAsync(?=[A-Z])", ""),
    (r"\b__a(enter|exit)__", r"__\1__"),
    (r"\b(an )?`async with`", "a `with`"),
    (r"\bseaweedq(\.\w+)+\.(?=[A-Z])", ""),
    (r"\bPayload\b", "<class 'BinaryIO'>"),
)
SENTENCES = (  # said of one of the two alone
    "Raises TimeoutError after `timeout_s`.",
    "Creates the subscription immediately, unless it exists.",
    "Creates the subscription when the iteration begins, unless it exists.",
    "If you leave the iteration early, the client's `close` sends the last acks.",
)
PARAMETERS = {"timeout_s"}  # of a receipt: asyncio.timeout does it there
RECEIPTS = ("Receipt.", "Delivery.")
CONSTRUCTED = {Client}  # the others are made by it


def plain(text: str) -> str:
    """The text as the sync client would say it."""
    text = " ".join(text.split())
    for pattern, word in WORDS:
        text = re.sub(pattern, word, text)
    for sentence in SENTENCES:
        text = text.replace(sentence, "")
    return " ".join(text.split())


def members(owner: type) -> dict[str, Any]:
    """The public members that a class or its own bases define, by the sync client's names."""
    return {
        plain(name): inspect.getattr_static(owner, name)
        for name in dir(owner)
        if not name.startswith("_") or name in ("__init__", "__enter__", "__exit__", "__aenter__", "__aexit__")
    }


def function(member: Any) -> Any:
    return member.fget if isinstance(member, property) else getattr(member, "__func__", member)


def signature(member: Any) -> list[tuple[str, str, str, str]]:
    """Name, kind, default and type of each parameter, and the type that is returned."""
    found = inspect.signature(function(member))
    told = [
        (one.name, str(one.kind), plain(repr(one.default)), plain(inspect.formatannotation(one.annotation)))
        for one in found.parameters.values()
        if not (one.name in PARAMETERS and function(member).__qualname__.startswith(RECEIPTS))
    ]
    return [*told, ("return", "", "", plain(inspect.formatannotation(found.return_annotation)))]


def common() -> list[tuple[type, type, str]]:
    return [
        (sync, other, name)
        for sync, other in PAIRS
        for name in sorted(members(sync).keys() & members(other).keys())
        if callable(function(members(sync)[name])) and (name != "__init__" or sync in CONSTRUCTED)
    ]


@pytest.mark.parametrize(("sync", "other"), PAIRS, ids=lambda one: one.__name__)
def test_both_have_the_same_members(sync: type, other: type) -> None:
    assert members(sync).keys() ^ members(other).keys() == set()


@pytest.mark.parametrize(("sync", "other", "name"), common(), ids=lambda one: getattr(one, "__name__", one))
def test_a_member_has_one_signature(sync: type, other: type, name: str) -> None:
    assert signature(members(sync)[name]) == signature(members(other)[name])


@pytest.mark.parametrize(("sync", "other", "name"), common(), ids=lambda one: getattr(one, "__name__", one))
def test_a_member_has_one_docstring(sync: type, other: type, name: str) -> None:
    assert plain(inspect.getdoc(function(members(sync)[name])) or "") == plain(
        inspect.getdoc(function(members(other)[name])) or ""
    )


async def test_both_kinds_of_receipt_tell_of_a_batch_with_one_rejected_message() -> None:
    refused = ClientError("refused")
    outcome = Outcome(Published(1, [], msgspec.Raw(b'["0-7"]')), refused, rejected=(1,))
    delivery, other = Delivery(), AsyncDelivery()
    delivery.complete(outcome)
    other.complete(outcome)
    assert (
        Receipt(delivery, 0).result() == await AsyncReceipt(other, 0).result() == await AsyncReceipt(other, 0) == "0-7"
    )
    assert Receipt(delivery, 0).exception() is await AsyncReceipt(other, 0).exception() is None
    assert Receipt(delivery, 1).exception() is await AsyncReceipt(other, 1).exception() is refused
    assert delivery.exception() is await other.exception() is refused
