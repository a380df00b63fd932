"""Tables of recorders, bots and the reference project give the same canonical records whatever file they lie in."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.raw import CANDLES_SCHEMA, TRADES_SCHEMA, RawMarket, books_schema
from archetype_dagster.market.sources import source_files
from archetype_dagster.market.vendors import SOURCES
from archetype_dagster.settings import MarketSettings, load_settings

PAIR = load_settings("smoke").pair("BTC")
START = datetime(2024, 1, 1, tzinfo=UTC)
START_MS = 1_704_067_200_000
CANDLES = pl.DataFrame(
    {
        "open_time": [START_MS + 300_000 * n for n in range(4)],
        "open": [1.0, 2.0, 3.0, 4.0],
        "high": [2.0, 3.0, 4.0, 5.5],
        "low": [0.5, 1.5, 2.5, 3.5],
        "close": [2.0, 3.0, 4.0, 5.0],
        "volume": [10.0, 11.0, 12.0, 13.0],
    }
)
BOOKS = pl.DataFrame(
    {
        "ts_ms": [START_MS + 1_000, START_MS + 2_000],
        **{
            f"{side}{level}_{field}": values
            for side, sign in (("bid", -1), ("ask", 1))
            for level in range(1, 6)
            for field, values in (
                ("price", [100.0 + sign * level, 101.0 + sign * level]),
                ("size", [float(level), 0.5]),
            )
        },
    }
)


def read(source: str, path: Path) -> RawMarket:
    return SOURCES[source].read(path, PAIR)


def collected(frame: pl.LazyFrame | None) -> pl.DataFrame:
    assert frame is not None
    return frame.collect()


def times(name: str) -> pl.Expr:
    return pl.from_epoch(name, time_unit="ms").dt.cast_time_unit("us").dt.replace_time_zone("UTC")


def write_json(frame: pl.DataFrame, file: Path) -> None:
    text = json.dumps([list(row) for row in frame.rows()]).encode()
    file.write_bytes(gzip.compress(text) if file.suffix == ".gz" else text)


def write_zip(frame: pl.DataFrame, file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("candles.csv", frame.write_csv())


def write_objects(frame: pl.DataFrame, file: Path) -> None:
    file.write_text(json.dumps(frame.to_dicts()))


def bot(frame: pl.DataFrame) -> pl.DataFrame:
    """As a bot's data frame: `date` with a zone, in milliseconds."""
    return frame.select(times("open_time").dt.cast_time_unit("ms").alias("date"), *CANDLES.columns[1:])


FILES: dict[str, Callable[[pl.DataFrame, Path], Any]] = {
    "BTCUSDT.parquet": lambda frame, file: frame.write_parquet(file),
    "BTC_USDT-5m.feather": lambda frame, file: bot(frame).write_ipc(file, compression="lz4"),
    "BTC_USDT-5m.json": write_json,
    "BTC_USDT-5m.json.gz": write_json,
    "btc-usdt.json": write_objects,
    "BTC.csv": lambda frame, file: frame.write_csv(file),
    "BTCUSDT.zip": write_zip,
    "BTCUSDT-naive.parquet": lambda frame, file: (
        bot(frame).with_columns(pl.col("date").dt.replace_time_zone(None)).write_parquet(file)
    ),
    "BTCUSDT-text.csv": lambda frame, file: (
        bot(frame).with_columns(pl.col("date").dt.strftime("%Y-%m-%dT%H:%M:%S+00:00")).write_csv(file)
    ),
    "BTCUSDT-us.parquet": lambda frame, file: frame.with_columns(pl.col("open_time") * 1000).write_parquet(file),
    "BTCUSDT-ns.parquet": lambda frame, file: frame.with_columns(pl.col("open_time") * 10**6).write_parquet(file),
}


@pytest.mark.parametrize("name", FILES)
def test_candles_are_the_same_from_every_kind_of_file(tmp_path: Path, name: str) -> None:
    # Rows out of order and files of other pairs change nothing.
    FILES[name](CANDLES[[2, 0, 1, 3]], tmp_path / name)
    CANDLES.write_parquet(tmp_path / "ETHUSDT.parquet")
    found = collected(read("candles", tmp_path).candles)
    assert found.schema == CANDLES_SCHEMA
    assert found["open_time"].to_list() == [START + timedelta(minutes=5 * n) for n in range(4)]
    assert (found["close_time"] - found["open_time"]).unique().to_list() == [timedelta(minutes=5)]
    assert found.select(CANDLES.columns[1:]).equals(CANDLES.drop("open_time"))
    assert found["taker_buy_volume"].null_count() == 4
    assert collected(read("candles", tmp_path / name).candles).equals(found)
    assert collected(read("candles", tmp_path / f"?{name[1:]}").candles).equals(found)
    market = MarketSettings(source="candles", path=tmp_path)
    assert source_files(market, PAIR) == [tmp_path / name]


