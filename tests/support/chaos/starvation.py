"""How long brokers could run and had no processor, since others had them: time in which nobody may expect anything of
them. The kernel counts it for the thread of their event loop."""

from pathlib import Path

from tests.support.chaos.cluster import Cluster

NS = 1e-9


class Starvation:
    """Measures it from now on, for the brokers that live now."""

    def __init__(self, cluster: Cluster) -> None:
        self._pids = [member.process.process.pid for member in cluster.members if member.process.process]
        self._before = {pid: _waited_s(pid) for pid in self._pids}

    def seconds(self) -> float:
        """That of the broker that had to wait longest."""
        return max((_waited_s(pid) - before for pid, before in self._before.items()), default=0.0)


def _waited_s(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) * NS
    except (OSError, IndexError):  # it has ended, or this kernel does not count
        return 0.0
