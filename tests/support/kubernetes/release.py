"""The chart installed by helm on a control plane, and what an operator does with it."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import yaml

from tests.support.kubernetes.api import Kubernetes
from tests.support.kubernetes.control_plane import ControlPlane
from tests.support.kubernetes.kubelet import Kubelet
from tests.support.kubernetes.load import Figures, loaded
from tests.support.paths import ROOT

CHART = ROOT / "helm" / "seaweedq"
NAME = "queue-seaweedq"
BROKERS = {"labelSelector": "app.kubernetes.io/component=broker"}
POLL_S = 0.2
STEP_S = 90.0
_topics = count()


@dataclass
class Release:
    """The release `queue` in the kubelet's namespace. Its values are over those of the file `case` of the chart."""

    helm_program: str
    plane: ControlPlane
    kubelet: Kubelet
    values: dict[str, Any]
    case: str = "minimal"

    @property
    def api(self) -> Kubernetes:
        """Its API server."""
        return self.plane.api

    @property
    def namespace(self) -> str:
        """Where it is."""
        return self.kubelet.namespace

    @property
    def url(self) -> str:
        """Where clients find the brokers."""
        service = self.api.get(f"/api/v1/namespaces/{self.namespace}/services/{NAME}")["spec"]
        return f"http://{service['clusterIP'].replace('10.', '127.', 1)}:{service['ports'][0]['port']}"

    async def helm(self, *arguments: str) -> tuple[int, str]:
        """helm's exit status and all that it printed."""
        folder: Path = self.plane.folder
        homes = {f"HELM_{kind}_HOME": str(folder / "helm" / kind) for kind in ("CACHE", "CONFIG", "DATA")}
        process = await asyncio.create_subprocess_exec(
            *(self.helm_program, "--kubeconfig", str(self.plane.kubeconfig), "--namespace", self.namespace, *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **homes},
        )
        printed, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, printed.decode()

    async def apply(self, command: str, within_s: float = STEP_S, **values: Any) -> tuple[int, str]:
        """`helm install` or `upgrade` with these values over the release's own, until all pods are ready."""
        file = self.plane.folder / "values.yaml"
        file.write_text(yaml.safe_dump({**self.values, **values}))
        wait = ("--wait", "--timeout", f"{within_s:.0f}s")
        files = (f"--values={CHART / 'ci' / f'{self.case}-values.yaml'}", f"--values={file}")
        return await self.helm(command, "queue", str(CHART), *files, *wait)

    def brokers(self) -> list[dict[str, Any]]:
        """The brokers' pods."""
        return self.api.items(f"/api/v1/namespaces/{self.namespace}/pods", **BROKERS)

    @property
    def deployment(self) -> str:
        """The path of its Deployment."""
        return f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{NAME}"

    def replicas(self) -> int:
        """How many brokers the Deployment is to have."""
        return int(self.api.get(self.deployment)["spec"]["replicas"])

    def evict(self, pod: str) -> int:
        """Ask for an eviction: the status of the answer, 429 where the disruption budget is used up."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": self.namespace}}
        return self.api.ask("POST", f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction", body).status_code

    async def drain(self, node: str) -> None:
        """Let no pod come to a node, and evict those that are there, as often as it takes."""
        self.api.ask("PATCH", f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}})
        while there := [pod for pod in self.brokers() if pod["spec"].get("nodeName") == node]:
            for pod in there:
                self.evict(pod["metadata"]["name"])
            await asyncio.sleep(POLL_S)

    def scaler(self) -> dict[str, Any]:
        """The chart's HorizontalPodAutoscaler."""
        found: dict[str, Any] = self.api.get(
            f"/apis/autoscaling/v2/namespaces/{self.namespace}/horizontalpodautoscalers/{NAME}"
        )
        return found

    def marked(self) -> list[str]:
        """The brokers' pods that a smaller Deployment deletes first."""
        cost = "controller.kubernetes.io/pod-deletion-cost"
        pods = [pod["metadata"] for pod in self.brokers()]
        return [meta["name"] for meta in pods if meta.get("annotations", {}).get(cost) == "-1"]

    async def autoscaled(self) -> None:
        """Wait until the autoscaler has looked at the Deployment. It has no metrics here."""
        async with asyncio.timeout(STEP_S):
            while not self.scaler().get("status", {}).get("conditions"):
                await asyncio.sleep(POLL_S)

    async def settled(self) -> None:
        """Wait until as many brokers are ready as are wanted, and no other pod is left."""
        async with asyncio.timeout(STEP_S):
            while not len(self.brokers()) == len(self.kubelet.ready()) == self.replicas():
                await asyncio.sleep(POLL_S)

    @asynccontextmanager
    async def under_load(self) -> AsyncIterator[Figures]:
        """What the body does, seen by clients from before it until the brokers have settled."""
        async with loaded(self.url, self.values["store"]["endpoints"][0], f"t{next(_topics)}") as figures:
            self.kubelet.watch_readiness()
            yield figures
            await self.settled()
