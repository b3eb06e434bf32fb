"""A command of the command line, in a process of its own, from its start to its end."""

import os
import subprocess
import sys
from collections.abc import Mapping
from tempfile import TemporaryFile
from typing import IO

from tests.support.processes.fork_server import fork_server


def seaweedq(
    *arguments: object, stdin: str = "", env: Mapping[str, str] | None = None, within_s: float = 120
) -> subprocess.CompletedProcess[str]:
    """Runs `seaweedq` with more environment, as a fork of the fork server's where that can be. Fails with
    subprocess.TimeoutExpired."""
    given, whole = [str(one) for one in arguments], {**os.environ, **(env or {})}
    server = fork_server()
    if server is None or not server.can_start(whole):
        command = [sys.executable, "-m", "seaweedq", *given]
        return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=within_s, env=whole)
    with TemporaryFile() as fed, TemporaryFile() as out, TemporaryFile() as err:
        fed.write(stdin.encode())
        fed.seek(0)
        process = server.start(given, whole, (fed.fileno(), out.fileno(), err.fileno()))
        try:
            code = process.wait(within_s)
        finally:
            process.kill()
        printed = [_text(file) for file in (out, err)]
        return subprocess.CompletedProcess(given, code, *printed)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()
