"""Opening vendors' text files: plain, gzip or zip, one, a folder or a glob; guarded, and never whole in memory.

What the text means is `delimited`'s and the vendors' work.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, Protocol

from archetype_dagster.errors import MarketDataError

BLOCK_BYTES: Final = 2 * 2**20
"""Text read at once: larger blocks leave holes in the allocator, and memory grows with the number of files."""
LINE_BYTES_LIMIT: Final = 16 * 2**20
HEAD_BYTES: Final = 2**16
UNPACKED_RATIO_LIMIT: Final = 300
"""Bytes a packed file may yield per byte it takes: real market data packs 5 to 30 times."""
UNPACKED_ALLOWANCE: Final = 64 * 2**20
"""Bytes a packed file may yield whatever its own size, so that small repetitive files pass."""

_SUFFIXES: Final = (".csv", ".txt", ".gz", ".zip")
_MEMBER_SUFFIXES: Final = (".csv", ".txt")
_WILDCARDS: Final = frozenset("*?[")
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZIP_MAGIC: Final = b"PK"
_ENCRYPTED: Final = 1
_PACKED_BYTES: Final = 2**18
# The zip reader raises NotImplementedError for a way of packing that it does not know.
_DAMAGE: Final = (OSError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError)


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Gunzip:
    """What `gzip.open` reads, in two thirds of its time: that one unpacks 8 KiB at a time."""

    def __init__(self, packed: IO[bytes]) -> None:
        self._packed = packed
        self._rest = b""
        self._member: zlib._Decompress | None = None

    def read(self, size: int, /) -> bytes:
        """The next `size` bytes, fewer at the end; `EOFError` where a member is cut short, `zlib.error` if damaged."""
        parts = []
        while size:
            packed = self._rest or self._packed.read(_PACKED_BYTES)
            if self._member is None:
                if not packed:
                    break
                # Members may be followed by zeros, as on tapes.
                self._rest = packed.lstrip(b"\0")
                self._member = zlib.decompressobj(wbits=31) if self._rest else None
                continue
            if not packed:
                raise EOFError("cut short")
            parts.append(self._member.decompress(packed, size))
            size -= len(parts[-1])
            self._rest = self._member.unconsumed_tail
            if self._member.eof:
                self._rest, self._member = self._member.unused_data, None
        return b"".join(parts)


@dataclass(frozen=True)
class DataFile:
    """A text file that can be read line by line, wherever it lies.

    Attributes:
        path: the file on disk.
        member: name inside a zip archive; None for a plain or gzip file.
        label: how messages call it.
    """

    path: Path
    member: str | None
    label: str

    def blocks(self, size: int = BLOCK_BYTES) -> Iterator[bytes]:
        """The text in blocks of about `size` bytes that end at a line's end; nothing for an empty file.

        Raises:
            MarketDataError: unreadable, truncated, damaged, encrypted, longer than
                `UNPACKED_RATIO_LIMIT` times its packed size, or a line longer than `LINE_BYTES_LIMIT`.
        """
        with _reading(self.label), self._open() as (stream, packed):
            total, rest = 0, b""
            while chunk := stream.read(size):
                total += len(chunk)
                if packed is not None and total > max(UNPACKED_ALLOWANCE, UNPACKED_RATIO_LIMIT * packed):
                    raise MarketDataError(
                        f"must not unpack to more than {UNPACKED_RATIO_LIMIT} times its {packed} bytes", file=self.label
                    )
                cut = chunk.rfind(b"\n") + 1
                if cut:
                    yield rest + chunk[:cut]
                    rest = chunk[cut:]
                elif len(rest) + len(chunk) > LINE_BYTES_LIMIT:
                    raise MarketDataError(f"a line must be shorter than {LINE_BYTES_LIMIT} bytes", file=self.label)
                else:
                    rest += chunk
            if rest:
                yield rest

    def head(self) -> bytes:
        """The first lines, about 64 KiB of them; empty for an empty file."""
        return next(self.blocks(HEAD_BYTES), b"")

    @contextmanager
    def _open(self) -> Iterator[tuple[_Readable, int | None]]:
        if self.member is not None:
            with zipfile.ZipFile(self.path) as archive, archive.open(self.member) as stream:
                yield stream, archive.getinfo(self.member).compress_size
        elif _magic(self.path).startswith(_GZIP_MAGIC):
            with self.path.open("rb") as stream:
                yield Gunzip(stream), self.path.stat().st_size
        else:
            with self.path.open("rb") as stream:
                yield stream, None


def find_files(path: Path) -> tuple[DataFile, ...]:
    """The text files a path stands for, in order of their names.

    Whether a file is packed is told by its first bytes, not by its name.

    Args:
        path: a file; a folder, searched to the bottom for .csv, .txt, .gz and .zip and without hidden
            files; or a path with *, ? or [ in it. Each .csv or .txt inside a zip archive is a file.

    Raises:
        MarketDataError: there is none; a link leads out of the folder; a glob or a name inside an archive
            climbs up with ..; a damaged archive.
    """
    if path.is_file():
        return tuple(_members([path]))
    wild = next((index for index, part in enumerate(path.parts) if _WILDCARDS & set(part)), None)
    if path.is_dir():
        base, found = path, path.rglob("*")
    elif wild is None:
        raise MarketDataError("file does not exist", file=path)
    else:
        base, pattern = Path(*path.parts[:wild]), Path(*path.parts[wild:])
        if ".." in pattern.parts:
            raise MarketDataError("a glob must not climb up with ..", file=path)
        found = base.glob(str(pattern))
    chosen = sorted(file for file in found if file.is_file() and _is_data(file.relative_to(base)))
    if not chosen:
        raise MarketDataError(f"holds no {', '.join(_SUFFIXES)} file", file=path)
    home = base.resolve()
    for file in chosen:
        if not file.resolve().is_relative_to(home):
            raise MarketDataError(f"a link must not lead out of {base}", file=file)
    return tuple(_members(chosen))


def paths_of(files: Iterable[DataFile]) -> tuple[Path, ...]:
    """The files on disk, each once."""
    return tuple(dict.fromkeys(file.path for file in files))


def _is_data(name: Path) -> bool:
    return name.suffix.lower() in _SUFFIXES and not any(part.startswith(".") for part in name.parts)


def _members(paths: Iterable[Path]) -> Iterator[DataFile]:
    for path in paths:
        with _reading(str(path)):
            if not _magic(path).startswith(_ZIP_MAGIC):
                yield DataFile(path, None, str(path))
                continue
            with zipfile.ZipFile(path) as archive:
                entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        texts = [entry.filename for entry in entries if _is_member(entry, path)]
        if not texts:
            raise MarketDataError(f"archive holds no {' or '.join(_MEMBER_SUFFIXES)} file", file=path)
        for name in sorted(texts):
            yield DataFile(path, name, str(path) if len(texts) == 1 else f"{path}/{name}")


def _is_member(entry: zipfile.ZipInfo, archive: Path) -> bool:
    parts = PurePosixPath(entry.filename.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts:
        raise MarketDataError(f"a name inside an archive must not lead out of it, got {str(parts)!r}", file=archive)
    if entry.flag_bits & _ENCRYPTED:
        raise MarketDataError(f"archive must not be encrypted, but {str(parts)!r} is", file=archive)
    return parts.suffix.lower() in _MEMBER_SUFFIXES and not parts.parts[0].startswith(("__MACOSX", "."))


def _magic(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(2)


@contextmanager
def _reading(label: str) -> Iterator[None]:
    try:
        yield
    except _DAMAGE as error:
        raise MarketDataError(f"not a readable file ({error or type(error).__name__})", file=label) from error
