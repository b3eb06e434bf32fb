"""`seaweedq debug bundle`: collects diagnostics in one file for whoever helps, without tokens, keys or messages.

Each part is collected separately; if a part fails, its file contains the reason. All text is redacted, with the secrets
from this machine's settings and environment. The hot key of a segment is left out, because it is part of messages."""

import io
import os
import platform
import sys
import tarfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated, Any

import typer

import seaweedq
from seaweedq.cli.doctor import Config, DataDir, findings
from seaweedq.cli.redaction import Redactor, secrets_of
from seaweedq.cli.shared.broker_metrics import metrics_text
from seaweedq.cli.shared.common import (
    CLIENT_S,
    DEFAULT_URL,
    Url,
    calling,
    counted,
    first_url,
    one_line,
    path_text,
    regular_files,
)
from seaweedq.cli.shared.contexts import credentials_of
from seaweedq.cli.shared.output import JSON, TABLE, Output, say_done
from seaweedq.errors import BadRequest, ClientError, SeaweedqError

app = typer.Typer(no_args_is_help=True, help="Collect diagnostics to share when you ask for help.")
LOG_BYTES = 4 * 1024 * 1024  # of the end of each log
MOST_TOPICS = 200
_OF_MESSAGES = ("hot_key", "hot_keys", "key")
_SECRET_FILES = ("password_file", "secret_file", "token_file", "key_file")  # the ends of settings' names
ABOUT = """`seaweedq debug bundle` collected these files for someone who helps you.

versions.txt         seaweedq, Python, the machine, packages; names of SEAWEEDQ_ variables that are set
settings.json        settings that a broker would use on this machine; secrets are ***
doctor.txt           findings of `seaweedq doctor`
cluster.json         the brokers, as GET /v1/cluster returns them
topics.json          records and segments of {most} topics at most, without keys
brokers/*.metrics    metrics of each broker
logs/*               the last {log_mib} MiB of each file that --log named

        The bundle contains no messages. Tokens, keys, passwords and users in URLs were removed. Look through the files
        before you send the bundle. """


