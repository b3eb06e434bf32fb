"""`seaweedq debug bundle`: what is in it, and that no secret and no message is, wherever they were planted."""

import json
import re
import stat
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from seaweedq import Client
from seaweedq.cli.debug import LOG_BYTES, without_keys
from seaweedq.cli.main import app, main
from seaweedq.cli.redaction import Redactor, secrets_of
from tests.support.processes.broker_process import BrokerProcess, free_port
from tests.support.processes.command import seaweedq

SECRETS = {
    "cluster": "the-cluster-secret-of-two,the-one-before",
    "etcd": "hunter2-of-etcd",
    "token": "sq1_0123456789abcdef_planted-token",
    "user": "ann:pa/ss@wurzel",
    "aws": "AKIAPLANTED/+secret",
    "basic": "cGxhbnRlZDpwbGFudGVk",
    "jwt": "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl",
}
LOG = f"""2026-11-27 INFO seaweedq: started
GET http://{SECRETS["user"]}@broker:8080/v1/topics?x=1 failed
Authorization: Bearer {SECRETS["token"]}
{{"headers": {{"authorization": "Basic {SECRETS["basic"]}", "accept": "*/*"}}, "route": "/v1/topics"}}
headers={{'Cookie': 'session={SECRETS["basic"]}', 'x': 'kept'}}
[b'authorization', b'Bearer {SECRETS["token"]}']
put https://s3/b/o?X-Amz-Signature={SECRETS["basic"]}&X-Amz-Date=kept-date
link http://b/v1/payload?sig={SECRETS["basic"]}&until=kept-until
etcd_password={SECRETS["etcd"]} rest
principal of {SECRETS["jwt"]} is unknown
SEAWEEDQ_CLUSTER_SECRET: '{SECRETS["cluster"]}'
-----BEGIN PRIVATE KEY-----
{SECRETS["basic"]}
-----END PRIVATE KEY-----
kept to the end
"""


def texts(file: Path) -> dict[str, str]:
    """The parts of a bundle, by their names below its folder."""
    with tarfile.open(file) as archive:
        found = {}
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            assert stat.S_IMODE(member.mode) == 0o600
            found[member.name.partition("/")[2]] = content.read().decode()
        return found


def planted(text: str) -> list[str]:
    pieces = {piece for one in SECRETS.values() for piece in re.split("[,:@]", one) if len(piece) > 3}
    return [piece for piece in pieces if piece in text]


def test_what_looks_like_a_secret_is_taken_and_the_rest_stays() -> None:
    text = Redactor([]).text(LOG)
    assert not planted(text)
    for kept in ("started", "@broker:8080/v1/topics?x=1", "'x': 'kept'", "kept-date", "kept-until", "kept to the end"):
        assert kept in text
    assert '"route": "/v1/topics"' in text
    assert Redactor([]).text('{"admin_token_file": "/etc/token", "token": "abc"}') == (
        '{"admin_token_file": "/etc/token", "token": "***"}'
    )


def test_known_secrets_are_taken_wherever_they_are() -> None:
    environment = {
        "MY_PASSWORD": "correct horse",
        "SEAWEEDQ_TOKEN_FILE": "/a/file",
        "HOME": "/home/ann",
        "A_KEY": "abc",
    }
    redactor = Redactor(secrets_of(environment))
    assert redactor.text("a correct horse of /home/ann in /a/file, abc") == "a *** of /home/ann in /a/file, abc"


@pytest.mark.process
def test_a_bundle_has_all_parts_and_no_secret(tmp_path: Path, real_broker: BrokerProcess, real_client: Client) -> None:
    (tmp_path / "broker.log").write_text(LOG)
    (tmp_path / "password").write_text(SECRETS["etcd"] + "\n")
    (tmp_path / "broker.toml").write_text(f'cluster_secret = "{SECRETS["cluster"]}"\nauth = "none"\n')
    message = "the text of a message"
    real_client.publish("bundled", [{"key": f"a key {message}", "value": message}] * 5)
    env = {
        "SEAWEEDQ_CONFIG": str(tmp_path / "broker.toml"),
        "SEAWEEDQ_DATA_DIR": str(tmp_path / "data"),
        "SEAWEEDQ_ETCD_PASSWORD": SECRETS["etcd"],
        "MY_TOKEN": SECRETS["token"],
        "AWS_SECRET_ACCESS_KEY": SECRETS["aws"],
        "SEAWEEDQ_HTTP_PROXY_PASSWORD": SECRETS["basic"],
    }
    file = tmp_path / "help.tar.gz"
    given = ("--file", file, "--log", tmp_path / "broker.log", "--url", real_broker.url)
    done = seaweedq("debug", "bundle", *given, "-o", "json", env=env)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    parts = texts(file)
    assert told["files"] == [*parts]
    assert told["failed"] == []
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    whole = "\n".join([*parts, *parts.values(), done.stdout, done.stderr])
    assert not planted(whole)
    assert message not in whole
    assert real_broker.url in parts["cluster.json"]
    assert [one["topic"]["name"] for one in json.loads(parts["topics.json"])["shown"]].count("bundled") == 1
    assert json.loads(parts["settings.json"])["auth"] == "none"
    assert json.loads(parts["settings.json"])["cluster_secret"] == "***"
    assert "SEAWEEDQ_ETCD_PASSWORD" in parts["versions.txt"]
    assert re.search(r"^pyarrow \d", parts["versions.txt"], re.MULTILINE)
    assert "ok    seaweedq" in parts["doctor.txt"]
    [metrics] = (text for name, text in parts.items() if name.endswith(".metrics"))
    assert "seaweedq_published_messages_total" in metrics
    assert "kept to the end" in parts["logs/1-broker.log"]
    real_client.delete_topic("bundled")


