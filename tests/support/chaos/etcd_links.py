"""The etcd of a cluster under chaos: one member or three, and a broker's links to all of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.support.processes.etcd_service import EtcdServer
from tests.support.processes.proxy_process import ProxyProcess
from tests.support.processes.tcp_proxy import Cut

SEVERAL = ("--heartbeat-interval", "100", "--election-timeout", "1000")  # as etcd's own defaults


class Etcds:
    """Members of one etcd. What is asked of it, any member that works is asked."""

    def __init__(self, folder: Path, count: int = 1) -> None:
        more = SEVERAL if count > 1 else ()
        self.servers = [EtcdServer(folder / f"etcd{n or ''}", *more) for n in range(count)]
        self.paused: set[EtcdServer] = set()
        self._saved = 0
        everybody = ",".join(server.members for server in self.servers)
        for server in self.servers:
            server.members = everybody

    @property
    def working(self) -> list[EtcdServer]:
        """The members that are neither dead nor stopped."""
        return [one for one in self.servers if one.process is not None and one not in self.paused]

    def start(self, *, wait: bool = True) -> "Etcds":
        """Start those that are dead, and wait until they answer."""
        started = [one.start(wait=False) for one in self.servers if one.process is None]
        for one in started if wait else ():
            one.wait_ready()
        return self

    def kill(self, *which: EtcdServer) -> None:
        """SIGKILL, of all where none is given."""
        for one in which or self.servers:
            one.kill()
            self.paused.discard(one)

    def save(self, within_s: float) -> Path:
        """A snapshot of now, which any member has. Fails where none gives one in time."""
        self._saved += 1
        first = self.servers[0].folder
        path = first.with_name(f"saved-{self._saved}")
        self.control("snapshot", "save", str(path), within_s=within_s)
        return path

    def go_back(self, saved: Path | None) -> None:
        """SIGKILL of all. Their next start is with the state of `saved`, or with nothing."""
        for one in self.servers:
            one.go_back(saved)
        self.paused.clear()

    def pause(self, *which: EtcdServer) -> None:
        """SIGSTOP, of all where none is given."""
        for one in which or self.working:
            one.pause()
            self.paused.add(one)

    def resume(self) -> None:
        """SIGCONT to those that stand still."""
        for one in self.paused:
            one.resume()
        self.paused.clear()

    def control(self, *arguments: str, within_s: float = 30) -> str:
        """What etcdctl prints. Fails where it does, or does not end, or nobody works."""
        assert self.working, "no member of etcd works"
        return self.working[0].control(*arguments, within_s=within_s)

    def compact(self, revision: int) -> None:
        """Forget what happened before `revision`."""
        self.control("compact", "--physical", str(revision))

    def status(self, one: EtcdServer, within_s: float) -> dict[str, Any]:
        """What a member says of itself."""
        found = msgspec.json.decode(one.control("endpoint", "status", "-w", "json", within_s=within_s))
        status: dict[str, Any] = found[0]["Status"]
        return status

    def leader(self, within_s: float) -> EtcdServer | None:
        """The member that leads; None where nobody says so."""
        for one in self.working:
            try:
                status = self.status(one, within_s)
            except AssertionError:
                continue
            if status["leader"] == status["header"]["member_id"]:
                return one
        return None


class EtcdLinks:
    """A broker's links to all members, hurt and healed as one."""

    def __init__(self, process: ProxyProcess, etcds: Etcds) -> None:
        self.proxies = [process.link(one.endpoint) for one in etcds.servers]

    @property
    def ports(self) -> Sequence[int]:
        """Where the broker finds them."""
        return [proxy.port for proxy in self.proxies]

    def start(self) -> "EtcdLinks":
        """As Proxy.start."""
        for proxy in self.proxies:
            proxy.start()
        return self

    def stop(self) -> None:
        """As Proxy.stop."""
        for proxy in self.proxies:
            proxy.stop()

    def cut(self, how: Cut) -> None:
        """As Proxy.cut."""
        for proxy in self.proxies:
            proxy.cut(how)

    def delay(self, seconds: float) -> None:
        """As Proxy.delay."""
        for proxy in self.proxies:
            proxy.delay(seconds)

    def heal(self) -> None:
        """As Proxy.heal."""
        for proxy in self.proxies:
            proxy.heal()
