"""Keys between brokers: derived as the standards say, each for one thing, and proofs in records cannot be moved."""

from dataclasses import replace

import msgspec
import pytest

from seaweedq.broker.rpc.peer_keys import PeerKeys, RootKeys, framed, hkdf, stretch
from seaweedq.coordination.records import BrokerRecord
from tests.support.brokers.peer_keys import keys_of

RECORD = BrokerRecord("http://b1:8080", "b1", 1_000, "zone", peer_url="https://b1:8443", lowest=1, highest=4)


def proven(keys: PeerKeys, record: BrokerRecord = RECORD, broker: str = "b1.0f") -> BrokerRecord:
    """The record with its proofs."""
    return msgspec.structs.replace(record, proofs=keys.prove(broker, record))


def test_hkdf_is_that_of_rfc_5869() -> None:
    found = hkdf(bytes([0x0B] * 22), bytes(range(13)), bytes(range(0xF0, 0xFA)), 42)
    assert found.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"


def test_the_root_is_scrypts_and_another_one_for_each_cluster() -> None:
    known = "743c4782c58204a1024b1963ce743ff9aad99a66530273755f7bbd558f30f12b"
    assert stretch("sesame", "c1").hex() == known
    assert stretch("sesame", "c2").hex() != known


def test_every_label_and_context_has_a_key_of_its_own() -> None:
    keys = RootKeys.from_root(b"r" * 32)
    found = [keys.derive(b"a"), keys.derive(b"b"), keys.derive(b"a", b"b"), keys.derive(b"ab"), keys.hello, keys.record]
    assert len(set(found)) == len(found)
    assert framed(b"ab", b"c") != framed(b"a", b"bc")


def test_nothing_that_is_shown_of_keys_tells_them() -> None:
    keys = keys_of("sesame")
    assert repr(keys.roots[0].root)[2:-1] not in repr(keys)
    assert repr(keys) == "PeerKeys(roots=(RootKeys(),))"


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://x"},
        {"peer_url": "https://x"},
        {"peer_url": ""},
        {"started_us": 1},
        {"highest": 5},
        {"lowest": 2},
    ],
)
def test_a_proof_holds_for_no_other_record(change: dict[str, object]) -> None:
    keys = keys_of("sesame")
    there = proven(keys)
    assert keys.shared("b1.0f", there) is keys.roots[0]
    assert keys.shared("b1.0f", msgspec.structs.replace(there, **change)) is None
    assert keys.shared("b1.0e", there) is None


def test_what_changes_in_a_life_needs_no_new_proof() -> None:
    keys = keys_of("sesame")
    there = msgspec.structs.replace(proven(keys), draining=True, starting=True, suspicion_exempt=True, lease_s=7.0)
    assert keys.shared("b1.0f", there)


@pytest.mark.parametrize("proofs", [(), ("",), ("é" * 64,), ("0" * 64,), ("x",) * 1000])
def test_a_record_without_a_right_proof_proves_nothing(proofs: tuple[str, ...]) -> None:
    assert keys_of("sesame").shared("b1.0f", msgspec.structs.replace(RECORD, proofs=proofs)) is None


def test_of_several_secrets_the_first_that_both_have_is_shared() -> None:
    old, both, new = keys_of("old"), keys_of("new", "old"), keys_of("new")
    assert both.shared("b1.0f", proven(old)) is both.roots[1]
    assert both.shared("b1.0f", proven(new)) is both.roots[0]
    assert both.shared("b1.0f", proven(both)) is both.roots[0]
    assert old.shared("b1.0f", proven(both)) is old.roots[0]
    assert new.shared("b1.0f", proven(old)) is None


def test_another_cluster_with_the_same_secret_shares_nothing() -> None:
    keys = keys_of("sesame")
    other = keys_of("sesame", cluster="c2")
    assert other.shared("b1.0f", proven(keys)) is None
    assert replace(keys, roots=()).shared("b1.0f", proven(keys)) is None
