"""Files of bars as a feed: one file or a folder of them, as they lie or followed while they are being written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.paper_trading.bar_tables import SUFFIXES, read_bar_table
from archetype_dagster.paper_trading.feeds import FeedBar

_AT_ONCE: Final = 256
_CURSOR: Final = re.compile(rf"(.+(?:{'|'.join(map(re.escape, SUFFIXES))})):(0|[1-9][0-9]*)", re.DOTALL)


class _Stamp(NamedTuple):
    """What changes when a file is written to or replaced."""

    size: int
    modified: int
    inode: int


class FileFeed:
    """Parquet and CSV files in the bars schema, those of a folder by name, which must follow the bars' times.

    A file that has grown, or was replaced by a longer one, is read on from the row after the last one delivered;
    that one must end when it did, in this process or in the journal, or the file is of another feed.
    While following, a half-written file is not read: names that begin with a dot or end in anything but
    .parquet and .csv are passed over, so that a writer may write to such a name and rename; any other file
    is read once its size and time of change were the same at two looks, between which a poll gave none, and it
    reads as a whole table with every row delivered before; the files after it wait until then, lest its bars
    come late.

    Args:
        path: a file or a folder.
        follow: whether rows and files may still come.

    Attributes:
        unreadable: by name, files that were not whole when last looked at, with the reason.

    Raises:
        MarketDataError: nothing is there, or, where it is not followed, no file of bars.
    """

    def __init__(self, path: Path, *, follow: bool) -> None:
        self._path = path
        self._follow = follow
        self._delivered: dict[str, int] = {}
        self._ends: dict[str, tuple[int, datetime]] = {}
        self._resumed: str | None = None
        self._gave = False
        self._seen: dict[str, _Stamp] = {}
        self._read: dict[str, _Stamp] = {}
        self._bars: Iterator[FeedBar] = iter(())
        self.unreadable: dict[str, str] = {}
        if not path.exists():
            raise MarketDataError("file or folder does not exist", file=path)
        if not path.is_dir() and path.suffix not in SUFFIXES:
            raise MarketDataError(f"a file of bars must be one of {', '.join(SUFFIXES)}", file=path)
        if not follow and not self._files():
            raise MarketDataError(f"folder must hold {' or '.join(SUFFIXES)} files of bars", file=path)

    @property
    def ended(self) -> bool:
        """See `MarketFeed.ended`."""
        return not self._follow

    def resume(self, cursor: str, end: datetime | None) -> None:
        """See `MarketFeed.resume`; files read to their end before that of the last cursor may be gone."""
        place = _CURSOR.fullmatch(cursor)
        if place is None:
            rule = f"a cursor of files of bars is NAME:ROW, the journal has {cursor!r}"
            raise MarketDataError(f"{rule}; the journal is of another feed", file=self._path)
        self._resumed, row = place[1], int(place[2])
        self._delivered[self._resumed] = row + 1
        if end is not None:
            self._ends[self._resumed] = row, end

    def poll(self) -> Sequence[FeedBar]:
        """See `MarketFeed.poll`."""
        bars = list(islice(self._bars, _AT_ONCE))
        # A look right after bars were given would find a file that is being written as it was.
        if not bars and not self._gave:
            self._bars = self._new_bars()
            bars = list(islice(self._bars, _AT_ONCE))
        self._gave = bool(bars)
        return bars

    def _files(self) -> list[Path]:
        if not self._path.is_dir():
            return [self._path]
        entries = (entry for entry in self._path.iterdir() if entry.suffix in SUFFIXES)
        return sorted(entry for entry in entries if entry.is_file() and not entry.name.startswith("."))

    def _new_bars(self) -> Iterator[FeedBar]:
        before, stamps = self._seen, {path: _stamp(path) for path in self._files()}
        if self._resumed is not None and self._resumed not in (path.name for path in stamps):
            rule = f"no file {self._resumed} is there, after whose bars the journal goes on"
            raise MarketDataError(f"{rule}; another feed needs a journal of its own", file=self._path)
        self._resumed = None
        self._seen = {path.name: stamp for path, stamp in stamps.items() if stamp is not None}
        for path, stamp in stamps.items():
            if stamp is None or self._read.get(path.name) == stamp:
                continue
            if self._follow and before.get(path.name) != stamp:
                # The bars of files after this one would make its own late.
                return
            yield from self._rows(path, stamp)
            if path.name in self.unreadable:
                return

    def _rows(self, path: Path, stamp: _Stamp) -> Iterator[FeedBar]:
        try:
            table = read_bar_table(path, growing=self._follow)
        except MarketDataError as error:
            if not self._follow:
                raise
            # Possibly still being written; the stale-data limit ends the wait.
            self.unreadable[path.name] = str(error)
            return
        first = self._delivered.get(path.name, 0)
        if table.height < first:
            rule = f"has {table.height} rows, {first} were read of it before"
            if not self._follow:
                raise MarketDataError(rule, file=path)
            # Possibly being written anew in its place.
            self.unreadable[path.name] = rule
            return
        self.unreadable.pop(path.name, None)
        self._compare(path, table)
        for row, values in enumerate(table[first:].iter_rows(named=True), first):
            self._delivered[path.name] = row + 1
            if values["timestamp"] is not None:
                self._ends[path.name] = row, values["timestamp"]
            yield FeedBar(values, f"{path.name}:{row}")
        self._read[path.name] = stamp

    def _compare(self, path: Path, table: pl.DataFrame) -> None:
        """Require the last bar delivered of a file, of those that tell their end, to stand where it stood."""
        if path.name not in self._ends:
            return
        row, end = self._ends[path.name]
        found = table["timestamp"][row]
        if found != end:
            now = "at no time that can be read" if found is None else f"at {found.isoformat()}"
            rule = f"the bar read here before ended at {end.isoformat()}, the one here now ends {now}"
            raise MarketDataError(f"{rule}; another feed needs a journal of its own", file=path, row=row)


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return _Stamp(status.st_size, status.st_mtime_ns, status.st_ino)
