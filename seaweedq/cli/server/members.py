"""Decisions about the brokers of one machine: their valid settings, how each is started, and when again.

This module starts nothing, and reads only the names in the data folder; `supervise` acts.
"""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from seaweedq.errors import InvalidRequest
from seaweedq.settings import Settings

QUICK_S = 10.0
FIRST_PAUSE_S, LAST_PAUSE_S = 0.2, 5.0
JOURNALS = "journals"


def check_members(settings: Settings) -> None:
    """Raises InvalidRequest for settings that several brokers on a machine, or one of them, cannot have."""
    if settings.member > (settings.brokers if settings.brokers > 1 else 0):
        raise InvalidRequest(
            f"setting member={settings.member}: brokers is {settings.brokers}; leave member out, the parent of several "
            "brokers sets it",
            field="member",
        )
    if settings.brokers == 1:
        return
    if settings.coordination != "embedded":
        raise InvalidRequest(
            f"setting brokers={settings.brokers}: with etcd each broker is started by itself; leave brokers out",
            field="brokers",
        )
    for name, url in (("advertise_url", settings.advertise_url), ("advertise_peer_url", settings.advertise_peer_url)):
        if url:
            raise InvalidRequest(
                f"setting {name}={url!r}: {settings.brokers} brokers cannot share one URL; each says the address that "
                "it listens on",
                field=name,
            )
    for name, port in (("port", settings.port), ("peer_port", settings.peer_port)):
        if port and not settings.member and port + settings.brokers - 1 > 65_535:
            raise InvalidRequest(
                f"setting {name}={port}: {settings.brokers} brokers need as many ports, up to 65535", field=name
            )


def check_folder(settings: Settings) -> None:
    """Raises InvalidRequest if a broker that ran alone left a journal. Several brokers have a folder each below the
    data folder, and never recover such a journal."""
    folder = settings.data_dir / JOURNALS
    if folder.is_dir() and any(folder.iterdir()):
        raise InvalidRequest(
            f"{folder} holds what a broker that ran alone has not put into files: start it once more without brokers, "
            "and stop it in order",
            field="brokers",
        )


def homes(settings: Settings) -> list[Path]:
    """Returns the folders of all members that have ever existed in this data folder."""
    return sorted(path for path in settings.home.parent.glob("*") if path.is_dir())


def member_command(program: Sequence[str], settings: Settings, member: int) -> list[str]:
    """Returns the command that starts member 1, 2, ...: the parent's own command line, and the parent's decisions,
    which override a config file that has changed since."""
    port = settings.port + member - 1 if settings.port else 0
    decided = {
        "--data-dir": settings.data_dir.absolute(),
        "--brokers": settings.brokers,
        "--member": member,
        "--port": port,
        "--peer-port": settings.peer_port + member - 1 if settings.peer_port else 0,
    }
    return [*program, *(str(word) for option in decided.items() for word in option)]


def own_program() -> list[str]:
    """Returns the command line that this process was started with, as a start by module."""
    return [sys.executable, "-m", "seaweedq", *sys.argv[1:]]


def quick_ends(before: int, lived_s: float) -> int:
    """Returns how often in a row a broker ended within QUICK_S, including this time."""
    return before + 1 if lived_s < QUICK_S else 0


def pause_s(quick: int) -> float:
    """Returns how long to wait before the next start: at first not at all, then twice as long each time, up to
    LAST_PAUSE_S."""
    return min(LAST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(quick - 1, 16)) if quick else 0.0


def ended_in_order(code: int, greeted: bool) -> bool:
    """Tells whether a broker stopped as asked. Before its greeting it may not handle the signal yet."""
    return code == 0 or (code == -signal.SIGTERM and not greeted)


def hopeless(code: int, was_ready: bool) -> bool:
    """Tells whether another start would fail in the same way: it ended by itself, and was never ready."""
    return code > 0 and not was_ready


def told(code: int) -> str:
    """Returns an exit code in words."""
    if code >= 0:
        return f"ended with {code}"
    names = {known.value: known.name for known in signal.Signals}
    return f"was killed by {names.get(-code, f'signal {-code}')}"
