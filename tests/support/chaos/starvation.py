"""How long the cluster could run and had no processor, since others had them: time in which nobody may expect anything
of it.

The kernel counts it for each thread. A request goes through the event loop of a broker and through that of the proxies,
so their times add up.
"""

from pathlib import Path

from tests.support.chaos.cluster import Cluster

NS = 1e-9


class Starvation:
    """Measures it from now on, for the brokers that live now."""

    def __init__(self, cluster: Cluster) -> None:
        brokers = [member.process.process for member in cluster.members if member.process.process]
        self._brokers = {Path(f"/proc/{one.pid}/schedstat") for one in brokers}
        self._proxies = Path(f"/proc/self/task/{cluster.thread.id}/schedstat")
        self._before = {path: _waited_s(path) for path in (*self._brokers, self._proxies)}

    def seconds(self) -> float:
        """That of the broker that had to wait longest, and of the proxies."""
        return max(map(self._since, self._brokers), default=0.0) + self._since(self._proxies)

    def _since(self, path: Path) -> float:
        return max(0.0, _waited_s(path) - self._before[path])


def _waited_s(path: Path) -> float:
    try:
        return int(path.read_text().split()[1]) * NS
    except (OSError, IndexError):  # it has ended, or this kernel does not count
        return 0.0
