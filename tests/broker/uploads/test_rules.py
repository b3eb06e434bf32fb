"""Names, parts, tokens, what the sweep does with every state at every time, and which URIs are payloads of a topic:
those that brokers draw, and no other.
"""

import asyncio
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from seaweedq.broker.topics.catalog import Topic
from seaweedq.broker.uploads import broker_urls
from seaweedq.broker.uploads import rules as upload_plan
from seaweedq.broker.uploads.payloads import Payloads
from seaweedq.broker.uploads.rules import Step, step
from seaweedq.clock import SystemClock
from seaweedq.coordination.records import TopicConfig, TopicRecord, UploadRecord
from seaweedq.coordination.versioned import Versioned
from seaweedq.errors import InvalidRequest, StoreUnavailable, UploadConflict
from seaweedq.settings import Settings
from seaweedq.storage.interface import Part, check_name
from tests.support.tiers import examples

NONCE = "0123456789abcdef" * 2
ID = f"20261121-7-{NONCE}"
NOW_US = 1_795_276_800_000_000
RECORD = UploadRecord("n", 1, "a/b", None, NOW_US, NOW_US)
GRACE_S, DAY_S = 3600, 86_400
MIB = 1024 * 1024


def test_names():
    assert upload_plan.upload_id(NOW_US, 7, NONCE) == ID
    assert upload_plan.incarnation_of(ID) == 7
    assert upload_plan.object_name("t", ID) == f"_payloads/t/20261121/{ID}"
    assert upload_plan.id_of("t", f"_payloads/t/20261121/{ID}") == ID


@pytest.mark.parametrize(
    "name",
    [
        f"_payloads/u/20261121/{ID}",
        f"_payloads/t/20261122/{ID}",
        f"_payloads/t/{ID}",
        f"_payloads/t/20261121/x/{ID}",
        f"_payloads/t/../t/20261121/{ID}",
        f"_payloads/t/20261121/{ID}x",
        f"_payloads/t/20261121/{ID}\n",
        f"_payloads/t/20261121/20261121-07-{NONCE}",
        "",
    ],
)
def test_names_that_are_no_payload_of_the_topic(name):
    assert upload_plan.id_of("t", name) is None


@given(st.text(max_size=60))
def test_no_id_leaves_its_folder(text):
    if upload_plan.incarnation_of(text) is None:
        with pytest.raises(ValueError, match="not an upload id"):
            upload_plan.object_name("t", text)
    else:
        assert upload_plan.object_name("t", text).split("/")[:2] == ["_payloads", "t"]


@pytest.mark.parametrize(
    ("size", "multipart", "presigns", "parts"),
    [
        (1024 * MIB, None, True, None),
        (1024 * MIB + 1, None, True, 16 * MIB),
        (1, True, True, 16 * MIB),
        (1024 * MIB + 1, False, True, None),
        (1024 * MIB + 1, None, False, None),
        (10**15, None, False, None),
        (5 * 1024**4, None, True, 525 * MIB),
    ],
)
def test_parts(size, multipart, presigns, parts):
    assert upload_plan.part_bytes(size, multipart, presigns, Settings()) == parts


@pytest.mark.parametrize(("size", "multipart", "presigns"), [(1, True, False), (5 * 1024**3 + 1, False, True)])
def test_what_the_store_cannot(size, multipart, presigns):
    with pytest.raises(InvalidRequest):
        upload_plan.part_bytes(size, multipart, presigns, Settings())


@given(st.integers(0, 5 * 1024**4), st.integers(5 * MIB, 5 * 1024**3))
def test_parts_are_within_the_bounds_of_s3_and_make_the_whole(size, threshold):
    each = upload_plan.part_bytes(size, True, True, Settings(multipart_bytes=threshold))
    record = msgspec.structs.replace(RECORD, size=size, part_bytes=each)
    count = upload_plan.part_count(record)
    assert 1 <= count <= 10_000
    assert 5 * MIB <= each <= 5 * 1024**3
    last = upload_plan.part_size(record, count)
    assert (count - 1) * each + last == size
    assert last > 0 or size == 0


def test_missing_parts():
    record = msgspec.structs.replace(RECORD, size=25, part_bytes=10)
    assert upload_plan.missing_parts(record, [Part(1, 10, ""), Part(2, 9, ""), Part(4, 5, "")]) == [2, 3]
    assert upload_plan.missing_parts(record, [Part(1, 10, ""), Part(2, 10, ""), Part(3, 5, "")]) == []
    for number in (0, 4, -1):
        with pytest.raises(InvalidRequest):
            upload_plan.part_size(record, number)
    with pytest.raises(UploadConflict):
        upload_plan.part_count(RECORD)


@pytest.mark.parametrize(
    ("state", "cleared", "late_s", "due"),
    [
        ("open", False, -1, Step.KEEP),
        ("open", False, GRACE_S, Step.KEEP),
        ("open", False, GRACE_S + 1, Step.REMOVE),
        ("published", False, GRACE_S, Step.KEEP),
        ("published", False, GRACE_S + 1, Step.FORGET),
        ("removed", False, -1000, Step.CLEAR),
        ("removed", True, -1000, Step.KEEP),
        ("removed", True, DAY_S, Step.KEEP),
        ("removed", False, DAY_S, Step.CLEAR),
        ("removed", True, DAY_S + 1, Step.CLEAR_AND_FORGET),
        ("removed", False, DAY_S + 1, Step.CLEAR_AND_FORGET),
    ],
)
def test_what_the_sweep_does(state, cleared, late_s, due):
    record = msgspec.structs.replace(RECORD, state=state, cleared=cleared)
    assert step(record, NOW_US + late_s * 1_000_000, GRACE_S) == due


def test_no_url_outlives_its_upload():
    record = msgspec.structs.replace(RECORD, expires_us=NOW_US + 10_500_000)
    assert upload_plan.url_seconds(record, NOW_US, Settings()) == 10
    assert upload_plan.url_seconds(record, NOW_US - 10**12, Settings()) == 3600
    assert upload_plan.url_seconds(record, NOW_US + 10**9, Settings()) == 0


SAID = broker_urls.Grant("PUT", f"_payloads/t/20261121/{ID}", 1000)


def test_a_token_is_for_exactly_what_was_signed():
    token = broker_urls.sign(b"secret", SAID)
    assert broker_urls.is_signed(b"secret", SAID, token, 999.9)
    assert not broker_urls.is_signed(b"secret", SAID, token, 1000)
    assert not broker_urls.is_signed(b"other", SAID, token, 0)
    assert not broker_urls.is_signed(b"secret", SAID, token.upper(), 0)
    assert not broker_urls.is_signed(b"secret", SAID, "", 0)
    others = {"method": "GET", "name": f"_payloads/u/20261121/{ID}", "expires_s": 1001}
    assert others.keys() == set(SAID._fields)
    for name, other in others.items():
        assert not broker_urls.is_signed(b"secret", SAID._replace(**{name: other}), token, 0)


REST = f"20261121/20261121-7-{NONCE}"
ROOTS = ("file:///var/store", "s3://bucket/pre fix", "s3://bucket")


class Somewhere:
    """A store that only knows where it is."""

    def __init__(self, root: str) -> None:
        self._root = root

    def uri(self, name: str) -> str:
        return f"{self._root}/{check_name(name)}"


def topic(name: str = "flights") -> Topic:
    return Topic.from_record(name, Versioned(TopicRecord(7, "active", TopicConfig(), 0), 1))


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
