"""Which URIs are payloads of a topic: those that brokers draw, and no other, however it is written."""

import asyncio
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads.message_payloads import Payloads
from seaweedq.clock import SystemClock
from seaweedq.coordination.records.topics import TopicConfig, TopicRecord
from seaweedq.coordination.records.versioned import Versioned
from seaweedq.errors import StoreUnavailable
from seaweedq.storage.names import check_name
from tests.support.tiers import examples

NONCE = "0123456789abcdef" * 2
REST = f"20261121/20261121-7-{NONCE}"
ROOTS = ("file:///var/store", "s3://bucket/pre fix", "s3://bucket")


class Somewhere:
    """A store that only knows where it is."""

    def __init__(self, root: str) -> None:
        self._root = root

    def uri(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"


def topic(name: str = "flights") -> Topic:
    return Topic.of(name, Versioned(TopicRecord(7, "active", TopicConfig(), 0), 1))


async def url_of(found: Topic, name: str, lasts_s: int) -> str:
    return f"signed:{name}"


def payloads(root: str, link: Any = url_of) -> Payloads:
    return Payloads(Somewhere(root), None, link, None, None, SystemClock(), 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("root", ROOTS)
def test_its_own(root: str) -> None:
    assert payloads(root).name_of(topic(), f"{root}/_payloads/flights/{REST}") == f"_payloads/flights/{REST}"


HOSTILE = [
    None,
    "",
    "_payloads/flights/" + REST,
    "/var/store/_payloads/flights/" + REST,
    "file:/var/store/_payloads/flights/" + REST,
    "FILE:///var/store/_payloads/flights/" + REST,
    "file://localhost/var/store/_payloads/flights/" + REST,
    "file://169.254.169.254/var/store/_payloads/flights/" + REST,
    "http://169.254.169.254/latest/meta-data/iam/security-credentials/",
    "http://var/store/_payloads/flights/" + REST,
    "s3://other/_payloads/flights/" + REST,
    "s3a://bucket/_payloads/flights/" + REST,
    "s3://bucket@evil/_payloads/flights/" + REST,
    "s3://bucket/_payloads/flights/" + REST + "?versionId=1",
    "s3://bucket/_payloads/flights/" + REST + "#x",
    "s3://bucket/_payloads/flights/" + REST + "/",
    "s3://bucket/_payloads/flights/" + REST + "/more",
    "s3://bucket/_payloads/flights/" + REST + "\n",
    "s3://bucket/_payloads/flights/" + REST + "\x00",
    "s3://bucket/_payloads/flights/" + REST.upper(),
    "s3://bucket/_payloads/flights/" + REST.replace("-7-", "-8-"),  # of a topic of that name that was deleted
    "s3://bucket/_payloads/flights/" + REST.replace("-7-", "-07-"),
    "s3://bucket/_payloads/flights/" + REST.replace("20261121/", "20261122/"),
    "s3://bucket/_payloads/flights/" + REST.replace("2", "\u0662"),
    "s3://bucket/_payloads/flights/../flights/" + REST,
    "s3://bucket/_payloads/flights/%2e%2e/flights/" + REST,
    "s3://bucket/_payloads/flights/..%2fothers/" + REST,
    "s3://bucket/_payloads/flights/./" + REST,
    "s3://bucket/_payloads/flights//" + REST,
    "s3://bucket/_payloads/flights/" + quote(REST, safe=""),
    "s3://bucket/_payloads/flights2/" + REST,
    "s3://bucket/_payloads/others/" + REST,
    "s3://bucket/_payloads/Flights/" + REST,
    "s3://bucket/_payloads/" + REST,
    "s3://bucket/topics/flights/segment=0/00000000-0000000000000000.parquet",
    "s3://bucket/_payloads/flights/../../_cluster.json",
]


@pytest.mark.parametrize("uri", HOSTILE)
def test_others(uri: str | None) -> None:
    for root in ("file:///var/store", "s3://bucket"):
        assert payloads(root).name_of(topic(), uri) is None
        assert asyncio.run(payloads(root).links(topic(), [uri] if uri else [])) == {}


PIECES = (
    *("s3://bucket", "file://", "/", "//", "_payloads", "flights", "others", "..", ".", "%2e%2e", "%2F", REST),
    *("20261121", REST.partition("/")[2], "?x", "#", "\n", "\\", "@", ":", "s3://other", "", "https://169.254.169.254"),
)
FOLDER = "s3://bucket/_payloads/flights/"


@settings(deadline=None, max_examples=examples(500))
@given(st.lists(st.sampled_from(PIECES), max_size=9).map("".join) | st.text(max_size=60).map(FOLDER.__add__))
@example("s3://bucket/_payloads/flights/" + REST)
def test_none_but_the_one(uri: str) -> None:
    """Of all URIs that can be put together of these, only the one that a broker wrote is opened."""
    name = payloads("s3://bucket").name_of(topic(), uri)
    assert (name is not None) == (uri == f"s3://bucket/_payloads/flights/{REST}")


def test_a_link_that_cannot_be_made_is_left_out() -> None:
    async def never(found: Topic, name: str, lasts_s: int) -> str:
        raise StoreUnavailable("the store is not there")

    assert asyncio.run(payloads("s3://bucket", never).links(topic(), [f"s3://bucket/_payloads/flights/{REST}"])) == {}
