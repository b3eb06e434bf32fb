"""A pod as a process of this machine: its variables, probes, preStop, grace and restarts, as a kubelet does them.

It has one container, whose image is a command of this tree. There are no namespaces: an address of the pod is one of
127.0.0.0/8 and shown as the same of 10.0.0.0/8, since Kubernetes refuses endpoints on loopback; a path of a volume and
the name of a service in a variable become the folder and the address. Users, memory limits and read-only images are not
enforced. What it cannot do, it refuses.
"""

import asyncio
import base64
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

BACKOFF_S = (0.0, 10.0, 20.0)  # before each restart
Secrets = Callable[[str, str], dict[str, Any]]  # (kind, name): the object


def local(address: str) -> str:
    """The loopback address of a pod or service that is shown as one of 10.0.0.0/8."""
    return re.sub(r"^10\.", "127.", address)


def now() -> str:
    """The time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Stop:
    """How a pod ended after it was told to; the status is 0 if its container did not run."""

    pod: str
    took_s: float
    grace_s: float
    code: int


@dataclass(frozen=True)
class Place:
    """What the node gives a pod: a folder, an address, what its image runs, objects of its namespace, services; tokens
    of its account as a volume asks for them, and variables that every pod has."""

    folder: Path
    ip: str
    entrypoint: list[str] | None  # none: the image cannot be pulled
    get: Secrets
    services: Mapping[str, str]
    token: Callable[[dict[str, Any]], str] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


class Pod:
    """One pod. `run` ends with it; `dirty` is set whenever its status changed."""

    def __init__(self, manifest: dict[str, Any], place: Place) -> None:
        self.meta, self.spec, self.place = manifest["metadata"], manifest["spec"], place
        (self.container,) = self.spec["containers"]
        assert not self.spec.get("initContainers")
        self.name: str = self.meta["name"]
        self.dirty = asyncio.Event()
        self.began = now()
        self.ready = self.started = False
        self.restarts = 0
        self.state: dict[str, Any] = {"waiting": {"reason": "ContainerCreating"}}
        self.phase = "Pending"
        self.stopping = False  # the pod was told to stop
        self._process: asyncio.subprocess.Process | None = None
        self._probes: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Start the container, again where it ends and the policy says so, until the pod is told to stop."""
        if self.place.entrypoint is None:
            self._say("Pending", {"waiting": {"reason": "ErrImagePull", "message": self.container["image"]}})
            return
        while not self.stopping:
            code = await self._live()
            ended = {"terminated": {"exitCode": code, "finishedAt": now(), "reason": "Error" if code else "Completed"}}
            again = {"Always": True, "OnFailure": code != 0, "Never": False}[self.spec["restartPolicy"]]
            if self.stopping or not again:
                self._say("Failed" if code else "Succeeded", ended)
                return
            self._say("Running", {"waiting": {"reason": "CrashLoopBackOff"}})
            await asyncio.sleep(BACKOFF_S[min(self.restarts, len(BACKOFF_S) - 1)])
            self.restarts += 1

    async def stop(self, grace_s: float) -> Stop:
        """Run preStop, then SIGTERM, and SIGKILL once the grace is over, which counts from the beginning."""
        self.stopping, began, code = True, time.monotonic(), 0
        if self._alive:
            await self._pre_stop(grace_s)
            self._signal(signal.SIGTERM)
            await self._wait(max(2.0, grace_s - (time.monotonic() - began)))
            code = await self.kill()
        return Stop(self.name, time.monotonic() - began, grace_s, code)

    async def kill(self) -> int:
        """SIGKILL, and no more probes and starts: the exit status, 0 of a container that never was."""
        self.stopping = True
        for probe in self._probes:
            probe.cancel()
        self._signal(signal.SIGKILL)
        return await self._process.wait() if self._process is not None else 0

    def crash(self) -> None:
        """SIGKILL to the container, as by the kernel: the pod stays."""
        self._signal(signal.SIGKILL)

    def status(self) -> dict[str, Any]:
        """What the API server is told."""
        shown = re.sub(r"^127\.", "10.", self.place.ip)
        truths = {"Initialized": True, "PodScheduled": True, "ContainersReady": self.ready, "Ready": self.ready}
        container = {"name": self.container["name"], "image": self.container["image"], "imageID": "process"}
        container |= {"ready": self.ready, "started": self.started, "restartCount": self.restarts, "state": self.state}
        conditions = [{"type": kind, "status": str(true), "lastTransitionTime": now()} for kind, true in truths.items()]
        status = {"phase": self.phase, "startTime": self.began, "conditions": conditions, "hostIP": "127.0.0.1"}
        return status | {"podIP": shown, "podIPs": [{"ip": shown}], "containerStatuses": [container]}

    @property
    def _alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def _say(self, phase: str, state: dict[str, Any], *, ready: bool = False, started: bool = False) -> None:
        self.phase, self.state, self.ready, self.started = phase, state, ready, started
        self.dirty.set()

    async def _live(self) -> int:
        """The container from its start to its end: its exit status."""
        with (self.place.folder / "log").open("ab") as log:
            process = self._process = await asyncio.create_subprocess_exec(
                *self._command(), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment()
            )
        if self.stopping:
            self._signal(signal.SIGKILL)
        probed = "readinessProbe" in self.container
        self._say("Running", {"running": {"startedAt": now()}}, ready=not probed, started=not probed)
        self._probes = [asyncio.create_task(self._probe())] if probed else []
        code = await process.wait()
        for probe in self._probes:
            probe.cancel()
        return code

    def _command(self) -> list[str]:
        command, args = ([self._translated(word) for word in self.container.get(of, [])] for of in ("command", "args"))
        return [*(command or self.place.entrypoint or ()), *args]  # the entrypoint is this machine's: it has no volumes

    def _environment(self) -> dict[str, str]:
        """The variables of the container, over what a process needs here."""
        kept = ("HOME", "LANG", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
        made: dict[str, str] = {}
        for source in self.container.get("envFrom", []):
            if "configMapRef" in source:
                made |= self.place.get("configmaps", source["configMapRef"]["name"]).get("data", {})
            else:
                secret = self.place.get("secrets", source["secretRef"]["name"])
                made |= {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
        for variable in self.container.get("env", []):
            value = self._field(variable) if "valueFrom" in variable else variable.get("value", "")
            made[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda name: made.get(name[1], name[0]), value)
        image = {name: os.environ[name] for name in kept if name in os.environ}
        image["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        translated = {name: self._translated(value) for name, value in made.items()}
        return {**image, **self._temporary(), **self.place.variables, **translated}

    def _field(self, variable: dict[str, Any]) -> str:
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        if label := re.fullmatch(r"metadata\.labels\['(.+)'\]", path):
            return str(self.meta.get("labels", {}).get(label[1], ""))
        return {"status.podIP": self.place.ip, "metadata.name": self.name}[path]

    def _temporary(self) -> dict[str, str]:
        mounts = [mount["name"] for mount in self.container.get("volumeMounts", []) if mount["mountPath"] == "/tmp"]
        return {"TMPDIR": str(self._volume(mounts[0]))} if mounts else {}

    def _translated(self, text: str) -> str:
        """Text with the pod's address for all addresses, folders for volumes, addresses for services."""
        if text in ("0.0.0.0", "::"):
            return self.place.ip
        for mount in self.container.get("volumeMounts", []):
            if text == mount["mountPath"] or text.startswith(mount["mountPath"] + "/"):
                return str(self._volume(mount["name"])) + text.removeprefix(mount["mountPath"])
        for name, address in self.place.services.items():
            text = re.sub(rf"\b{re.escape(name)}(?=:\d)", address, text)
        return text

    def _volume(self, name: str) -> Path:
        """The folder of a volume, made and filled at its first use."""
        (volume,) = [volume for volume in self.spec["volumes"] if volume["name"] == name]
        folder = self.place.folder / name
        if not folder.exists():
            folder.mkdir()
            for file, value in self._held(volume).items():
                folder.joinpath(file).write_bytes(value)
        return folder

    def _held(self, volume: dict[str, Any]) -> dict[str, bytes]:
        """The files that a volume has from the beginning."""
        if "secret" in volume:
            secret = self.place.get("secrets", volume["secret"]["secretName"])
            return {file: base64.b64decode(value) for file, value in secret["data"].items()}
        if "configMap" in volume:
            held = self.place.get("configmaps", volume["configMap"]["name"])
            return {file: value.encode() for file, value in held["data"].items()}
        if "projected" in volume:
            made: dict[str, bytes] = {}
            for source in volume["projected"]["sources"]:
                made |= self._projected(source)
            return made
        assert "emptyDir" in volume, volume
        return {}

    def _projected(self, source: dict[str, Any]) -> dict[str, bytes]:
        """The files of a source of a projected volume. Tokens are not renewed: an hour is longer than a test."""
        ((kind, asked),) = source.items()
        if kind == "serviceAccountToken":
            assert self.place.token is not None
            return {asked["path"]: self.place.token(asked).encode()}
        if kind == "downwardAPI":
            found = {"metadata.namespace": self.meta["namespace"]}
            return {item["path"]: found[item["fieldRef"]["fieldPath"]].encode() for item in asked["items"]}
        assert kind == "configMap", source
        data = self.place.get("configmaps", asked["name"])["data"]
        return {item["path"]: data[item["key"]].encode() for item in asked["items"]}

    async def _probe(self) -> None:
        """Probes of the container from its start on: startup, then readiness and liveness side by side."""
        startup = self.container["startupProbe"]
        failed = 0
        while not await self._asked(startup):
            failed += 1
            if failed >= startup.get("failureThreshold", 3):
                self._signal(signal.SIGKILL)
            await asyncio.sleep(startup["periodSeconds"])
        self.started = True
        self.dirty.set()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._probe_readiness(self.container["readinessProbe"]))
            group.create_task(self._probe_liveness(self.container["livenessProbe"]))

    async def _probe_readiness(self, probe: dict[str, Any]) -> None:
        failed = 0
        while True:
            failed = 0 if await self._asked(probe) else failed + 1
            ready = failed == 0 or (self.ready and failed < probe.get("failureThreshold", 3))
            if ready != self.ready:
                self.ready = ready
                self.dirty.set()
            await asyncio.sleep(probe["periodSeconds"])

    async def _probe_liveness(self, probe: dict[str, Any]) -> None:
        failed = 0
        while not self.stopping:
            failed = 0 if await self._asked(probe) else failed + 1
            if failed >= probe.get("failureThreshold", 3):
                self._signal(signal.SIGTERM)
            await asyncio.sleep(probe["periodSeconds"])

    async def _asked(self, probe: dict[str, Any]) -> bool:
        """Whether a GET of the probe succeeds."""
        ports = {port["name"]: port["containerPort"] for port in self.container["ports"]}
        wanted = probe["httpGet"]
        url = f"http://{self.place.ip}:{ports.get(wanted['port'], wanted['port'])}{wanted['path']}"
        try:
            async with httpx.AsyncClient(verify=False, timeout=30, trust_env=False) as client:
                answer = await client.get(url, timeout=probe.get("timeoutSeconds", 1))
        except httpx.TransportError:
            return False
        return 200 <= answer.status_code < 400

    async def _pre_stop(self, grace_s: float) -> None:
        hook = self.container.get("lifecycle", {}).get("preStop")
        if hook is None:
            return
        words = hook["exec"]["command"] if "exec" in hook else ["sleep", str(hook["sleep"]["seconds"])]
        process = await asyncio.create_subprocess_exec(*words)
        try:
            await asyncio.wait_for(process.wait(), grace_s)
        except TimeoutError:
            process.kill()
            await process.wait()

    async def _wait(self, within_s: float) -> None:
        assert self._process is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), within_s)

    def _signal(self, number: int) -> None:
        if self._alive:
            assert self._process is not None
            self._process.send_signal(number)
