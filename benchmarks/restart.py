"""SIGKILL of a broker with a small tail, and how long until the next one is ready, beside importing what it is made
of."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import messages, server
from benchmarks.http import run
from benchmarks.result import Result

ROUNDS = 3
IMPORTS = "import pyarrow, fastapi, uvicorn"


def measure(folder: Path) -> Iterator[Result]:
    """The best of some restarts, each with 10,000 messages in the tail."""
    prepared = messages.ndjson_request("restart", next(messages.ndjson_bodies(1)))
    times, imports = [], []
    with server.broker(folder / "data") as broker:
        run(broker.port, 1, lambda opened: opened[0].ask(prepared))
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        with server.broker(folder / "data") as broker:
            run(broker.port, 1, lambda opened: opened[0].ask_json("GET", "/readyz"))
            times.append(time.perf_counter() - begun)
            run(broker.port, 1, lambda opened: opened[0].ask(prepared))
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", IMPORTS], check=True)
        imports.append(time.perf_counter() - begun)
    yield Result(
        name="restart",
        figure=min(times),
        unit="s",
        limit=min(imports),
        limit_is=f"python -c '{IMPORTS}'",
        target=1.5,
        better="lower",
        note=f"from process start to a 200 of /readyz, 10,000 messages in the tail; best of {ROUNDS}",
    )
