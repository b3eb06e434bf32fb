"""Marks the broker's pod that a smaller Deployment must delete first: the one that `GET /v1/cluster` names.

The ids of brokers begin with the names of their pods. The marked pod has the lowest deletion cost; a mark that it had
before is taken away from any other pod. The marks are written to the status of pods: who may write that can change
annotations, but not what a pod runs. It needs nothing but Python, and goes on after any failure.
"""

import http.client
import json
import os
import signal
import ssl
import sys
import time
from typing import Any
from urllib.parse import urlencode, urlsplit

COST = "controller.kubernetes.io/pod-deletion-cost"
PERIOD_S = float(os.environ["PERIOD_S"])
ACCOUNT = os.environ["ACCOUNT"]
PODS = f"/api/v1/namespaces/{os.environ['NAMESPACE']}/pods"


def ask(url: str, ca: str | None, token: str, method: str, path: str, body: Any = None) -> Any:
    """Sends one request. Raises OSError if the answer is no success."""
    where = urlsplit(url)
    if where.scheme == "https":
        context = ssl.create_default_context(cafile=ca)
        connection = http.client.HTTPSConnection(where.netloc, timeout=30, context=context)
    else:
        connection = http.client.HTTPConnection(where.netloc, timeout=30)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    data = json.dumps(body) if body else None
    connection.request(method, path, data, headers | {"content-type": "application/merge-patch+json"})
    answer = connection.getresponse()
    found = answer.read()
    connection.close()
    if answer.status != 200:
        raise OSError(f"{method} {path}: {answer.status} {found.decode(errors='replace')}")
    return json.loads(found)


def kubernetes(method: str, path: str, body: Any = None) -> Any:
    """Asks the API server with the token of this pod's account, which Kubernetes renews."""
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    url = f"https://{f'[{host}]' if ':' in host else host}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    with open(f"{ACCOUNT}/token") as file:
        return ask(url, f"{ACCOUNT}/ca.crt", file.read(), method, path, body)


def mark() -> None:
    """Marks the pod that should go first, and no other one."""
    token = os.environ.get("TOKEN", "").strip()
    first = ask(os.environ["SERVICE"], os.environ.get("CA_FILE"), token, "GET", "/v1/cluster")["first_to_stop"]
    if first is None:
        return
    for pod in kubernetes("GET", f"{PODS}?{urlencode({'labelSelector': os.environ['LABELS']})}")["items"]:
        name = pod["metadata"]["name"]
        cost = "-1" if name == first.rpartition(".")[0] else None
        if pod["metadata"].get("annotations", {}).get(COST) != cost:
            kubernetes("PATCH", f"{PODS}/{name}/status", {"metadata": {"annotations": {COST: cost}}})
            print(name, "goes first" if cost else "goes first no more", flush=True)


signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # the first process of a container ends by no signal else
while True:
    try:
        mark()
    except (OSError, http.client.HTTPException, ValueError) as error:
        print(error, file=sys.stderr, flush=True)
    time.sleep(PERIOD_S)
