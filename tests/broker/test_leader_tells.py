"""What the leader says of a recovery that fails: a line for what may happen, a traceback for what nobody foresaw."""

from pathlib import Path

import pytest
from in_process_cluster import in_loop, until

from seaweedq.errors import StoreUnavailable


@pytest.mark.parametrize("error", [StoreUnavailable("the store is away"), RecursionError("too deep")])
async def test_only_an_unforeseen_failure_has_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    async with in_loop(tmp_path, 2, journal="object") as together:
        leader, dead = together.brokers

        async def fail(*_: object) -> bool:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(leader.takeover, "recover", fail)
            await together.crash(dead)
            await until(lambda: any("not recovered yet" in r.getMessage() for r in caplog.records))
        said = next(r for r in caplog.records if "not recovered yet" in r.getMessage())
        assert bool(said.exc_info) is isinstance(error, RecursionError)
