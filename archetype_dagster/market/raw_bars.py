"""What the records of each bar say by themselves: the part of the building of bars that can be done month by month.

No row of these tables depends on any other bar, so months made apart and put together are what one reading of
all records gives. Whatever looks across bars (recordings' ends, stale books, outliers, segments) is `bar_builder`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.artifacts import read_json, read_table, write_json
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.ingestion import FaultCount
from archetype_dagster.market.record_batches import BAR_END, BarPart
from archetype_dagster.types import JsonDict

REPORT_FILE: Final = "report.json"
_KINDS: Final = ("books", "trades", "candles")


@dataclass(frozen=True)
class RawBars:
    """Tables of bars by kind of record; None where the source holds nothing of a kind.

    Attributes:
        books: last well-formed book inside each bar and the mids seen in it.
        trades: prices and volumes of each bar with a trade.
        candles: prices and volumes of each whole bar; None where there are trades.
    """

    books: BarPart | None = None
    trades: BarPart | None = None
    candles: BarPart | None = None

    def parts(self) -> Iterator[tuple[str, BarPart]]:
        """The tables there are, by the name of their records."""
        for kind in _KINDS:
            part = getattr(self, kind)
            if part is not None:
                yield kind, part

    def check_told(self) -> None:
        """`MarketDataError` where a kind of record that the source has is without a usable one."""
        for kind, part in self.parts():
            if kind == "candles" and part.candle is None:
                malformed = sum(row.count for row in part.faults if row.fault == "malformed_candle")
                raise MarketDataError(
                    f"at least one candle is needed, got {part.records}, of which {malformed} are malformed"
                )
            if not part.records:
                raise MarketDataError(f"at least one record is needed, the source holds no {kind}")

    def report(self) -> JsonDict:
        """Records, bars, first and last time and faults of each kind, as plain JSON values."""
        return {kind: _part_report(part) for kind, part in self.parts()}

    def save(self, directory: Path) -> None:
        """Write a Parquet file for each kind and report.json into an existing folder."""
        for kind, part in self.parts():
            part.rows.write_parquet(directory / f"{kind}.parquet")
        write_json(directory / REPORT_FILE, self.report())

    @classmethod
    def load(cls, directory: Path) -> RawBars:
        """What `save` wrote; `ArtifactError` where it is damaged."""
        report: JsonDict = read_json(directory / REPORT_FILE)
        return cls(**{kind: _loaded(directory / f"{kind}.parquet", told) for kind, told in report.items()})

    @classmethod
    def joined(cls, months: Iterable[RawBars]) -> RawBars:
        """Bars of months that follow each other as one.

        Raises:
            MarketDataError: candles of several lengths.
        """
        parts: dict[str, list[BarPart]] = {}
        for month in months:
            for kind, part in month.parts():
                parts.setdefault(kind, []).append(part)
        return cls(**{kind: _joined(found) for kind, found in parts.items()})


def _part_report(part: BarPart) -> JsonDict:
    return {
        "records": part.records,
        "bars": part.rows.height,
        "first": None if part.first is None else part.first.isoformat(),
        "last": None if part.last is None else part.last.isoformat(),
        "candle_seconds": None if part.candle is None else part.candle.total_seconds(),
        "faults": [asdict(row) for row in part.faults],
    }


def _loaded(file: Path, told: JsonDict) -> BarPart:
    seconds = told["candle_seconds"]
    return BarPart(
        rows=read_table(file),
        records=told["records"],
        first=None if told["first"] is None else datetime.fromisoformat(told["first"]),
        last=None if told["last"] is None else datetime.fromisoformat(told["last"]),
        faults=tuple(FaultCount(**row) for row in told["faults"]),
        candle=None if seconds is None else timedelta(seconds=seconds),
    )


def _joined(parts: Sequence[BarPart]) -> BarPart:
    lengths = sorted({part.candle for part in parts if part.candle is not None})
    if len(lengths) > 1:
        raise MarketDataError(f"candles must be of one length, got {lengths[0]} and {lengths[1]}", field="close_time")
    # Months may have seen books of different depth.
    rows = pl.concat([part.rows for part in parts], how="diagonal", rechunk=True).sort(BAR_END)
    faults: dict[tuple[str, str], FaultCount] = {}
    for row in (row for part in parts for row in part.faults):
        known = faults.get((row.fault, row.unit))
        faults[row.fault, row.unit] = row if known is None else replace(row, count=known.count + row.count)
    return BarPart(
        rows=rows,
        records=sum(part.records for part in parts),
        first=min((part.first for part in parts if part.first is not None), default=None),
        last=max((part.last for part in parts if part.last is not None), default=None),
        faults=tuple(faults.values()),
        candle=lengths[0] if lengths else None,
    )
