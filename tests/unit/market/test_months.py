"""Months built apart are, put together, what one reading of all files gives."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.files import find_files
from archetype_dagster.market.months import bars_of_months, covered_months, month_bars, month_files
from archetype_dagster.market.period import Period, files_of_period, named_days
from archetype_dagster.market.raw_bars import RawBars
from archetype_dagster.market.sources import bars_with_report
from archetype_dagster.settings import MarketSettings, Settings, load_settings

LEVELS = 5
DAYS = (date(2024, 1, 31), date(2024, 2, 1), date(2024, 3, 31), date(2024, 4, 1))
LATE = date(2024, 1, 31)


def micros(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000_000)


def book_row(time: int) -> str:
    mid = 40_000 + time // 7_000_000 % 50
    # Now and then a locked book, one that is impossible and one that repeats the time before.
    half = 0.0 if time // 20_000_000 % 31 == 0 else -1.0 if time // 20_000_000 % 47 == 0 else 0.5
    cells = [f"{mid + side * (half + level)},{level + 1 + time % 3}" for level in range(LEVELS) for side in (1, -1)]
    return f"binance,BTCUSDT,{time},{time},{','.join(cells)}"


def trade_row(time: int, number: int) -> str:
    # One print far away, in the last bar of a month.
    price = 60_000.0 if number == 2_879 else 40_000.5 + number % 13
    side = "buy" if number % 3 else "sell"
    return f"binance,BTCUSDT,{time},{time},{number},{side},{price},{0.1 * (number % 5 + 1):.3f}"


def write(file: Path, header: str, rows: Iterator[str]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress("\n".join([header, *rows, ""]).encode(), compresslevel=1))


def name(kind: str, day: date) -> str:
    return f"{kind}/binance_{kind}_{day}_BTCUSDT.csv.gz"


def write_day(folder: Path, day: date) -> None:
    start = micros(datetime(day.year, day.month, day.day, tzinfo=UTC))
    # From the very first instant of the day on: that book is of the bar that ends there.
    times = [start + 20_000_000 * n for n in range(4_320) if not 2_000 <= n < 2_050]
    times += [start + 86_400_000_000 + 150_000] if day == LATE else []
    columns = ",".join(
        f"{side}s[{level}].{what}" for level in range(LEVELS) for side in ("ask", "bid") for what in ("price", "amount")
    )
    head = "exchange,symbol,timestamp,local_timestamp"
    write(folder / name("book_snapshot_5", day), f"{head},{columns}", map(book_row, times))
    trades = ((start + 30_000_000 * n + 1_000_000, n) for n in range(2_880))
    write(folder / name("trades", day), f"{head},id,side,price,amount", (trade_row(*trade) for trade in trades))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Books and trades of four days around two borders of months, with a month and a half missing between them."""
    folder = tmp_path_factory.mktemp("archive")
    for day in DAYS:
        write_day(folder, day)
    return folder


def settings_of(folder: Path, **changes: object) -> Settings:
    chosen = {
        "market.source": "tardis-book-snapshot",
        "market.path": str(folder / "book_snapshot_5"),
        "market.prices_source": "tardis-trades",
        "market.prices_path": str(folder / "trades"),
        "market.book_levels": 5,
    }
    return load_settings("smoke", {**chosen, **changes})


def apart(settings: Settings, folder: Path | None = None) -> list[RawBars]:
    """Every month, saved and read back where a folder is given."""
    market, pair = settings.market, settings.pair("BTC")
    months = []
    for month in covered_months(market, pair):
        made = month_bars(market, pair, month)
        if folder is not None:
            (folder / month).mkdir()
            made.save(folder / month)
            made = RawBars.load(folder / month)
        months.append(made)
    return months


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"market.ingestion.stale_book": "keep", "market.ingestion.price_outlier": "drop"},
        {"market.bar_minutes": 7},
        {"market.bar_minutes": 1, "market.ingestion.quiet_bar": "drop", "market.ingestion.stale_seconds": 10},
    ],
)
def test_months_built_apart_equal_one_reading_bit_for_bit(archive: Path, tmp_path: Path, changes: dict) -> None:
    settings = settings_of(archive, **changes)
    whole, report = bars_with_report(settings, "BTC")
    bars, found = bars_of_months(apart(settings, tmp_path), settings, "BTC")
    assert bars.equals(whole)
    assert found == report
    assert report.segments >= 2
    whole.write_parquet(tmp_path / "whole.parquet")
    bars.write_parquet(tmp_path / "months.parquet")
    assert (tmp_path / "whole.parquet").read_bytes() == (tmp_path / "months.parquet").read_bytes()


