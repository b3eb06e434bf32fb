"""`seaweedq serve`: parses the settings, and runs a broker, or the parent process of several brokers."""

import os

os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # Arrow reads it once, when it is loaded

import ctypes
import gc
import inspect
import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo

from seaweedq.cli.server.given_settings import settings_of, unknown_variables
from seaweedq.cli.server.live_line import LiveLine
from seaweedq.cli.shared.common import complain, one_line
from seaweedq.errors import InvalidRequest
from seaweedq.extras import hidden, needs
from seaweedq.settings import GROUPS, Settings
from seaweedq.units import unit_of

MIB = 1024 * 1024
# glibc's M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX: keep freed buffers rather than give them back to the
# kernel and fault them in again. Arenas of threads would give back whatever they no longer use.
MALLOC = {-1: 256 * MIB, -2: 64 * MIB, -4: 0, -8: 1}
METAVARS = {"s": "DURATION", "bytes": "SIZE"}
logger = logging.getLogger("seaweedq")

EXAMPLES = """Examples:

seaweedq serve

seaweedq serve --data-dir /var/lib/seaweedq --port 9000

SEAWEEDQ_FLUSH_MAX_AGE_S=10s seaweedq serve

seaweedq serve --config broker.toml

seaweedq serve --brokers 1..8
"""


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Builds a command whose options are the settings, with their names, types, help and defaults."""
    options = [_option(name, field, group) for group, of in GROUPS.items() for name, field in of.model_fields.items()]
    own = [p for p in inspect.signature(command).parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    command.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in [*own, *options]}
    return command


def _option(name: str, field: FieldInfo, group: str) -> inspect.Parameter:
    given = next((one for one in get_args(field.annotation) if isinstance(one, type)), field.annotation)
    unit = unit_of(name)
    kind = given if given in (int, float, str, bool, Path) and unit is None else str
    flag = f"--{name.replace('_', '-')}"
    default = "none" if field.default in ("", None) else field.default
    option = typer.Option(
        flag if kind is not bool else f"{flag}/--no-{flag[2:]}",
        help=f"{field.description} \\[default: {default}]",
        metavar=METAVARS[unit] if unit else None,
        show_default=False,
        rich_help_panel=group,
    )
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


class JsonLines(logging.Formatter):
    """Formats each record as a JSON document on one line: `time` (UTC), `level`, `logger`, `message`, the ids of the
    trace and the span within which it was logged, and `exception` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        document |= getattr(record, "traced", {})  # cli/server/tracing
        if record.exc_info:
            document["exception"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


@with_settings
def serve(
    config: Annotated[
        Path | None, typer.Option("--config", envvar="SEAWEEDQ_CONFIG", help="TOML file with settings.")
    ] = None,
    **given: Any,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C. You can also set every option as an environment variable SEAWEEDQ_*, or as
    a key in the TOML file that --config names.

    The broker prints its URL as the first line on stdout, and its log on stderr.

    Write a DURATION as a number of seconds, or with units: 500ms, 90s, 1h30m, 7d, 2w. Write a SIZE as a number of
    bytes, or with a unit: 10GB (GB is 10^9), 512MiB (MiB is 2^20)."""
    try:
        settings = settings_of(config, given)
    except InvalidRequest as error:
        complain(one_line(error))
        raise typer.Exit(2) from None
    line = LiveLine.at_terminal() if settings.brokers.most == 1 else None  # before anybody keeps a stream
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    if settings.log_format == "json":
        logging.getLogger().handlers[0].setFormatter(JsonLines())
    _log_audit_as_json()
    if not settings.member:  # else the parent has said it
        for warning in unknown_variables(os.environ):
            logger.warning("%s", warning)
    with needs("server", "seaweedq serve"):  # its options need none of the extra's packages
        _run(settings, line)


def _run(settings: Settings, line: LiveLine | None) -> None:
    """Runs a broker, or the parent process of several. Modules that help and settings' errors do not need are imported
    here."""
    gc.disable()  # imported objects stay: collecting them again and again takes a sixth of a start
    from seaweedq.cli.server.given_settings import (
        check_advertised,
        check_auth,
        check_journal,
        check_members,
        check_ports,
    )
    from seaweedq.cli.server.stop_signals import end_with_parent

    check_auth(settings)
    check_advertised(settings)
    check_members(settings)
    check_ports(settings)
    check_journal(settings)
    if settings.brokers.most > 1 and not settings.member:
        from seaweedq.cli.server.supervise import supervise  # a broker needs none of it

        _keep_imported()
        raise typer.Exit(supervise(settings))
    if settings.member:
        end_with_parent()
    from seaweedq.cli.server.broker_process import run

    _keep_imported()
    _quieten()
    _keep_freed_memory()
    with hidden("pandas"):  # pyarrow would import it at its first conversion: a second, and memory, for nothing
        run(settings, line)


def _keep_imported() -> None:
    gc.freeze()  # a full collection would take 24 ms more
    gc.enable()


def _quieten() -> None:
    """Limits the log lines of libraries to warnings."""
    from seaweedq.api.connections.protocol import UNREADABLE
    from seaweedq.cli.server.http_server import OnceInAWhile

    for chatty in ("aiobotocore", "botocore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))
    logging.getLogger("uvicorn.error").addFilter(OnceInAWhile(UNREADABLE))


def _log_audit_as_json() -> None:
    """Logs each audit line as a bare JSON document, whatever the `log_level`."""
    audit, handler = logging.getLogger("seaweedq.audit"), logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    audit.handlers, audit.propagate = [handler], False
    audit.setLevel(logging.INFO)


def _keep_freed_memory() -> None:
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        for parameter, value in MALLOC.items() if hasattr(libc, "mallopt") else ():
            libc.mallopt(parameter, value)
