"""The cluster under chaos: who is who in it, what the faults do to processes, and that a stopped fail point goes on."""

import random
import subprocess
import sys
from time import time
from types import SimpleNamespace

import httpx
import pytest

from tests.support.chaos.clocks import ABSENT, Clock, library
from tests.support.chaos.cluster import Cluster, waited
from tests.support.chaos.etcd_faults import compacted, lease_revoked
from tests.support.chaos.return_faults import etcd_emptied, etcd_restored
from tests.support.history.load import create

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster"), random.Random(0), 2, 2.0) as cluster:
        create(cluster.urls[0], segments=4)
        yield cluster


@pytest.mark.long
@pytest.mark.service
def test_it_knows_leader_owners_and_dispatcher_from_etcd(cluster):
    assert cluster.leader() in cluster.members
    assert set(cluster.owned()) == {0, 1, 2, 3}
    assert set(cluster.owned().values()) <= set(cluster.members)
    told = httpx.get(f"{cluster.urls[1]}/v1/cluster", timeout=30, trust_env=False).json()
    assert told["leader"].split(".")[0] == cluster.leader().name


@pytest.mark.service
def test_a_paused_one_is_not_working_until_it_is_revived(cluster):
    member = cluster.members[0]
    member.pause()
    assert not member.working
    assert cluster.working == [cluster.members[1]]
    member.revive()
    assert waited(member.process.ready, 20)


@pytest.mark.service
def test_one_that_has_just_ended_has_no_state_and_does_not_work(cluster, monkeypatch):
    member = cluster.members[0]
    monkeypatch.setattr(member.process, "process", SimpleNamespace(pid=2**22 + 1, poll=lambda: None))
    assert (member.state(), member.working) == ("", False)


@pytest.mark.long
@pytest.mark.service
def test_a_broker_that_stops_at_a_fail_point_goes_on(cluster):
    member = cluster.members[1]
    member.kill()
    member.process.start(wait=False, env={"SEAWEEDQ_FAIL_AT": "commit.append:1:stop"})
    url = f"{member.process.url}/v1/topics/t/messages"

    def asked():
        try:
            httpx.post(url, json={"value": 1}, timeout=0.5, trust_env=False)
        except httpx.TransportError:
            pass
        return member.state() == "T"

    assert waited(asked, 30)
    assert not member.working
    member.revive()
    assert waited(lambda: httpx.post(url, json={"value": 1}, trust_env=False, timeout=20).status_code == 200, 30)


@pytest.mark.service
def test_etcd_can_be_compacted_and_leases_revoked(cluster):
    assert len(cluster.leases()) >= 2
    cluster.compact()
    before = cluster.members[0].process.log.count("is ready")
    for lease in cluster.leases():
        cluster.revoke(lease)
    assert waited(lambda: cluster.members[0].process.log.count("is ready") > before, 30)


@pytest.mark.service
def test_what_etcd_refuses_is_no_fault_and_leaves_none(cluster, monkeypatch):
    def refuse(*arguments, **options):
        raise AssertionError("mvcc: required revision has been compacted")

    monkeypatch.setattr(cluster.etcd, "control", refuse)
    assert lease_revoked(cluster, random.Random(0)) is None
    assert compacted(cluster, random.Random(0)) is None
    for member in cluster.members:
        httpx.get(f"http://127.0.0.1:{member.etcd.ports[0]}/health", trust_env=False, timeout=5).raise_for_status()


@pytest.mark.long
@pytest.mark.service
def test_etcd_goes_back_and_an_operator_asks_for_rebuilds(cluster):
    url = cluster.urls[0]
    restored = etcd_restored(cluster, random.Random(0))
    assert httpx.put(f"{url}/v1/topics/since", trust_env=False, timeout=20).status_code == 201
    restored.undo()
    (operator,) = cluster.operators
    assert waited(lambda: operator.rebuilt == 1, 30)
    cluster.wait_healed()
    assert httpx.get(f"{url}/v1/topics/since", trust_env=False, timeout=20).status_code == 200
    etcd_emptied(cluster, random.Random(0)).undo()
    assert waited(lambda: operator.rebuilt == 2, 30)
    cluster.wait_healed()
    assert set(cluster.owned()) == {0, 1, 2, 3}


@pytest.mark.skipif(library() is None, reason=ABSENT)
@pytest.mark.parametrize("how", ["+3600", "-3600"])
def test_a_clock_jumps_while_its_process_runs(tmp_path, how):
    clock = Clock(tmp_path / "clock")
    code = "import time; print(int(time.time()), flush=True); input(); print(int(time.time()), flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", code], env=clock.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert abs(int(process.stdout.readline()) - time()) < 60
        clock.set(how)
        process.stdin.write("\n")
        process.stdin.flush()
        assert abs(int(process.stdout.readline()) - time() - int(how)) < 60