def test_the_book_of_the_very_midnight_is_in_the_bar_that_ends_there(archive: Path) -> None:
    settings = settings_of(archive)
    january = month_bars(settings.market, settings.pair("BTC"), "2024-01")
    assert january.books is not None
    last = january.books.rows.row(-1, named=True)
    assert last["timestamp"] == last["book_time"] == datetime(2024, 2, 1, tzinfo=UTC)


def test_a_month_reads_its_files_the_one_before_and_for_books_the_one_after(archive: Path) -> None:
    settings = settings_of(archive)
    market, pair = settings.market, settings.pair("BTC")
    assert covered_months(market, pair) == ["2024-01", "2024-02", "2024-03", "2024-04"]

    def read(month: str) -> set[str]:
        return {str(file.relative_to(archive)) for file in month_files(market, pair, month)}

    first, second, third, fourth = DAYS
    assert read("2024-01") == {name("book_snapshot_5", first), name("book_snapshot_5", second), name("trades", first)}
    assert read("2024-02") == {name(kind, day) for kind in ("book_snapshot_5", "trades") for day in (first, second)}
    assert read("2024-04") == {name(kind, day) for kind in ("book_snapshot_5", "trades") for day in (third, fourth)}
    assert read("2024-05") == set()
    assert not any(month_bars(market, pair, "2024-05").parts())


def test_a_month_left_out_is_a_gap_and_one_without_records_says_so(archive: Path) -> None:
    settings = settings_of(archive)
    months = apart(settings)
    whole, _ = bars_with_report(settings, "BTC")
    bars, report = bars_of_months([months[0], RawBars(), months[3]], settings, "BTC")
    assert report.segments == bars["segment"].n_unique() >= 2
    kept = whole.filter(
        (pl.col("timestamp") <= datetime(2024, 2, 1, tzinfo=UTC)) | (pl.col("timestamp").dt.month() == 4)
    )
    # Midnight of April 1 belongs to March.
    kept = kept.filter(pl.col("timestamp") != datetime(2024, 4, 1, tzinfo=UTC))
    assert bars.drop("segment").equals(kept.drop("segment"))
    with pytest.raises(MarketDataError, match="no month of BTC holds a record"):
        bars_of_months([RawBars()], settings, "BTC")


def test_files_that_name_no_day_are_read_for_every_month(archive: Path, tmp_path: Path) -> None:
    for number, day in enumerate(DAYS):
        for kind in ("book_snapshot_5", "trades"):
            (tmp_path / kind).mkdir(exist_ok=True)
            shutil.copy(archive / name(kind, day), tmp_path / kind / f"part{number}.csv.gz")
    settings = settings_of(tmp_path, **{"market.bar_minutes": 60})
    market, pair = settings.market, settings.pair("BTC")
    assert covered_months(market, pair) == ["2024-01", "2024-02", "2024-03", "2024-04"]
    assert len(month_files(market, pair, "2024-02")) == 2 * len(DAYS)
    whole, report = bars_with_report(settings, "BTC")
    bars, found = bars_of_months(apart(settings), settings, "BTC")
    assert bars.equals(whole)
    assert found == report


def test_records_outside_the_days_of_their_file_are_refused(archive: Path, tmp_path: Path) -> None:
    shutil.copytree(archive, tmp_path, dirs_exist_ok=True)
    # A file cut at another zone's midnight: its first hours are of the month before.
    (tmp_path / name("trades", DAYS[1])).rename(tmp_path / name("trades", date(2024, 3, 1)))
    settings = settings_of(tmp_path)
    with pytest.raises(MarketDataError, match="files named for 2024-03-01 to 2024-03-31 must hold records of those"):
        month_bars(settings.market, settings.pair("BTC"), "2024-03")


