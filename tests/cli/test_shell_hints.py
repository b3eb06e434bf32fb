"""The commands that a broker greets with, and `topic show` prints, work as pasted where tokens are asked for."""

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from seaweedq.cli.server.broker_process import welcome
from seaweedq.cli.server.credentials import draw_admin_token
from seaweedq.cli.shared.common import header_of, lines
from seaweedq.settings import Settings
from tests.support.brokers.in_process import running
from tests.support.brokers.serving import served


@pytest.mark.long
@pytest.mark.process
@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl")
async def test_what_a_broker_with_tokens_greets_with_works_as_pasted(tmp_path: Path) -> None:
    folder = tmp_path / "it's a folder"
    draw_admin_token(Settings(data_dir=folder, auth="required"))
    async with running(folder, auth="required") as broker, served(broker) as serving:
        shown = dict(welcome(broker.process.settings, serving.url))
        assert [*shown] == ["token", "console", "publish", "query"]
        export = shown["token"]
        assert "published 1 message to events" in await pasted(f"{export}\n{shown['publish']}")
        assert '"n":1' in (await pasted(f"{export}\n{shown['query']} -o json")).replace(" ", "").replace("\\", "")
        of_client = lines(serving.url, "events", "file:///x", header=header_of({"SEAWEEDQ_TOKEN_FILE": "x"}))
        publish, show, pull, sql, *_ = of_client
        assert '"count":1' in await pasted(f"{export}\n{publish}")
        assert '"name":"events"' in await pasted(f"{export}\n{show}")
        assert '"value": {"n": 1}' in (await pasted(f"{export}\n{pull}")).replace('":', '": ').replace("  ", " ")
        assert (await pasted(f"{export}\n{sql} -o csv")).endswith("\n0,2\n")
        of_token = lines(serving.url, "events", "file:///x", header=header_of({"SEAWEEDQ_TOKEN": "x"}))
        assert '"name":"events"' in await pasted(f'SEAWEEDQ_TOKEN="$(cat {export.partition("=")[2]})"\n{of_token[1]}')


async def pasted(command: str) -> str:
    """What a shell prints of a command."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEAWEEDQ_")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    process = await asyncio.create_subprocess_shell(
        command, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, errors.decode()
    return out.decode()


@pytest.mark.parametrize("given", [{}, {"auth": "none"}])
def test_where_no_token_is_asked_for_none_is_shown(given: dict[str, Any]) -> None:
    shown = dict(welcome(Settings(**given), "http://b:1"))
    assert [*shown] == ["console", "publish", "query"]
    assert shown["console"] == "http://b:1"
    text = "\n".join(lines("http://b:1", "t", "file:///x"))
    assert text.startswith("curl http://b:1/v1/topics/t/messages ")
    assert "Authorization" not in text
    assert "SEAWEEDQ_TOKEN" not in "\n".join((text, *shown.values()))


def test_a_broker_without_a_token_of_its_own_leaves_the_file_to_its_reader() -> None:
    first, *_ = welcome(Settings(auth="required", coordination="etcd://a:1"), "http://b:1")
    assert first == ("token", "export SEAWEEDQ_TOKEN_FILE=FILE-WITH-YOUR-TOKEN")
    publish, *_ = lines("http://b:1", "t", "file:///x", header=header_of({"SEAWEEDQ_TOKEN_FILE": "f"}))
    assert publish.startswith("sed 's/^/Authorization: Bearer /' \"$SEAWEEDQ_TOKEN_FILE\" | curl -H @- http://b:1/")


def test_a_client_shows_its_token_by_the_variable_that_it_comes_from() -> None:
    assert header_of({}) == ""
    both = header_of({"SEAWEEDQ_TOKEN": "sq1_x", "SEAWEEDQ_TOKEN_FILE": "f"})
    assert both == """printf 'Authorization: Bearer %s' "$SEAWEEDQ_TOKEN\""""
    shown = "\n".join(lines("http://b:1", "t", "file:///x", header=both))
    assert "sq1_x" not in shown
    assert not re.search(r"curl[^|\n]*(\$\(|SEAWEEDQ_TOKEN)", shown), "what is an argument of a process, `ps` shows"
