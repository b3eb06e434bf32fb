"""A broker is killed between the claim of an upload and the answer: the same request again completes it, once."""

from collections.abc import Callable
from contextlib import suppress

import httpx
import pytest

from tests.support.http.referring import digest, naming, publish, read, upload
from tests.support.processes.broker_process import BrokerProcess
from tests.support.tiers import later

pytestmark = pytest.mark.process

TOPIC = "/v1/topics/t"


@pytest.mark.parametrize("place", ["claim.checked", later("claim.published"), later("commit.append"), "commit.durable"])
@pytest.mark.parametrize("several", [False, True])
def test_a_producer_repeats(broker_process: Callable[..., BrokerProcess], place: str, several: bool) -> None:
    broker = broker_process()
    with httpx.Client(base_url=broker.url, trust_env=False, timeout=30) as http:
        http.put(TOPIC)
        made = [upload(http, TOPIC, content) for content in (b"one", b"two")]
    broker.terminate()
    messages = [naming(made[0], key="k"), {"value": 1}, naming(made[1]), naming(made[0])][: 4 if several else 1]
    producer = {"Producer_Id": "p", "Producer_Sequence": "0"}
    broker.start(env={"SEAWEEDQ_FAIL_AT": place})
    with httpx.Client(base_url=broker.url, trust_env=False, timeout=30) as http, suppress(httpx.TransportError):
        publish(http, TOPIC, *messages, **producer)
        raise AssertionError(f"{place} was not reached")
    broker.wait_gone()
    broker.start()
    with httpx.Client(base_url=broker.url, trust_env=False, timeout=30) as http:
        ids = publish(http, TOPIC, *messages, **producer)
        assert ids == [f"0-{n}" for n in range(len(messages))]
        found = read(http, TOPIC)
        assert [each["id"] for each in found] == ids
        sums = [each.get("reference", {}).get("sha256") for each in found]
        assert sums == [digest(b"one"), None, digest(b"two"), digest(b"one")][: len(messages)]
        for each in found:
            if "reference" in each:
                content = http.get(f"{TOPIC}/segments/0/messages/{each['offset']}/payload").content
                assert digest(content) == each["reference"]["sha256"]
