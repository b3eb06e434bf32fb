"""A broker on a store in memory whose puts take a fixed time. Run as `python -m benchmarks.slow_broker PUT_MS serve
OPTION...`."""

import sys

from benchmarks.object_journal import SlowStore
from seaweedq.cli.main import app
from seaweedq.cli.server import broker_process


class _OpenStore(SlowStore):
    async def sweep_temporary(self) -> int:
        return 0

    async def close(self) -> None:
        pass


def main() -> None:
    """Serves until a signal."""
    put_s = float(sys.argv.pop(1)) / 1000
    broker_process.open_store = lambda *given: _OpenStore(put_s)  # type: ignore[attr-defined]
    app()


if __name__ == "__main__":
    main()