@pytest.mark.parametrize(
    ("file", "days"),
    [
        ("trades/binance_trades_2024-02-29_BTCUSDT.csv.gz", ("2024-02-29", "2024-03-01")),
        ("binance/trades/2024/12/31/BTCUSDT.csv.gz", ("2024-12-31", "2025-01-01")),
        ("BTCUSDT-1m-2024-02.zip", ("2024-02-01", "2024-03-01")),
        ("BTCUSDT-aggTrades-2024-12-31.zip", ("2024-12-31", "2025-01-01")),
        ("BTCUSDT-trades-2024-13.zip", None),
        ("BTCUSDT.csv", None),
    ],
)
def test_names_tell_days(file: str, days: tuple[str, str] | None) -> None:
    found = named_days(Path(file))
    assert (None if found is None else (str(found.first), str(found.end))) == days


def test_monthly_files_need_no_neighbour(tmp_path: Path) -> None:
    for month in ("2024-01", "2024-02", "2024-03"):
        (tmp_path / f"BTCUSDT-1m-{month}.csv").write_text("")
    files = find_files(tmp_path)
    period = Period.of_month("2024-02", 10)
    assert [file.path.name for file in files_of_period(files, period, includes_end=False)] == ["BTCUSDT-1m-2024-02.csv"]
    assert files_of_period(files, None, includes_end=False) == files


def test_candles_of_two_lengths_are_refused_across_months(tmp_path: Path) -> None:
    for month, minutes in (("2024-01", 5), ("2024-02", 10)):
        start = micros(datetime.fromisoformat(f"{month}-01T00:00:00+00:00")) // 1000
        step = minutes * 60_000
        rows = [f"{start + n * step},1,2,1,2,3,{start + (n + 1) * step - 1},0,1,1,0,0" for n in range(100)]
        (tmp_path / f"BTCUSDT-5m-{month}.csv").write_text("\n".join(rows))
    settings = load_settings("smoke", {"market.source": "binance-klines", "market.path": str(tmp_path)})
    with pytest.raises(MarketDataError, match=r"one length, got 0:05:00 and 0:10:00"):
        bars_of_months(apart(settings), settings, "BTC")


def test_an_incremental_book_must_start_anew_in_a_months_first_file(tmp_path: Path) -> None:
    head = "exchange,symbol,timestamp,local_timestamp,is_snapshot,side,price,amount"
    for day, snapshot in ((date(2024, 1, 1), "true"), (date(2024, 1, 31), "false"), (date(2024, 2, 1), "true")):
        time = micros(datetime(day.year, day.month, day.day, tzinfo=UTC)) + 1_000_000
        sides = [
            f"binance,BTCUSDT,{time},{time},{snapshot},{side},{price},1" for side, price in (("bid", 9), ("ask", 11))
        ]
        write(tmp_path / f"binance_incremental_book_L2_{day}_BTCUSDT.csv.gz", head, iter(sides))
    market = MarketSettings(source="tardis-incremental-book", path=tmp_path)
    pair = Settings().pair("BTC")
    assert month_bars(market, pair, "2024-01").books is not None
    with pytest.raises(MarketDataError, match="first file must begin with a snapshot of the book"):
        month_bars(market, pair, "2024-02")


def test_only_a_vendors_data_has_months() -> None:
    with pytest.raises(
        MarketDataError, match=r"months are built of a vendor's raw data, got market\.source 'synthetic'"
    ):
        covered_months(MarketSettings(), Settings().pair("BTC"))


def test_a_period_reaches_back_to_the_start_of_its_first_bar() -> None:
    period = Period.of_month("2024-03", 7)
    assert timedelta(0) < period.after - period.begins < timedelta(minutes=7)
    assert period.ends < period.until
    with pytest.raises(ValueError, match="a month must be YYYY-MM, got '2024-2'"):
        Period.of_month("2024-2", 7)
