"""The clocks of one broker, moved by libfaketime: the wall clock alone, as where NTP sets it, or all of them, from the
start, as in a machine whose oscillator is off.
"""

from importlib.util import find_spec
from pathlib import Path

HOW = ("+3600", "-3600", "+45", "-45", "+0 x7", "+0 x0.2")
AHEAD = "+259200"  # three days
SLOW = "+0 x0.5"
ABSENT = "no clock jumps: pip install libfaketime"


def library() -> Path | None:
    """What has to be loaded before all else; None where there is none."""
    spec = find_spec("libfaketime")
    folders = spec.submodule_search_locations if spec else None
    found = Path(folders[0]) / "vendor/libfaketime/src/libfaketime.so.1" if folders else None
    return found if found and found.exists() else None


class Clock:
    """A clock that a process with `env` looks at; `set` moves it while it runs."""

    def __init__(self, file: Path, how: str = "+0", *, monotonic: bool = False) -> None:
        self._file = file
        self._kept = "0" if monotonic else "1"
        self.set(how)

    @property
    def env(self) -> dict[str, str]:
        """What the process needs."""
        return {
            "LD_PRELOAD": str(library()),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": self._kept,
        }

    def set(self, how: str) -> None:
        """So many seconds off, and so many times as fast, as faketime writes it."""
        self._file.write_text(how)
