"""The check that `helm test` runs in a pod: all brokers are there, and a message is published, pulled and acked.

It uses a topic of its own, and deletes it at the end. It needs nothing but Python. It asks with the token in TOKEN, if
there is one, and checks a certificate by the authority in CA_FILE, or those that the system knows. While brokers change
it repeats its requests; the pod's activeDeadlineSeconds ends it.
"""

import http.client
import json
import os
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

TOPIC = f"/v1/topics/helm-test-{time.time_ns()}"
SUBSCRIPTION = f"{TOPIC}/subscriptions/check"
MESSAGE = {"value": {"check": TOPIC}}


def ask(method: str, path: str, body: Any = None) -> tuple[int, bytes]:
    """Sends one request to the service."""
    service, headers = urlsplit(os.environ["SERVICE"]), {"content-type": "application/json"}
    if service.scheme == "https":
        context = ssl.create_default_context(cafile=os.environ.get("CA_FILE"))
        connection = http.client.HTTPSConnection(service.netloc, timeout=30, context=context)
    else:
        connection = http.client.HTTPConnection(service.netloc, timeout=30)
    if "TOKEN" in os.environ:
        headers["authorization"] = "Bearer " + os.environ["TOKEN"].strip()
    connection.request(method, path, json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def must(method: str, path: str, body: Any = None) -> Any:
    """Sends a request until it succeeds. Each of them may be sent again after a 5xx or a lost connection."""
    while True:
        try:
            status, answer = ask(method, path, body)
        except (OSError, http.client.HTTPException) as error:
            status, answer = 503, str(error).encode()
        print(method, path, status, flush=True)
        if status < 300 or (method, status) == ("DELETE", 404):
            return json.loads(answer or b"null")
        print(answer.decode(), flush=True)
        if status in (401, 403):
            print("the values test.tokenSecret or adminToken give a token with the rights that this needs", flush=True)
        if status < 500 and status != 429:
            raise SystemExit(1)
        time.sleep(1)


def wait_for_brokers(wanted: int) -> None:
    """Waits until the service answers, and that many brokers are in the cluster."""
    must("GET", "/readyz")
    while len(must("GET", "/v1/cluster")["brokers"]) < wanted:
        time.sleep(1)


def publish_pull_ack() -> None:
    """Publishes a message and acks it. A dispatcher that changes in between makes it pull again."""
    must("PUT", TOPIC, {})
    must("PUT", SUBSCRIPTION, {"start": "earliest"})
    must("POST", f"{TOPIC}/messages", MESSAGE)
    while True:
        messages = must("POST", f"{SUBSCRIPTION}/pull", {"wait_s": 5})["messages"]
        if any(message["value"] != MESSAGE["value"] for message in messages):
            raise SystemExit(f"another message than the one that was published: {messages}")
        ids = [message["id"] for message in messages]
        if ids and must("POST", f"{SUBSCRIPTION}/ack", {"ids": ids})["acked"]:
            return


wait_for_brokers(int(os.environ["BROKERS"]))
try:
    publish_pull_ack()
finally:
    must("DELETE", TOPIC)
print("published, pulled and acked", flush=True)
