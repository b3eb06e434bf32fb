"""Files of chains as somebody writes them who knows the format: the footer's checksum is right, whatever it says."""

from pathlib import Path

from seaweedq.segments.entry import GUARD, guard


def write_guarded(file: Path, written: bytes) -> None:
    """Writes a Parquet file that has no guard, with the guard of its footer."""
    room = bytearray(written + bytes(GUARD.size))
    file.write_bytes(room[: guard(memoryview(room), len(written))])
