"""Rows of a damaged journal, read from the raw bytes of its file and its write-ahead log.

[Note: why not through SQLite]
SQLite reaches a row through the pages above it: one damaged inner page hides every intact row below it, and a zeroed
page can make a search loop.  Here every page is read once, whatever points to it, so the scan ends on any input.  A row
counts only if its checksum, which includes its number, matches: nothing is guessed.

Formats: https://www.sqlite.org/fileformat2.html, sections 1.5 and 1.6 (pages, cells), 2 (records), 4 (the log).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from weft.store.schema import is_intact

Row = tuple[int, bytes | str, int]
Pages = Mapping[int, bytes]

_DEFAULT_PAGE_BYTES = 4096
_LEAF = 0x0D
_WAL_HEADER, _FRAME_HEADER = 32, 24
_INTEGER_BYTES = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}


class _Torn(Exception):
    """These bytes are not a row."""


def salvaged_rows(path: Path) -> tuple[list[Row], list[Row]]:
    """All readable snapshots and events by number; of two with the same number, the newer."""
    data, log = _content(path), _content(Path(f"{path}-wal"))
    size = _page_bytes(data, log)
    main = {at // size + 1: data[at : at + size] for at in range(0, len(data), size)}
    snapshots: dict[int, Row] = {}
    events: dict[int, Row] = {}
    newest = dict(main)
    for number, page in _frames(log, size):
        newest[number] = page
    # Oldest first, so that newer rows replace older ones.
    for pages in [(main, main), *(({number: page}, newest) for number, page in _frames(log, size))]:
        for number, page in pages[0].items():
            for seq, body, crc32 in _rows(page, pages[1], size, header=100 if number == 1 else 0):
                (events if isinstance(body, str) else snapshots)[seq] = (seq, body, crc32)
    return [snapshots[seq] for seq in sorted(snapshots)], [events[seq] for seq in sorted(events)]


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _page_bytes(data: bytes, log: bytes) -> int:
    """From the file's header, else from its log's, else the default."""
    found = [int.from_bytes(data[16:18], "big"), int.from_bytes(log[8:12], "big")]
    return next((size for size in found if size in (512, 1024, 2048, 4096, 8192, 16384, 32768)), _DEFAULT_PAGE_BYTES)


def _frames(log: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """Page number and page of every committed frame of the log, oldest first.

    Frames from before the log was last reset have another salt.  Frames after the last commit were never acknowledged.
    """
    starts = range(_WAL_HEADER, len(log) - _FRAME_HEADER + 1, _FRAME_HEADER + size)
    headers = [(at, *struct.unpack_from(">II8s", log, at)) for at in starts]
    salts = [salt for _, _, _, salt in headers]
    # The header's salt or, if the header is damaged, the most common one.
    salt = log[16:24] if log[16:24] in salts else max(set(salts), key=salts.count, default=b"")
    current = [(at, number, commit) for at, number, commit, found in headers if found == salt]
    last = max((at for at, _, commit in current if commit), default=-1)
    for at, number, _ in current:
        if at <= last:
            yield number, log[at + _FRAME_HEADER : at + _FRAME_HEADER + size]


def _rows(page: bytes, pages: Pages, size: int, *, header: int) -> Iterator[Row]:
    """Rows of one page, if it is a leaf of a table."""
    if len(page) < header + 8 or page[header] != _LEAF:
        return
    num_cells = int.from_bytes(page[header + 3 : header + 5], "big")
    for index in range(min(num_cells, size // 4)):
        at = header + 8 + 2 * index
        try:
            seq, body, crc32 = _cell(page, int.from_bytes(page[at : at + 2], "big"), pages, size)
        except (_Torn, IndexError, UnicodeDecodeError):
            continue
        if is_intact(seq, body, crc32):
            yield seq, body, crc32


def _cell(page: bytes, at: int, pages: Pages, size: int) -> Row:
    length, at = _varint(page, at)
    seq, at = _varint(page, at)
    if length > size - 35:
        least = (size - 12) * 32 // 255 - 23
        local = least + (length - least) % (size - 4)
        local = local if local <= size - 35 else least
        payload = page[at : at + local] + _overflow(page[at + local : at + local + 4], length - local, pages, size)
    else:
        payload = page[at : at + length]
    if len(payload) != length:
        raise _Torn
    return seq, *_record(payload)


def _overflow(pointer: bytes, length: int, pages: Pages, size: int) -> bytes:
    """The rest of a row that did not fit in its page: a chain of pages, followed only for the row's length."""
    parts: list[bytes] = []
    for _ in range(-(-length // (size - 4))):
        page = pages.get(int.from_bytes(pointer, "big"), b"")
        if len(page) != size:
            raise _Torn
        pointer = page[:4]
        parts.append(page[4:])
    return b"".join(parts)[:length]


def _record(payload: bytes) -> tuple[bytes | str, int]:
    """Body and checksum of a row of ``events`` or ``snapshots``; its number is not part of the record."""
    end, at = _varint(payload, 0)
    kinds: list[int] = []
    while at < end:
        kind, at = _varint(payload, at)
        kinds.append(kind)
    if at != end or len(kinds) != 3 or kinds[0] != 0 or kinds[1] < 12 or kinds[2] not in _INTEGER_BYTES:
        raise _Torn
    middle = end + (kinds[1] - 12) // 2
    body = payload[end:middle]
    crc32 = payload[middle : middle + _INTEGER_BYTES[kinds[2]]]
    return body.decode() if kinds[1] % 2 else body, int.from_bytes(crc32, "big", signed=True)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for index in range(9):
        byte = data[at + index]
        if index == 8:
            return (value << 8) | byte, at + 9
        value = (value << 7) | (byte & 0x7F)
        if byte < 0x80:
            return value, at + index + 1
    raise _Torn
