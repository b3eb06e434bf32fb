"""A stand-in for kubelets and kube-proxy: three nodes in three zones, pods of one namespace as processes, its services.

It looks at the API server every POLL_S, on a thread and a loop of its own. Nodes stay ready as long as it renews their
leases. `pod` says how a pod differs from one of a real kubelet.
"""

import asyncio
import sys
import threading
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.kubernetes.api import Kubernetes
from tests.support.kubernetes.pod import Place, Pod, Stop, local, now
from tests.support.kubernetes.service_proxy import ServiceProxy, routes

NODES = {"node-a": "a", "node-b": "b", "node-c": "c"}
ROOM = {"cpu": "16", "memory": "64Gi", "pods": "50", "ephemeral-storage": "100Gi"}
PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
RENEW_S = 10.0
POLL_S = 0.25
# What runs in place of an image, that arguments of the container come after.
IMAGES = {
    "seaweedq:0.1.0": [sys.executable, "-m", "seaweedq", "serve"],
    "seaweedq:broken": [sys.executable, "-c", "raise SystemExit('this image is broken')"],
}


class Kubelet:
    """Runs the pods of a namespace. `least_ready` is the fewest that were ready, and not told to stop, in a look."""

    def __init__(self, api: Kubernetes, folder: Path, namespace: str, network: str) -> None:
        self.api, self.folder, self.namespace = api, folder, namespace
        self.pods: dict[str, Pod] = {}  # by uid
        self.stops: list[Stop] = []
        self.least_ready = 0
        self.errors: list[str] = []
        self._addresses = (f"{network}.{number}" for number in count(1))
        self._proxy = ServiceProxy()
        self._services: dict[str, str] = {}  # name: address
        self._tasks: set[asyncio.Task[None]] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    def start(self) -> None:
        """Register the nodes and begin."""
        for name, zone in NODES.items():
            labels = {"kubernetes.io/hostname": name, "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
            labels |= {"topology.kubernetes.io/zone": zone, "topology.kubernetes.io/region": "here"}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
            for path, made in (("/api/v1/nodes", node), (LEASES, {**lease, "spec": _lease(name)})):
                answer = self.api.ask("POST", path, made)
                assert answer.status_code in (201, 409), answer.text  # or a kubelet of another namespace was here
            self.api.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": _node_status()})
        self._thread.start()

    def end(self) -> None:
        """Kill all pods and stop."""
        self._ended.set()
        self._thread.join()

    def ready(self) -> list[Pod]:
        """The brokers' pods that are ready and not told to stop."""
        ready = [pod for pod in list(self.pods.values()) if pod.ready and not pod.stopping]
        return [pod for pod in ready if pod.meta["labels"].get("app.kubernetes.io/component") == "broker"]

    def crash(self, name: str) -> None:
        """Kill the container of a pod."""
        (pod,) = [pod for pod in self.pods.values() if pod.name == name]
        pod.crash()

    def watch_readiness(self) -> None:
        """Begin `least_ready` anew."""
        self.least_ready = len(self.ready())

    async def _main(self) -> None:
        renewed = time.monotonic()
        while not self._ended.is_set():
            try:
                await self._look_at_services()
                await self._look_at_pods()
                if time.monotonic() - renewed > RENEW_S:
                    renewed = time.monotonic()
                    for name in NODES:
                        await self._ask("PATCH", f"{LEASES}/{name}", {"spec": _lease(name)})
            except Exception as error:  # the thread goes on, the test looks at them
                self.errors.append(repr(error))
            self.least_ready = min(self.least_ready, len(self.ready()))
            await asyncio.sleep(POLL_S)
        for pod in self.pods.values():
            await pod.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._proxy.close()

    async def _look_at_pods(self) -> None:
        """Start the pods that were given a node, and stop those that are deleted."""
        for manifest in await self._items(f"/api/v1/namespaces/{self.namespace}/pods"):
            meta = manifest["metadata"]
            deleted, pod = "deletionTimestamp" in meta, self.pods.get(meta["uid"])
            if pod is None and manifest["spec"].get("nodeName") and not deleted:
                pod = self.pods[meta["uid"]] = Pod(manifest, self._place(manifest))
                self._begin(self._report(pod))
                self._begin(pod.run())
            if pod is not None and deleted and not pod.stopping:
                pod.stopping = True
                self._begin(self._stop(pod, meta["deletionGracePeriodSeconds"]))

    async def _look_at_services(self) -> None:
        services = await self._items(f"/api/v1/namespaces/{self.namespace}/services")
        found = routes(services, await self._items(SLICES.format(self.namespace)))
        await self._proxy.update(
            {(local(ip), port): [(local(end), number) for end, number in ends] for (ip, port), ends in found.items()}
        )
        self._services = {one["metadata"]["name"]: local(one["spec"]["clusterIP"]) for one in services}

    def _place(self, manifest: dict[str, Any]) -> Place:
        folder = self.folder / manifest["metadata"]["uid"]
        folder.mkdir(parents=True)
        image = manifest["spec"]["containers"][0]["image"]
        root = f"/api/v1/namespaces/{self.namespace}"
        api = urlsplit(self.api.url)
        meta, account = manifest["metadata"], manifest["spec"]["serviceAccountName"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}

        def token(asked: dict[str, Any]) -> str:
            audiences = [asked["audience"]] if "audience" in asked else []
            return self.api.token(self.namespace, account, *audiences, boundObjectRef=bound)

        return Place(
            folder=folder,
            ip=next(self._addresses),
            entrypoint=IMAGES.get(image),
            get=lambda kind, name: self.api.get(f"{root}/{kind}/{name}"),
            services=self._services,
            token=token,
            variables={"KUBERNETES_SERVICE_HOST": str(api.hostname), "KUBERNETES_SERVICE_PORT": str(api.port)},
        )

    async def _report(self, pod: Pod) -> None:
        """Tell the API server of each change of the pod's status."""
        while True:
            await pod.dirty.wait()
            pod.dirty.clear()
            body = {"metadata": {"uid": pod.meta["uid"]}, "status": pod.status()}
            await self._ask("PATCH", f"/api/v1/namespaces/{self.namespace}/pods/{pod.name}/status", body)

    async def _stop(self, pod: Pod, grace_s: float) -> None:
        self.stops.append(await pod.stop(grace_s))
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.meta["uid"]}}
        await self._ask("DELETE", f"/api/v1/namespaces/{self.namespace}/pods/{pod.name}", body)

    async def _items(self, path: str) -> list[dict[str, Any]]:
        return await asyncio.to_thread(self.api.items, path)

    async def _ask(self, method: str, path: str, body: Any) -> None:
        await asyncio.to_thread(self.api.ask, method, path, body)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(repr(error))


def _lease(node: str) -> dict[str, Any]:
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": renewed}


def _node_status() -> dict[str, Any]:
    times = {"reason": "Tests", "message": "", "lastHeartbeatTime": now(), "lastTransitionTime": now()}
    conditions = [{"type": "Ready", "status": "True", **times}]
    conditions += [{"type": kind, "status": "False", **times} for kind in PRESSURES]
    return {"capacity": ROOM, "allocatable": ROOM, "conditions": conditions}