def test_the_hot_key_of_a_segment_is_left_out() -> None:
    answer = {"segments": [{"id": 1, "hot_key": ["ann", 0.9]}, {"id": 2, "hot_key": None}]}
    assert without_keys(answer) == {"segments": [{"id": 1, "hot_key": "***"}, {"id": 2, "hot_key": None}]}


@pytest.mark.process
def test_it_is_written_where_no_broker_answers(tmp_path: Path) -> None:
    url = f"http://ann:{SECRETS['etcd']}@127.0.0.1:{free_port()}"
    file = tmp_path / "help.tar.gz"
    done = seaweedq("debug", "bundle", "--file", file, "--url", url)
    assert done.returncode == 0, done.stderr
    assert "cluster.json could not be collected: no answer from http://127.0.0.1" in done.stderr
    parts = texts(file)
    assert "could not be collected" in parts["topics.json"]
    assert "could not be collected" in parts["brokers/broker.metrics"]
    assert not planted("\n".join([*parts.values(), done.stdout, done.stderr]))


class _Topics(BaseHTTPRequestHandler):
    """Answers as a broker whose topic `gone` is deleted behind the list of topics; its cluster has no brokers."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        lists = {"/v1/topics": {"topics": [{"name": "gone"}, {"name": "kept"}]}, "/v1/topics/kept/segments": {}}
        answer = lists.get(path, {"name": "kept"})
        if is_gone := path.startswith("/v1/topics/gone"):
            answer = {"type": "/problems/topic-not-found", "title": "Topic not found", "detail": "no topic gone"}
        self.send_response(404 if is_gone else 200)
        self.send_header("content-type", "application/problem+json" if is_gone else "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


@pytest.mark.process
def test_a_deleted_topic_and_a_wrong_answer_cost_one_part_alone(tmp_path: Path) -> None:
    file = tmp_path / "help.tar.gz"
    with HTTPServer(("127.0.0.1", 0), _Topics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        done = CliRunner().invoke(app, ["debug", "bundle", "--file", str(file), "--url", url])
        server.shutdown()
    assert done.exit_code == 0, done.output
    parts = texts(file)
    assert parts["doctor.txt"] == "doctor.txt could not be collected: KeyError: 'brokers'\n"
    assert json.loads(parts["topics.json"])["shown"] == [
        {"topic": {"name": "gone"}, "problem": "no topic gone"},
        {"topic": {"name": "kept"}, "segments": {}},
    ]


@pytest.mark.process
def test_of_a_long_log_the_end_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "long.log"
    log.write_text(f"password={'x' * 100}" + "y" * LOG_BYTES + "\nthe end\n")
    monkeypatch.chdir(tmp_path)
    url = f"http://127.0.0.1:{free_port()}"
    done = CliRunner().invoke(app, ["debug", "bundle", "--log", str(log), "--url", url])
    assert done.exit_code == 0, done.output
    [file] = tmp_path.glob("seaweedq-debug-*.tar.gz")
    assert texts(file)["logs/1-long.log"] == "the end\n"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--log", "none.log"), 2, "--log: 'none.log' does not exist"),
        (("--file", "there"), 1, "there already exists; choose another file with --file"),
        (("--file", "no/folder/x"), 1, "No such file or directory"),
        (("--lgo", "x"), 2, "there is no option --lgo; the nearest is --log"),
    ],
)
def test_wrong_input_is_one_line(
    words: tuple[str, ...],
    code: int,
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").write_text("mine")
    with pytest.raises(SystemExit) as end:
        main(["debug", "bundle", *words, "--url", f"http://127.0.0.1:{free_port()}"])
    text = capsys.readouterr().err
    assert (end.value.code, text.count("\n")) == (code, 1), text
    assert told in text
    assert Path("there").read_text() == "mine"
