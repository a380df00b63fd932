"""Opening Parquet, Feather, JSON and CSV files as tables: what recorders and trading bots store.

Which of a folder's files are a pair's is told here; what the columns mean is the vendors' work.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.delimited import Layout, RowBlock, read_blocks
from archetype_dagster.market.files import UNPACKED_ALLOWANCE, UNPACKED_RATIO_LIMIT, DataFile, find_files
from archetype_dagster.market.record_batches import batch_rows
from archetype_dagster.market.tables import CLOCKS, Table
from archetype_dagster.settings import PairSettings

JSON_ROW: Final = ("open_time", "open", "high", "low", "close", "volume")
"""Columns of a JSON file that holds rows without names, as candles are stored."""

_HEAD_ROWS: Final = 1_000
_JSON_LIMIT: Final = 2**30
_ARROW: Final = (".feather", ".arrow", ".ipc")
_JSON: Final = (".json", ".json.gz")
_TEXT: Final = (".csv", ".txt", ".csv.gz", ".zip")
_SUFFIXES: Final = (".parquet", *_ARROW, *_JSON, *_TEXT)


def open_tables(path: Path, pair: PairSettings) -> tuple[Table, ...]:
    """The tables a path stands for.

    Args:
        path: a file; a glob, all of whose files are taken; or a folder, of which the files count that have
            the pair in their name, like BTCUSDT-5m.parquet, spot_btc_usdt.csv or BTC.feather.
        pair: the pair wanted.

    Raises:
        MarketDataError: there is none, or one is empty, damaged or of an unknown format.
    """
    return tuple(table for file in find_table_files(path, pair) for table in _open(file))


def find_table_files(path: Path, pair: PairSettings) -> list[Path]:
    """The files of `open_tables`, by name."""
    if path.is_file():
        return [path]
    if path.is_dir():
        there = sorted(file for file in path.iterdir() if file.is_file() and _suffix(file) is not None)
        name = re.compile(rf"(?<![a-z0-9]){pair.base}([-_]?{pair.quote})?(?![a-z0-9])", re.IGNORECASE)
        chosen = [file for file in there if name.search(file.name)]
        if not chosen:
            found = ", ".join(file.name for file in there[:12]) or f"no {', '.join(_SUFFIXES)} file"
            raise MarketDataError(
                f"folder must hold a file with {pair.base}{pair.quote} or {pair.base} in its name, it holds {found}",
                file=path,
            )
        return chosen
    if any(mark in str(path) for mark in "*?["):
        anchor = next(parent for parent in path.parents if not any(mark in str(parent) for mark in "*?["))
        pattern = str(path.relative_to(anchor))
        if ".." in Path(pattern).parts:
            raise MarketDataError("a glob must not climb up with ..", file=path)
        chosen = sorted(file for file in anchor.glob(pattern) if file.is_file() and _suffix(file) is not None)
        if chosen:
            return chosen
    raise MarketDataError("file does not exist", file=path)


def _suffix(file: Path) -> str | None:
    name = file.name.lower()
    return next((suffix for suffix in sorted(_SUFFIXES, key=len, reverse=True) if name.endswith(suffix)), None)


def _open(file: Path) -> list[Table]:
    suffix = _suffix(file)
    if suffix == ".parquet":
        return [_scanned(file, pl.scan_parquet)]
    if suffix in _ARROW:
        return [_scanned(file, pl.scan_ipc)]
    if suffix in _JSON:
        return [_json_table(file)]
    if suffix in _TEXT:
        return [_text_table(text) for text in find_files(file)]
    raise MarketDataError(f"a table must be a {', '.join(_SUFFIXES)} file", file=file)


def _scanned(file: Path, scan: Callable[[Path], pl.LazyFrame]) -> Table:
    def blocks(columns: Sequence[str]) -> Iterator[RowBlock]:
        first_row = 0
        try:
            for batch in (
                scan(file).select(columns).collect_batches(chunk_size=batch_rows(len(columns)), maintain_order=True)
            ):
                yield RowBlock(batch, str(file), first_row)
                first_row += batch.height
        except (pl.exceptions.PolarsError, OSError) as error:
            raise MarketDataError(f"not a readable {file.suffix[1:]} file ({error})", file=file) from error

    try:
        head = scan(file).head(_HEAD_ROWS).collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise MarketDataError(f"not a readable {file.suffix[1:]} file ({error})", file=file) from error
    return _table(str(file), head, blocks)


def _json_table(file: Path) -> Table:
    try:
        limit = min(_JSON_LIMIT, max(UNPACKED_ALLOWANCE, UNPACKED_RATIO_LIMIT * file.stat().st_size))
        with (gzip.open if file.suffix == ".gz" else open)(file, "rb") as stream:
            content = stream.read(limit + 1)
        rows = json.loads(content) if len(content) <= limit else None
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise MarketDataError(f"not a readable JSON file ({error})", file=file) from error
    if not isinstance(rows, list) or not rows:
        raise MarketDataError(f"a JSON table must be a list of rows of at most {limit} bytes", file=file)
    try:
        if isinstance(rows[0], list):
            frame = pl.DataFrame(rows, schema=list(JSON_ROW), orient="row", infer_schema_length=None)
        else:
            frame = pl.DataFrame(rows, infer_schema_length=None)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise MarketDataError(f"not a JSON table ({error})", file=file) from error

    def blocks(columns: Sequence[str]) -> Iterator[RowBlock]:
        yield RowBlock(frame.select(columns), str(file), 0)

    return _table(str(file), frame.head(_HEAD_ROWS), blocks)


def _text_table(file: DataFile) -> Table:
    try:
        head = pl.read_csv(file.head(), n_rows=_HEAD_ROWS, infer_schema_length=_HEAD_ROWS)
    except pl.exceptions.PolarsError as error:
        raise MarketDataError(f"not a readable CSV table ({error})", file=file.label) from error

    def dtype(name: str) -> pl.DataType:
        found = head.schema[name]
        # What is whole or missing in the first rows may be broken later on; a time never is.
        return pl.Float64() if name not in CLOCKS and (found.is_numeric() or found == pl.Null()) else found

    def blocks(columns: Sequence[str]) -> Iterator[RowBlock]:
        layout = Layout("a table", {name: dtype(name) for name in columns}, columns[0], [head.columns])
        return read_blocks(file, layout)

    return _table(file.label, head, blocks)


def _table(label: str, head: pl.DataFrame, scan: Callable[[Sequence[str]], Iterator[RowBlock]]) -> Table:
    if head.is_empty():
        raise MarketDataError("table has no rows", file=label)
    return Table(label, head, scan)
