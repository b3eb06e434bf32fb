"""Reads a broker's settings from the command line, the environment and a TOML file, in this order of precedence. Also
has the checks that need several settings.

pydantic-settings reads the file and the variables. This module words the errors, which name the setting, the given
text, and where it was given.

`auth=auto` lets everyone in who can connect, which is acceptable only on loopback. A broker that other machines can
reach must have `auth=required` or `auth=none`; otherwise it does not start, so that no broker is open by mistake."""

import logging
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from ipaddress import ip_address
from itertools import combinations
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import EnvSettingsSource

from seaweedq.cli.shared.usage import must
from seaweedq.errors import InvalidRequest
from seaweedq.json_reasons import of_field
from seaweedq.settings import Settings
from seaweedq.units import unit_of, value_of

PREFIX = "SEAWEEDQ_"
# Variables of that prefix which are no settings of a broker.
OTHERS = {
    "SEAWEEDQ_CONFIG",
    "SEAWEEDQ_URL",
    "SEAWEEDQ_FAIL_AT",
    "SEAWEEDQ_ZONE",
    "SEAWEEDQ_TOKEN",
    "SEAWEEDQ_TOKEN_FILE",
    "SEAWEEDQ_CA_FILE",
}
# Kubernetes tells each pod of all services, by such names and values. A service named `seaweedq` sets SEAWEEDQ_PORT,
# one named `seaweedq-peer` SEAWEEDQ_PEER_PORT, and so on.
_PORTS = ("port", "peer_port", "grpc_port")
_SERVICE_LINK = re.compile("(tcp|udp|sctp)://")
_OF_SERVICES = re.compile(
    r"SEAWEEDQ(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_[A-Z]+)?)"
)


_FIELDS: Any = Settings  # pydantic-settings reads the names of its fields; `Settings` itself validates


