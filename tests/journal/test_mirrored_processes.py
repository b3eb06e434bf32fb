"""A mirrored journal among real processes, etcd and S3 under load: a mirror is killed at a fail point, and an owner
stands still past its lease; then all are killed at once, and the loss is accepted, also of file journals whose disks
are gone. More of it: soak_mirrored."""

import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import httpx
import pytest

from tests.support.chaos.cluster import Cluster, waited
from tests.support.chaos.mirrored import LEASE_S, REACHED_S, done_under_load, killed_at, stopped_past_its_lease
from tests.support.history.load import SUBSCRIPTION, TOPIC, create
from tests.support.tiers import later, soaked

pytestmark = [pytest.mark.process, pytest.mark.service]


@pytest.mark.long
def test_nothing_is_lost_with_a_mirror_or_a_paused_owner(tmp_path: Path) -> None:
    steps = (partial(killed_at, "mirror.held:20"), stopped_past_its_lease)
    found, answered = done_under_load(tmp_path, steps)
    assert found == []
    assert answered > 100


@pytest.mark.parametrize(
    ("journal", "missing"),
    [
        later("mirrored", "its messages of up to 10 s, more if the store was unavailable, may be missing"),
        soaked("file", "its messages that are not in files may be"),
    ],
)
def test_all_are_killed_at_once_and_the_loss_is_accepted(tmp_path: Path, journal: str, missing: str) -> None:
    """No id that a client has seen is another message's, each segment takes messages again, and nobody stops."""
    with (
        Cluster(tmp_path, random.Random(1), lease_s=LEASE_S, journal=journal) as cluster,
        httpx.Client(timeout=30, trust_env=False) as http,
    ):
        create(cluster.urls[0], segments=6, flush={"max_age_s": 600})
        topic = f"{cluster.urls[0]}/v1/topics/{TOPIC}"

        def publish(first: int) -> dict[str, int]:
            values = range(first, first + 60)
            messages = [{"key": f"k{value}", "value": value} for value in values]
            answer = http.post(f"{topic}/messages", json={"messages": messages}).raise_for_status().json()
            return dict(zip(answer["ids"], values, strict=True))

        def pull(wait_s: float = 1) -> dict[str, int]:
            body = {"max_messages": 100, "wait_s": wait_s}
            answer = http.post(f"{topic}/subscriptions/{SUBSCRIPTION}/pull", json=body).raise_for_status().json()
            http.post(
                f"{topic}/subscriptions/{SUBSCRIPTION}/ack", json={"ids": [one["id"] for one in answer["messages"]]}
            ).raise_for_status()
            return {one["id"]: one["value"] for one in answer["messages"]}

        before = publish(0)
        http.post(f"{topic}/flush").raise_for_status()
        lost = publish(60)
        assert pull()
        dead = {member.id for member in cluster.members}
        for member in cluster.members:
            member.kill()
            for lost_folder in member.process.data_dir.iterdir() if journal == "file" else ():
                shutil.rmtree(lost_folder) if lost_folder.is_dir() else lost_folder.unlink()
        for member in cluster.members:
            member.revive()
        cluster.wait_healed()

        def unknown() -> set[str]:
            left = http.get(f"{cluster.urls[0]}/v1/cluster").raise_for_status().json()["left_behind"]
            return {one["broker"] for one in left if one["state"] == "unknown"}

        def recovered() -> set[str]:
            """Those whose keys stay, for folders that may come back."""
            found = http.get(f"{cluster.urls[0]}/v1/cluster").raise_for_status().json()["left_behind"]
            return dead - {one["broker"] for one in found} if journal == "file" else set()

        assert waited(lambda: unknown() == dead, REACHED_S), unknown()
        for broker in sorted(dead):
            done = subprocess.run(
                [sys.executable, "-m", "seaweedq", "journal", "accept-loss", broker, "--yes", "--url", cluster.urls[1]],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            assert missing in done.stdout
        assert waited(lambda: dead & cluster.named("journals/") == recovered(), 2 * REACHED_S)
        after = publish(120)
        assert not after.keys() & (before.keys() | lost.keys()), "an id was given out again"
        sent = {**before, **lost, **after}
        found: dict[str, int] = {}
        assert waited(lambda: bool(found.update(pull()) or after.keys() <= found.keys()), 2 * REACHED_S)
        assert found.items() <= sent.items()
        assert waited(lambda: not cluster.locked(), REACHED_S)
        assert len(cluster.owned()) == 6
        assert all(member.ids == [member.id] for member in cluster.members), "a broker began another life"
