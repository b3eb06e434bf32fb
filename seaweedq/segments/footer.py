"""The footer of an entry, and its checksum.

Parquet has checksums of pages and none of the footer, which says where pages are, and what is in them: of 30,000 bits
of a small file's footer, each flipped on its own, 181 were read as other rows, without an error. So a
*guard* stands right before the footer: MAGIC, and a CRC-32 of all bytes behind it. Other readers find the footer
from the file's end and the pages from the footer, so they pass over the guard.
"""

import io
import struct
import zlib
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

MAGIC = b"seaweedq"
GUARD = struct.Struct("<8sI")
_LENGTH = struct.Struct("<I")
_PARQUET = b"PAR1"
_END_BYTES = _LENGTH.size + len(_PARQUET)


def guard(file: memoryview, size: int) -> int:
    """Puts a guard before the footer of the file in the first `size` bytes, behind which there is room for it. Returns
    the size with it."""
    at = size - _END_BYTES - _footer_bytes(file[:size])
    footer = bytes(file[at:size])
    whole = GUARD.pack(MAGIC, zlib.crc32(footer)) + footer
    file[at : at + len(whole)] = whole
    return at + len(whole)


def read_footer(file: BinaryIO) -> pq.FileMetaData:
    """Reads the footer of a file. Raises ValueError for one that is not as it was written, and what reading raises."""
    end = file.seek(0, io.SEEK_END)
    file.seek(max(end - _END_BYTES, 0))
    length = _footer_bytes(memoryview(file.read(_END_BYTES)))
    start = end - _END_BYTES - length
    if start < len(_PARQUET):
        raise ValueError("its footer is longer than the file")
    file.seek(max(start - GUARD.size, 0))
    found = memoryview(file.read(end - file.tell()))
    before, footer = found[: -(length + _END_BYTES)], found[-(length + _END_BYTES) :]
    if bytes(before) != GUARD.pack(MAGIC, zlib.crc32(footer)):
        raise ValueError("its footer is not as it was written")
    return pq.read_metadata(pa.BufferReader(_PARQUET + footer))


def _footer_bytes(file: memoryview) -> int:
    """Returns the length of the footer that the end of a file states. Raises ValueError where it is no end of one."""
    if len(file) < _END_BYTES or bytes(file[-len(_PARQUET) :]) != _PARQUET:
        raise ValueError("it does not end as a Parquet file does")
    return int(_LENGTH.unpack(file[-_END_BYTES : -len(_PARQUET)])[0])