def test_several_files_are_one_series_in_order_of_time(tmp_path: Path) -> None:
    CANDLES[2:].write_parquet(tmp_path / "BTCUSDT-a.parquet")
    CANDLES[:2].write_csv(tmp_path / "BTCUSDT-b.csv")
    assert collected(read("candles", tmp_path).candles)["open"].to_list() == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda frame: frame.drop("volume"), "field volume: candles must have this column"),
        (lambda frame: frame.rename({"open_time": "when"}), "no clock: a row's time must stand in open_time"),
        (lambda frame: frame[:1], "two candles are needed to tell their length"),
        (lambda frame: frame[:0], "table has no rows"),
        (lambda frame: frame.with_columns(open_time=pl.lit("noon")), "must be ISO 8601 in UTC, got 'noon'"),
        (lambda frame: frame.with_columns(open_time=pl.lit(17)), "time must be milliseconds or microseconds"),
        (lambda frame: frame.with_columns(pl.lit(None).cast(pl.Int64).alias("open_time")), "time must not be null"),
        (lambda frame: frame.with_columns(open_time=pl.lit(1.5)), "time must be an integer, a time or text"),
    ],
)
def test_what_is_no_candle_table_is_refused_with_its_file(
    tmp_path: Path, change: Callable[[pl.DataFrame], pl.DataFrame], message: str
) -> None:
    file = tmp_path / "BTCUSDT.parquet"
    change(CANDLES).write_parquet(file)
    with pytest.raises(MarketDataError, match=message) as caught:
        collected(read("candles", file).candles)
    assert caught.value.file == str(file)


@pytest.mark.parametrize("name", ["BTC.parquet", "BTC.feather", "BTC.json", "BTC.json.gz", "BTC.csv", "BTC.zip"])
def test_damaged_files_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe")
    with pytest.raises(MarketDataError):
        read("candles", tmp_path / name)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("")
    with pytest.raises(MarketDataError, match=r"it holds no \.parquet, \.feather"):
        read("candles", tmp_path)
    with pytest.raises(MarketDataError, match="file does not exist"):
        read("book-table", tmp_path / "nowhere.parquet")
    with pytest.raises(MarketDataError, match="file does not exist"):
        read("book-table", tmp_path / "*.parquet")
    with pytest.raises(MarketDataError, match=r"a table must be a .* file"):
        read("candles", tmp_path / "notes.md")
    with pytest.raises(MarketDataError, match=r"a glob must not climb up with \.\."):
        read("candles", tmp_path / "*" / ".." / "x.csv")


def test_wide_list_and_relative_tables_give_the_same_books(tmp_path: Path) -> None:
    def level(side: str, field: str) -> list[str]:
        return [f"{side}{n}_{field}" for n in range(1, 6)]

    lists = BOOKS.select(
        "ts_ms",
        *[
            pl.concat_list(level(side, field)).alias(f"{side}s_{short}")
            for side in ("bid", "ask")
            for field, short in (("price", "px"), ("size", "qty"))
        ],
    )
    mid = (pl.col("bid1_price") + pl.col("ask1_price")) / 2
    relative = BOOKS.select(
        times("ts_ms").dt.strftime("%Y-%m-%d %H:%M:%S%.6f+00:00").alias("system_time"),
        mid.alias("midpoint"),
        *[
            expression
            for side in ("bid", "ask")
            for n in range(5)
            for price, size in [(pl.col(f"{side}{n + 1}_price"), pl.col(f"{side}{n + 1}_size"))]
            for expression in (
                (price / mid - 1).alias(f"{side}s_distance_{n}"),
                (price * size).alias(f"{side}s_notional_{n}"),
            )
        ],
    )
    files = {"wide.parquet": BOOKS, "lists.parquet": lists, "relative.csv": relative, "wide.csv": BOOKS}
    for name, frame in files.items():
        frame.write_csv(tmp_path / name) if name.endswith("csv") else frame.write_parquet(tmp_path / name)
        found = collected(read("book-table", tmp_path / name).books)
        assert found.schema == books_schema(5)
        assert found["timestamp"].to_list() == [START + timedelta(seconds=n) for n in (1, 2)]
        for side in ("bid", "ask"):
            for field in ("price", "size"):
                columns = level(side, field)
                assert found.select(columns).to_numpy() == pytest.approx(BOOKS.select(columns).to_numpy(), rel=1e-12)