class _Variables(EnvSettingsSource):
    """Reads variables with upper-case names, except those that Kubernetes sets."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        value = self.env_vars.get(f"{PREFIX}{field_name.upper()}")
        is_of_service = field_name in _PORTS and value is not None and _SERVICE_LINK.match(value)
        return None if is_of_service else value, field_name, False

    def field_is_complex(self, field: FieldInfo) -> bool:
        """Tells that no variable is JSON, not even the one of a range."""
        return False


def settings_of(config: Path | None, given: dict[str, Any]) -> Settings:
    """Reads the settings from the command line, SEAWEEDQ_* variables and a TOML file. Raises InvalidRequest, which
    names the setting and where it was given."""
    named = {name: value for name, value in given.items() if value is not None}
    variables = _Variables(_FIELDS, case_sensitive=True, env_prefix=PREFIX)()
    texts = (_read_file(config) if config else {}) | variables | named
    try:
        return Settings.model_validate(_in_numbers(texts, lambda name: _origin(name, named, config)))
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        field = Settings.model_fields.get(name)
        if field is None:
            raise InvalidRequest(f"{_origin(name, named, config)}: {_no_setting(name)}", field=name) from None
        value = re.sub("://.*@", "://***@", repr(texts.get(name, first["input"])), flags=re.DOTALL)  # a URL's password
        shown = value if field.repr else ""  # a secret is not printed
        if first["type"] == "value_error":
            said = f"setting {name}{shown and '='}{shown}: {must(first)}"
        else:
            is_form = first["type"] == "string_pattern_mismatch"
            reason = f"must be a value such as {' or '.join(field.examples or ())}" if is_form else must(first)
            said = of_field(f"setting {name}", reason, shown)
        raise InvalidRequest(f"{said} (given by {_origin(name, named, config)})", field=name) from None


def _in_numbers(given: Mapping[str, Any], origin: Callable[[str], str]) -> dict[str, Any]:
    """Converts durations and sizes with units to numbers. Raises InvalidRequest."""
    found = dict(given)
    for name, value in given.items():
        if isinstance(value, str) and unit_of(name):
            try:
                found[name] = value_of(name, value)
            except ValueError as error:
                raise InvalidRequest(f"setting {name} {error} (given by {origin(name)})", field=name) from None
    return found


def _read_file(config: Path) -> dict[str, Any]:
    if not config.is_file():
        what = "not a regular file" if config.exists() else "the file does not exist"
        raise InvalidRequest(f"--config {config}: {what}", field="config")
    try:
        return tomllib.loads(config.read_bytes().decode())
    except ValueError as error:  # neither TOML nor UTF-8
        raise InvalidRequest(f"--config {config}: {error}", field="config") from None


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """Returns a warning for each variable that looks like a setting, in any case, but is not one."""
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | OTHERS
    warnings = []
    for name in sorted(environment):
        if not name.upper().startswith(PREFIX) or name in known:
            continue
        if _OF_SERVICES.fullmatch(name) or _SERVICE_LINK.match(environment[name]):
            continue
        in_capitals = f"its name must be in capitals, {name.upper()}"
        reason = in_capitals if name.upper() in known else _no_setting(name[len(PREFIX) :].lower())
        warnings.append(f"the variable {name} has no effect: {reason}")
    return warnings


def _origin(name: str, given: Mapping[str, Any], config: Path | None) -> str:
    """Returns where a setting was given. Only the file can have unknown settings."""
    if name in given:
        return f"--{name.replace('_', '-')}"
    variable = f"{PREFIX}{name.upper()}"
    return variable if variable in os.environ else f"{name} in {config}" if config else "the default"


def _no_setting(name: str) -> str:
    near = get_close_matches(name.lower(), Settings.model_fields, 1)
    return f"there is no setting {name!r}" + (f"; the nearest is {near[0]}" if near else "")


logger = logging.getLogger("seaweedq")


def check_auth(settings: Settings) -> None:
    """Warns if a broker requires no tokens. Raises InvalidRequest if the settings do not say so, and other machines can
    reach the broker."""
    reached = _reached(settings)
    if settings.auth == "auto" and reached:
        raise InvalidRequest(
            f"setting auth='auto' cannot be used with {reached}, because other machines can reach this broker. "
            "Set auth=required to require tokens (docs/operate/security.md), or auth=none to let everyone who can "
            "connect read, write and delete everything",
            field="auth",
        )
    if settings.auth == "none" and not settings.member:  # else the parent has said it
        logger.warning(
            "auth=none: everyone who can connect to the broker can read, write and delete everything, without a token"
        )


def check_advertised(settings: Settings) -> None:
    """Raises InvalidRequest if a broker that accepts only TLS would advertise a plain HTTP URL."""
    url = settings.advertise_url
    if settings.tls_cert_file and url and not url.startswith("https://"):
        raise InvalidRequest(
            f"setting advertise_url={url!r} is an http:// URL, but with tls_cert_file the broker "
            "accepts only TLS on its port; use an https:// URL, or leave tls_cert_file out",
            field="advertise_url",
        )


def check_ports(settings: Settings) -> None:
    """Raises InvalidRequest if two ports are the same, or if the URL of peer_port is set without the port."""
    if not settings.peer_port and settings.advertise_peer_url:
        raise InvalidRequest(
            f"setting advertise_peer_url={settings.advertise_peer_url!r} needs the setting "
            "peer_port; set peer_port, or leave advertise_peer_url out",
            field="advertise_peer_url",
        )
    last = 0 if settings.member else settings.brokers.most - 1
    ports = {name: port for name in _PORTS if (port := getattr(settings, name))}
    for (other, taken), (name, port) in combinations(ports.items(), 2):
        if abs(port - taken) <= last:
            raise InvalidRequest(
                f"setting {name}={port} must differ from {other}={taken}"
                + (f" and the {last} ports after it" if last else "")
                + f"; choose another {name}",
                field=name,
            )


def check_journal(settings: Settings) -> None:
    """Raises InvalidRequest for a mirrored journal without other machines, or one that could never have enough
    mirrors."""
    if settings.journal_least_mirrors > settings.journal_mirrors:
        raise InvalidRequest(
            f"setting journal_least_mirrors={settings.journal_least_mirrors} must be at most "
            f"journal_mirrors={settings.journal_mirrors}",
            field="journal_least_mirrors",
        )
    if settings.journal == "mirrored" and settings.coordination == "embedded":
        raise InvalidRequest(
            "setting journal='mirrored' needs several machines, but with coordination='embedded' "
            "all mirrors are on one machine and would fail together; use coordination on etcd, "
            "or journal=file",
            field="journal",
        )


def check_members(settings: Settings) -> None:
    """Raises InvalidRequest for settings that do not fit several brokers on one machine."""
    if settings.member > (settings.brokers.most if settings.brokers.most > 1 else 0):
        raise InvalidRequest(
            f"setting member={settings.member} cannot be used with brokers={settings.brokers}; "
            "leave member out, because the parent process sets it",
            field="member",
        )
    if settings.brokers.most == 1:
        return
    if settings.coordination != "embedded":
        raise InvalidRequest(
            f"setting brokers={settings.brokers} cannot be used with etcd; leave brokers out, and "
            "start each broker separately",
            field="brokers",
        )
    for name, url in (("advertise_url", settings.advertise_url), ("advertise_peer_url", settings.advertise_peer_url)):
        if url:
            raise InvalidRequest(
                f"setting {name}={url!r} cannot be used with {settings.brokers.most} brokers, which cannot "
                "share one URL; leave the setting out, so that each broker advertises the address on "
                "which it listens",
                field=name,
            )
    for name in _PORTS:
        port = getattr(settings, name)
        if port and not settings.member and port + settings.brokers.most - 1 > 65_535:
            raise InvalidRequest(
                f"setting {name}={port} is too high: {settings.brokers.most} brokers need {settings.brokers.most} "
                "consecutive ports, and the highest port is 65535",
                field=name,
            )


def is_loopback(host: str) -> bool:
    """Returns whether a host is a loopback name or address. No name is looked up."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _reached(settings: Settings) -> str | None:
    """Returns the setting that makes the broker reachable from other machines, or None."""
    if not is_loopback(settings.host):
        return f"host={settings.host!r}"
    if settings.advertise_url and not is_loopback(urlsplit(settings.advertise_url).hostname or ""):
        return f"advertise_url={settings.advertise_url!r}"
    return None