@app.command(epilog="Examples: seaweedq debug bundle · seaweedq debug bundle --log broker.log --file help.tar.gz")
def bundle(
    file: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Output file; by default seaweedq-debug-TIME.tar.gz.")
    ] = None,
    log: Annotated[
        list[Path] | None,
        typer.Option(help="Log file of a broker; the bundle contains only the end of this file. Repeatable."),
    ] = None,
    config: Config = None,
    data_dir: DataDir = None,
    output: Output = TABLE,
    url: Url = DEFAULT_URL,
) -> None:
    """Write versions, settings, the findings of `doctor`, brokers, topics, metrics and logs to a .tar.gz file, even if
    no broker answers. The file never contains messages, tokens, keys or passwords.

    Save a broker's output to a file, for example with journalctl or docker logs, and
    pass the file with --log."""
    regular_files(log or [], "--log")
    now = datetime.now(UTC)
    name = f"seaweedq-debug-{now:%Y%m%d-%H%M%S}"
    written = file or Path(f"{name}.tar.gz")
    redactor = Redactor(_secrets(config, data_dir, url))
    failed: list[str] = []
    names: list[str] = []
    if written.exists():
        raise ClientError(f"{path_text(written)} already exists; choose another file with --file")
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for part, gather in _parts(config, data_dir, url, log or []):
            text = _gathered(gather, part, failed)
            _add(archive, f"{name}/{part}", redactor.text(text), now)
            names.append(part)
    with open(written, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as target:
        target.write(content.getvalue())
    failed = [redactor.text(one) for one in failed]
    if output != JSON:
        for told in failed:
            typer.echo(told, err=True)
    told = f"{path_text(written)} has {counted(len(names), 'file')}; look through them before you send the bundle"
    say_done(output, told, file=path_text(written), files=names, failed=failed)


def _gathered(gather: Callable[[], str], part: str, failed: list[str]) -> str:
    try:
        return gather()
    except Exception as error:  # an answer of another program, too: the other parts are needed the more
        kind = "" if isinstance(error, (SeaweedqError, OSError)) else f"{type(error).__name__}: "
        told = f"{part} could not be collected: {kind}{one_line(error)}"
        failed.append(told)
        return told + "\n"


def _add(archive: tarfile.TarFile, name: str, text: str, now: datetime) -> None:
    content = text.encode(errors="backslashreplace")
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o600, int(now.timestamp())
    archive.addfile(member, io.BytesIO(content))


def _parts(
    config: Path | None, data_dir: Path | None, url: str, logs: list[Path]
) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yields the name of each part, with the function that collects it."""
    yield "README.txt", lambda: ABOUT.format(most=MOST_TOPICS, log_mib=LOG_BYTES // 1024 // 1024)
    yield "versions.txt", _versions
    yield "settings.json", lambda: _settings(config, data_dir)
    yield "doctor.txt", lambda: _doctor(config, data_dir, url)
    cluster: dict[str, Any] = {}

    def of_cluster() -> str:
        from seaweedq.client.core.calls import call

        with calling(url, CLIENT_S) as transport:
            cluster.update(transport.run(call("GET", "/v1/cluster")))
        return _json(cluster)

    yield "cluster.json", of_cluster
    yield "topics.json", lambda: _topics(url)
    addresses = {str(one["id"]): str(one["url"]) for one in cluster.get("brokers", [])}
    for broker, address in (addresses or {"broker": first_url(url)}).items():
        yield f"brokers/{_file_name(broker)}.metrics", partial(metrics_text, url, address)
    for number, path in enumerate(logs, 1):
        yield f"logs/{number}-{_file_name(path.name)}", partial(_end_of, path)


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in name)[:100]


def _versions() -> str:
    lines = [
        f"seaweedq {seaweedq.__version__}",
        f"Python {sys.version}",
        f"machine {platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores",
        f"time {datetime.now(UTC).isoformat(timespec='seconds')}",
        f"variables {', '.join(sorted(name for name in os.environ if name.startswith('SEAWEEDQ_'))) or 'none'}",
        "",
        *sorted({f"{one.name} {one.version}" for one in distributions()}, key=str.lower),
    ]
    return "\n".join(lines) + "\n"


def _doctor(config: Path | None, data_dir: Path | None, url: str) -> str:
    found = findings(config, data_dir, url)
    return "".join(f"{one.verdict:<5} {one.what:<13} {one.told}\n" for one in found)


def _settings(config: Path | None, data_dir: Path | None) -> str:
    from seaweedq.cli.server.given_settings import settings_of
    from seaweedq.settings import Settings

    settings = settings_of(config, {"data_dir": data_dir})
    shown = {}
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        shown[name] = value if field.repr or not value else "***"
    return _json(shown)


def _secrets(config: Path | None, data_dir: Path | None, url: str) -> list[str]:
    """Returns the secrets in this machine's settings and environment."""
    found = secrets_of(os.environ)
    try:
        found += credentials_of(url).headers().values()
    except (ClientError, ValueError):
        pass
    try:
        from seaweedq.cli.server.given_settings import settings_of
        from seaweedq.settings import Settings

        settings = settings_of(config, {"data_dir": data_dir})
    except (SeaweedqError, OSError, ImportError):
        return found
    fields = Settings.model_fields
    found += [getattr(settings, name) for name, field in fields.items() if not field.repr]
    named = [Path(path) for name in fields if name.endswith(_SECRET_FILES) and (path := getattr(settings, name))]
    for path in (*named, *filter(None, [settings.admin_token_path]), settings.data_dir / "cluster-secret"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return found


def _topics(url: str) -> str:
    from seaweedq.client.core.calls import call, pages, topic_path

    found = []
    with calling(url, CLIENT_S) as transport:
        names = [str(one["name"]) for one in transport.run(pages("/v1/topics", "topics"))]
        for name in names[:MOST_TOPICS]:
            try:
                topic = transport.run(call("GET", topic_path(name)))
                segments = transport.run(call("GET", f"{topic_path(name)}/segments"))
                found.append({"topic": topic, "segments": segments})
            except BadRequest as error:  # such as that the topic is deleted by now
                found.append({"topic": {"name": name}, "problem": one_line(error)})
    return _json({"topics": len(names), "shown": [without_keys(one) for one in found]})


def without_keys(value: Any) -> Any:
    """Returns an answer without the keys of messages."""
    if isinstance(value, dict):
        return {name: "***" if name in _OF_MESSAGES and one else without_keys(one) for name, one in value.items()}
    return [without_keys(one) for one in value] if isinstance(value, list) else value


def _end_of(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - LOG_BYTES))
        text = file.read(LOG_BYTES).decode(errors="backslashreplace")
    return text if size <= LOG_BYTES else text.partition("\n")[2]  # the first line may lack what says that it is secret


def _json(value: Any) -> str:
    import json

    return json.dumps(value, indent=2, default=str, ensure_ascii=False) + "\n"