def test_levels_of_nothing_and_lists_that_end_early_are_no_levels(tmp_path: Path) -> None:
    gone = {f"ask5_{field}": pl.lit(0.0) for field in ("price", "size")}
    BOOKS.with_columns(**gone).write_parquet(tmp_path / "wide.parquet")
    found = collected(read("book-table", tmp_path / "wide.parquet").books)
    assert found["ask5_price"].null_count() == found["ask5_size"].null_count() == 2
    lists = {f"{side}s_{field}": [[1.0], [1.0, 2.0]] for side in ("bid", "ask") for field in ("px", "qty")}
    pl.DataFrame({"ts_ms": [START_MS, START_MS + 1], **lists}).write_parquet(tmp_path / "lists.parquet")
    assert collected(read("book-table", tmp_path / "lists.parquet").books)["bid2_price"].to_list() == [None, 2.0]


def test_trades_and_books_of_a_folder_are_told_apart(tmp_path: Path) -> None:
    BOOKS.write_parquet(tmp_path / "btcusdt_book.parquet")
    trades = {"ts_ms": [START_MS + 9, START_MS], "price": [2.0, 1.0], "qty": [0.5, 0.25]}
    number = {"side": ["BUY", "sell"], "trade_id": ["18", "17"]}
    pl.DataFrame(trades | number).write_parquet(tmp_path / "btcusdt_trades.parquet")
    raw = read("book-table", tmp_path)
    assert raw.candles is None
    assert collected(raw.books).height == 2
    found = collected(raw.trades)
    assert found.schema == TRADES_SCHEMA
    assert found.rows() == [
        (START, 1.0, 0.25, False, 17),
        (START + timedelta(milliseconds=9), 2.0, 0.5, True, 18),
    ]
    CANDLES.drop("open").write_parquet(tmp_path / "btcusdt_other.parquet")
    with pytest.raises(MarketDataError, match=r"a table must hold books .* trades .* or candles"):
        read("book-table", tmp_path)


def reference_rows(first: int, rows: int) -> pl.DataFrame:
    step = pl.int_range(first, first + rows, eager=True)
    prices = dict.fromkeys(("open", "high", "low", "close"), 100.0 + step)
    book = {
        f"{side}{level}_{field}": (100.0 + sign * level + step if field == "price" else 2.0 + 0.0 * step)
        for side, sign in (("bid", -1), ("ask", 1))
        for level in range(1, 6)
        for field in ("price", "size")
    }
    start = pl.Series([START.replace(tzinfo=None) + timedelta(minutes=10 * n) for n in step])
    return pl.DataFrame({"timestamp": start, **prices, "volume": 5.0 + step, **book, "wap_1": -1.0 + 0.0 * step})


def test_the_reference_files_are_one_series_whose_rows_are_known_at_their_bars_end(tmp_path: Path) -> None:
    folder = tmp_path / "BTC"
    folder.mkdir()
    for first, name in ((0, "train"), (3, "val"), (6, "test")):
        reference_rows(first, 3).write_ipc(folder / f"df_{name}.feather")
    for path in (tmp_path, folder):
        raw = read("reference-feather", path)
        candles, books = collected(raw.candles), collected(raw.books)
        assert candles["open"].to_list() == [100.0 + n for n in range(9)]
        assert candles["volume"].to_list() == [5.0 + n for n in range(9)]
        assert books["timestamp"].to_list() == [START + timedelta(minutes=10 * (n + 1)) for n in range(9)]
        assert books["timestamp"].equals(candles["close_time"].alias("timestamp"))
        assert books["bid1_price"].to_list() == [99.0 + n for n in range(9)]
    assert len(source_files(MarketSettings(source="reference-feather", path=tmp_path), PAIR)) == 3


def test_a_reference_file_whose_volume_is_the_visible_depth_is_refused(tmp_path: Path) -> None:
    reference_rows(0, 3).with_columns(volume=pl.lit(20.0)).write_ipc(tmp_path / "df_train.feather")
    with pytest.raises(MarketDataError, match="field volume: volume must be what was traded"):
        read("reference-feather", tmp_path)
    traded = reference_rows(0, 3).with_columns(volume=pl.lit(20.0), total_trade_volume=pl.lit(7.0))
    traded.write_ipc(tmp_path / "df_train.feather")
    assert collected(read("reference-feather", tmp_path).candles)["volume"].to_list() == [7.0, 7.0, 7.0]
    with pytest.raises(MarketDataError, match=r"must hold df_train.feather, .* or a folder BTCUSDT or BTC"):
        read("reference-feather", tmp_path / "nothing")
