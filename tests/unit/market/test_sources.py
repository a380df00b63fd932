"""Every source gives valid bars, and every fault names its file."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError, SettingsError
from archetype_dagster.market import load_bars, validate_bars
from archetype_dagster.market.bars import bar_column_names
from archetype_dagster.market.sources import bars_for, bars_with_report
from archetype_dagster.market.synthetic import synthetic_bars
from archetype_dagster.settings import MarketSettings, load_settings

START = datetime(2023, 1, 1, tzinfo=UTC)
SHORT = {
    "market.synthetic.start": START,
    "market.synthetic.end": START + timedelta(minutes=600),
    "market.book_levels": 5,
}
ROWS = 60


@pytest.fixture(scope="module")
def bars() -> pl.DataFrame:
    settings = load_settings("smoke", SHORT)
    return synthetic_bars(settings.market, settings.pair("ETH"), pair_name="ETH", seed=0)


@pytest.fixture
def candle_folder(tmp_path: Path) -> Path:
    rows = 60
    close = 20.0 + 0.01 * np.arange(rows)
    columns = {"open": close, "high": close + 0.02, "low": close - 0.02, "close": close, "volume": close * 10}
    times = int(START.timestamp() * 1000) + 300_000 * np.arange(rows)
    pl.DataFrame({"open_time": times, **columns}).write_parquet(tmp_path / "DOTUSDT.parquet")
    return tmp_path


def test_settings_and_public_loader_agree_on_the_embedded_market() -> None:
    settings = load_settings("smoke", SHORT)
    bars = bars_for(settings, "BTC")
    assert bars.equals(load_bars(settings.market, "BTC"))
    assert bars.columns == bar_column_names(5)
    assert not bars.equals(bars_for(load_settings("smoke", SHORT | {"seed": 1}), "BTC"))


def test_a_folder_of_candles_gives_bars_with_a_modelled_book(candle_folder: Path) -> None:
    bars = load_bars(candle_folder, "DOT")
    assert bars.height == 30
    assert bars["timestamp"][0] == START + timedelta(minutes=10)
    assert validate_bars(bars).book_sources == ("modelled",)
    assert load_bars(str(candle_folder / "DOTUSDT.parquet"), "DOT").equals(bars)
    explicit = MarketSettings(source="candles", path=candle_folder, bar_minutes=15)
    assert load_bars(explicit, "DOT").height == 20


def test_a_range_is_half_open_and_its_rows_are_those_of_the_whole(candle_folder: Path) -> None:
    whole = load_bars(candle_folder, "DOT")
    first, last = whole["timestamp"][5], whole["timestamp"][9]
    part = load_bars(candle_folder, "DOT", start=first.replace(tzinfo=None), end=last)
    assert part.equals(whole[5:9])
    with pytest.raises(MarketDataError, match="no bar of DOT ends from 2030-01-01"):
        load_bars(candle_folder, "DOT", start=datetime(2030, 1, 1, tzinfo=UTC))


def test_a_bars_file_comes_back_as_it_was(bars: pl.DataFrame, tmp_path: Path) -> None:
    file = tmp_path / "bars.parquet"
    bars.write_parquet(file)
    assert load_bars(file, "ETH").equals(bars)
    shuffled_columns = bars.select(reversed(bars.columns)).drop("segment").with_columns(extra=1)
    shuffled_columns.write_parquet(file)
    assert load_bars(file, "ETH").equals(bars)


def test_locked_rows_are_reported_as_they_came_and_then_widened(bars: pl.DataFrame, tmp_path: Path) -> None:
    locked = bars.with_columns(
        bid1_price=pl.when(pl.int_range(pl.len()) == 3).then(pl.col("ask1_price")).otherwise(pl.col("bid1_price"))
    )
    file = tmp_path / "bars.parquet"
    locked.write_parquet(file)
    settings = load_settings("smoke", {"market.source": "bars", "market.path": file})
    loaded, report = bars_with_report(settings, "ETH")
    assert report.locked_rows == 1
    assert (loaded["ask1_price"] > loaded["bid1_price"]).all()


def test_a_fault_in_a_file_names_file_row_field_and_rule(bars: pl.DataFrame, tmp_path: Path) -> None:
    file = tmp_path / "ETH.parquet"
    bars.with_columns(
        close=pl.when(pl.int_range(pl.len()) == 17).then(float("nan")).otherwise(pl.col("close"))
    ).write_parquet(file)
    with pytest.raises(MarketDataError) as caught:
        load_bars(tmp_path, "ETH")
    assert str(caught.value) == f"file {file}, row 17, field close: price must be finite and positive, got close=nan"


def test_the_order_of_a_candle_file_is_not_trusted(candle_folder: Path) -> None:
    bars = load_bars(candle_folder, "DOT")
    file = candle_folder / "DOTUSDT.parquet"
    pl.read_parquet(file).reverse().write_parquet(file)
    assert load_bars(candle_folder, "DOT").equals(bars)


def test_a_malformed_candle_takes_its_bar_with_it_or_is_refused_by_the_named_policy(candle_folder: Path) -> None:
    file = candle_folder / "DOTUSDT.parquet"
    whole = load_bars(candle_folder, "DOT")
    broken = pl.when(pl.int_range(pl.len()) == 21).then(float("nan")).otherwise(pl.col("high")).alias("high")
    pl.read_parquet(file).with_columns(broken).write_parquet(file)
    overrides = {"market.source": "candles", "market.path": file}
    bars, report = bars_with_report(load_settings("smoke", overrides), "DOT")
    assert bars["timestamp"].to_list() == whole["timestamp"].to_list()[:10] + whole["timestamp"].to_list()[11:]
    assert bars["segment"].unique().to_list() == [0, 1]
    assert report.ingestion is not None
    assert report.ingestion.count("malformed_candle", "candles") == 1
    assert report.ingestion.count("incomplete_bar", "bars") == 1
    refusing = load_settings("smoke", overrides | {"market.ingestion.malformed_candle": "refuse"})
    with pytest.raises(MarketDataError, match=rf"file {file}: malformed_candle 'refuse': 1 candles"):
        bars_with_report(refusing, "DOT")


@pytest.mark.parametrize("name", ["volume", "book_source", "bid3_size", "timestamp"])
def test_a_bars_file_without_a_column_is_refused(bars: pl.DataFrame, tmp_path: Path, name: str) -> None:
    file = tmp_path / "bars.parquet"
    bars.drop(name).write_parquet(file)
    with pytest.raises(MarketDataError, match=f"bars.parquet, field {name}: "):
        load_bars(MarketSettings(source="bars", path=file), "ETH")


def test_times_of_a_bars_file_need_a_zone_and_are_brought_to_utc(bars: pl.DataFrame, tmp_path: Path) -> None:
    file = tmp_path / "bars.parquet"
    bars.with_columns(pl.col("timestamp").dt.convert_time_zone("Asia/Tokyo").dt.cast_time_unit("ms")).write_parquet(
        file
    )
    assert load_bars(file, "ETH").equals(bars)
    bars.with_columns(pl.col("timestamp").dt.replace_time_zone(None)).write_parquet(file)
    with pytest.raises(MarketDataError, match="field timestamp: timestamp must be a time with a time zone"):
        load_bars(file, "ETH")


def test_what_is_not_there_or_not_market_data_is_named(candle_folder: Path) -> None:
    with pytest.raises(MarketDataError, match=r"with ETHUSDT or ETH in its name, it holds DOTUSDT.parquet"):
        load_bars(candle_folder, "ETH")
    with pytest.raises(MarketDataError, match="nowhere: file does not exist"):
        load_bars(candle_folder / "nowhere", "ETH")
    foreign = candle_folder / "foreign.parquet"
    pl.DataFrame({"price": [1.0]}).write_parquet(foreign)
    with pytest.raises(MarketDataError, match=r"neither bars .* got columns price"):
        load_bars(foreign, "ETH")
    with pytest.raises(SettingsError, match="unknown pair 'XRP'"):
        load_bars("synthetic", "XRP")


@pytest.mark.parametrize(
    ("pair", "rows", "segments"), [("BTC", 175_362, 5), ("ETH", 156_209, 6), ("DOT", 133_440, 9), ("BNB", 131_525, 4)]
)
def test_real_candles_become_valid_bars(shared_data: Path, pair: str, rows: int, segments: int) -> None:
    settings = load_settings("smoke", {"market.source": "candles", "market.path": shared_data / "spot_5m"})
    bars, report = bars_with_report(settings, pair)
    assert (report.rows, report.segments) == (rows, segments)
    assert report.rows + report.missing_bars == 175_536  # 2021-05-01 to 2024-09-01
    assert bars["segment"][-1] == segments - 1
    assert (report.off_grid_rows, report.locked_rows, report.crossed_rows) == (0, 0, 0)
