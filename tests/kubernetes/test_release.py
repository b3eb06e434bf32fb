"""What operators do with a release, while clients of plain HTTP that repeat nothing publish and pull.

The tests run in this order on one release, and leave it as they found it but for the last.
"""

import asyncio

import pytest

from tests.support.kubernetes.load import Figures
from tests.support.kubernetes.release import Release

pytestmark = [pytest.mark.process, pytest.mark.service, pytest.mark.long, pytest.mark.timeout(300)]
GAP_S = 3.0  # and as long as the store took for an answer: it is slow where the machine is


def unharmed(figures: Figures) -> bool:
    """Print what the clients saw; whether it was nothing."""
    print(figures, *figures.failed, sep="\n")
    harm = (len(figures.failed), figures.lost, figures.doubled, figures.redelivered)
    return harm == (0, 0, 0, 0) and figures.requests > 0 and figures.longest_gap_s < GAP_S + figures.slowest_store_s


def test_an_installed_release_has_brokers_on_own_nodes_and_knows_zones(release: Release) -> None:
    nodes = {pod["spec"]["nodeName"] for pod in release.brokers()}
    assert nodes == {"node-a", "node-b", "node-c"}
    assert len(release.kubelet.ready()) == 3


async def test_helm_test_passes(release: Release) -> None:
    code, printed = await release.helm("test", "queue", "--timeout", "60s")
    assert code == 0, printed


async def test_clients_see_nothing_of_an_upgrade(release: Release) -> None:
    before = {pod["metadata"]["name"] for pod in release.brokers()}
    async with release.under_load() as figures:
        release.values["config"] = {"auth": "none", "flush_max_age_s": 60}
        code, printed = await release.apply("upgrade")
        assert code == 0, printed
    assert unharmed(figures)
    assert release.kubelet.least_ready >= 3
    assert not before & {pod["metadata"]["name"] for pod in release.brokers()}


async def test_clients_see_nothing_of_a_failed_upgrade_and_its_rollback(release: Release) -> None:
    async with release.under_load() as figures:
        code, printed = await release.apply("upgrade", within_s=8, image={"repository": "seaweedq", "tag": "broken"})
        assert code != 0, printed
        code, printed = await release.helm("rollback", "queue", "--wait", "--timeout", "90s")
        assert code == 0, printed
    assert unharmed(figures)
    assert release.kubelet.least_ready >= 3


async def test_clients_see_nothing_of_a_drained_node(release: Release) -> None:
    node = release.brokers()[0]["spec"]["nodeName"]
    async with release.under_load() as figures:
        await release.drain(node)
    release.api.ask("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": None}})
    assert unharmed(figures)
    assert release.kubelet.least_ready >= 2  # an eviction does not wait for a successor


async def test_of_two_evictions_the_second_waits_and_clients_see_nothing(release: Release) -> None:
    names = [pod["metadata"]["name"] for pod in release.brokers()]
    async with release.under_load() as figures:
        assert [release.evict(name) for name in names[:2]] == [201, 429]
    assert unharmed(figures)
    assert release.kubelet.least_ready >= 2


async def test_turning_autoscaling_on_takes_no_broker_away_and_marks_one(release: Release) -> None:
    async with release.under_load() as figures:
        code, printed = await release.apply("upgrade", autoscaling={"enabled": True, "minReplicas": 2})
        assert code == 0, printed
        await release.autoscaled()
        async with asyncio.timeout(90):
            while len(release.marked()) != 1:
                await asyncio.sleep(0.2)
    assert unharmed(figures)
    assert (release.replicas(), release.kubelet.least_ready) == (3, 3)


async def test_another_cluster_secret_is_taken_once_no_broker_runs(release: Release) -> None:
    secret = {**release.values["secret"], "clusterSecret": "another-for-these-tests"}
    code, printed = await release.apply("upgrade", secret=secret)
    assert code != 0
    assert "the cluster secret cannot change while brokers run" in printed
    release.api.ask("PATCH", release.deployment, {"spec": {"replicas": 0}})
    await release.settled()
    code, printed = await release.apply("upgrade", secret=secret)
    assert code == 0, printed
    assert (release.replicas(), len(release.kubelet.ready())) == (3, 3)
