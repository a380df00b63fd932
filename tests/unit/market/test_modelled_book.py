"""The modelled book: causal to the last bit, seeded, ordered, and shaped like the real books."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.errors import MarketDataError, SettingsError
from archetype_dagster.market.bars import apply_book_policies, assign_segments, side_matrix
from archetype_dagster.market.book_calibration import BookCalibration, calibrate_modelled_book
from archetype_dagster.market.modelled_book import add_modelled_book
from archetype_dagster.market.validation import validate_bars
from archetype_dagster.settings import ModelledBookSettings, PairSettings, Settings, config_text

PAIR = Settings().pair("BTC")
BOOK = ModelledBookSettings(levels=6, window_bars=8)
ROWS = 60


def plain_bars(rows: int = ROWS, *, seed: int = 0, gap_at: int = 30) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    close = np.round(40_000 * np.exp(np.cumsum(0.002 * rng.standard_normal(rows))), 2)
    start = datetime(2024, 1, 1, tzinfo=UTC)
    step = np.arange(rows) + (np.arange(rows) >= gap_at)
    minutes = pl.Series("timestamp", step * 10).cast(pl.Int64)
    bars = pl.DataFrame(
        {
            "timestamp": (pl.Series([start] * rows) + pl.Series(minutes * 60_000_000).cast(pl.Duration("us"))),
            "open": close,
            "high": close * (1 + 0.002 * rng.random(rows)),
            "low": close * (1 - 0.002 * rng.random(rows)),
            "close": close,
            "volume": rng.gamma(2, 100, rows),
        }
    )
    return assign_segments(bars, bar_minutes=10)


def modelled(bars: pl.DataFrame, *, seed: int = 1, book: ModelledBookSettings = BOOK) -> pl.DataFrame:
    return add_modelled_book(bars, book, PAIR, seed=seed)


def without_noise(calibration: BookCalibration) -> str:
    return yaml.safe_dump({**calibration.as_dict(), "touch_dispersion": 1e-9, "level_dispersion": 1e-9})


@settings(max_examples=40, deadline=None)
@given(
    cut=st.integers(0, ROWS - 2),
    price=st.floats(0.02, 50),
    spread=st.floats(1, 3),
    volume=st.floats(0, 1e6),
)
def test_changing_later_bars_changes_no_bit_of_the_book_before(
    cut: int, price: float, spread: float, volume: float
) -> None:
    bars = plain_bars()
    later = pl.int_range(pl.len()) > cut
    factors = {"open": price, "close": price, "high": price * spread, "low": price / spread, "volume": volume}
    changed = bars.with_columns(
        pl.when(later).then(pl.col(name) * factor).otherwise(pl.col(name)).alias(name)
        for name, factor in factors.items()
    )
    whole = modelled(bars).head(cut + 1)
    assert modelled(changed).head(cut + 1).equals(whole)
    assert modelled(bars.head(cut + 1)).equals(whole)


@settings(max_examples=25, deadline=None)
@given(first=st.integers(0, ROWS - 1), count=st.integers(1, ROWS), window=st.integers(1, 12), levels=st.integers(5, 8))
def test_bars_before_and_after_leave_every_book_of_the_same_window_as_it_was(
    first: int, count: int, window: int, levels: int
) -> None:
    book = ModelledBookSettings(levels=levels, window_bars=window)
    bars = plain_bars()
    part = modelled(bars[first : first + count], book=book)
    age = pl.int_range(pl.len()).over("segment")
    begins = bars.select(begins=age.gather(first)).item() if first else 0
    same = part.select(
        (pl.col("segment") != pl.col("segment").first()) | (age >= window - 1) | (begins == 0)
    ).to_series()
    whole = modelled(bars, book=BOOK.model_copy(update={"window_bars": window, "levels": 8}))
    assert part.filter(same).equals(whole[first : first + count].filter(same).select(part.columns))
    assert same.sum() >= part.height - window + 1


def test_nothing_is_carried_into_the_next_segment() -> None:
    bars = plain_bars()
    before = pl.int_range(pl.len()) < 30
    changed = bars.with_columns(pl.when(before).then(pl.col("volume") * 1000).otherwise(pl.col("volume")))
    assert modelled(changed).tail(ROWS - 30).equals(modelled(bars).tail(ROWS - 30))


def test_the_book_is_seeded_labelled_and_valid() -> None:
    first, again, other = modelled(plain_bars()), modelled(plain_bars()), modelled(plain_bars(), seed=2)
    assert first.equals(again)
    assert not first.equals(other)
    report = validate_bars(first)
    assert report.book_sources == ("modelled",)
    assert (report.book_levels, report.locked_rows, report.crossed_rows, report.empty_side_rows) == (6, 0, 0, 0)
    assert apply_book_policies(first).equals(first)


def test_prices_are_distinct_whole_ticks() -> None:
    bars = modelled(plain_bars())
    for side, sign in (("bid", -1), ("ask", 1)):
        prices = side_matrix(bars, side, "price", 6)
        assert (np.diff(prices) * sign > 0).all()
        np.testing.assert_array_equal(prices, np.round(prices, 2))


def test_sizes_follow_volume_and_distances_follow_volatility(monkeypatch: pytest.MonkeyPatch) -> None:
    calm = without_noise(BookCalibration.from_config(BOOK.calibration))
    monkeypatch.setattr("archetype_dagster.market.book_calibration.config_text", lambda _: calm)
    fine = PAIR.model_copy(update={"tick_size": 1e-6})
    flat = plain_bars(12, gap_at=12).with_columns(open=100.0, close=100.0, high=100.2, low=99.8, volume=600.0)
    busy = flat.with_columns(high=100.4, low=99.6, volume=1800.0)
    base, more = (add_modelled_book(bars, BOOK, fine, seed=0) for bars in (flat, busy))
    ratio = side_matrix(more, "ask", "size", 6) / side_matrix(base, "ask", "size", 6)
    np.testing.assert_allclose(ratio, 3.0, rtol=1e-6)
    spread = [(frame["ask1_price"] - frame["bid1_price"]).to_numpy() for frame in (base, more)]
    np.testing.assert_allclose(spread[1] / spread[0], 2.0, rtol=1e-2)
    # One minute trades 60 units.
    assert base["ask1_size"][0] == pytest.approx(60 * yaml.safe_load(calm)["touch_size_per_volume"])


def test_a_coarse_tick_leaves_the_liquidity_within_a_distance() -> None:
    deep = ModelledBookSettings(levels=400)
    bars = plain_bars(2_000, gap_at=2_000)
    fine, coarse = (
        add_modelled_book(bars, deep, PAIR.model_copy(update={"tick_size": tick}), seed=0) for tick in (0.01, 5.0)
    )
    within = []
    for frame in (fine, coarse):
        near = side_matrix(frame, "ask", "price", 400) <= frame["close"].to_numpy()[:, None] + 50
        within.append((side_matrix(frame, "ask", "size", 400) * near).sum() / frame.height)
    assert within[1] == pytest.approx(within[0], rel=0.15)


def test_bars_that_never_traded_have_an_empty_but_finite_book() -> None:
    bars = modelled(plain_bars().with_columns(pl.col("close").alias("high"), pl.col("close").alias("low"), volume=0.0))
    assert (side_matrix(bars, "bid", "size", 6) == 0).all()
    assert validate_bars(bars).empty_side_rows == ROWS


def test_missing_segments_and_prices_too_low_for_the_tick_are_refused() -> None:
    with pytest.raises(MarketDataError, match="field segment: a modelled book needs segments"):
        modelled(plain_bars().drop("segment"))
    cheap = plain_bars().with_columns(pl.lit(0.05).alias(name) for name in ("open", "high", "low", "close"))
    with pytest.raises(MarketDataError, match=r"row 0, field close: price 0.05 is too low for 6 levels of tick 0.01"):
        modelled(cheap)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("level_step_per_volatility: 1", "must hold exactly the keys"),
        ("[]", "must hold exactly the keys"),
        (config_text("modelled_book.yaml").replace("0.6496", "-1"), "touch_dispersion must be a positive number"),
    ],
)
def test_a_damaged_calibration_is_refused(monkeypatch: pytest.MonkeyPatch, text: str, rule: str) -> None:
    monkeypatch.setattr("archetype_dagster.market.book_calibration.config_text", lambda _: text)
    with pytest.raises(SettingsError, match=rule):
        BookCalibration.from_config("modelled_book.yaml")


def test_an_unknown_calibration_file_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"'nowhere.yaml' is not in configs/"):
        BookCalibration.from_config("nowhere.yaml")


def test_the_shipped_calibration_is_what_the_real_books_measure(shared_data: Path) -> None:
    samples = [
        (
            shared_data / "book" / f"binance_spot_{name}usdt_book_1s_20lvl_2024-08-08.parquet",
            shared_data / "book" / f"binance_spot_{name}usdt_trades_2024-08-08.parquet",
        )
        for name in ("btc", "eth")
    ]
    assert yaml.safe_load(config_text("modelled_book.yaml")) == calibrate_modelled_book(samples).as_dict()


def test_calibration_recovers_the_book_it_is_given(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    snapshots, levels = 601, 8
    mid = 100 * np.exp(np.cumsum(rng.choice([-1e-4, 1e-4], snapshots)))
    volatility = 1.0 * np.sqrt(60)  # 1 bp a second
    columns = {"ts_ms": 1000 * np.arange(snapshots)}
    for level in range(levels):
        distance = mid * 1e-4 * (0.1 + 0.2 * level)
        size = 6.0 * np.exp(0.5 * rng.standard_normal((2, snapshots)) - 0.125) * (5 if level == 0 else 1)
        columns |= {f"bid{level + 1}_price": mid - distance, f"bid{level + 1}_size": size[0]}
        columns |= {f"ask{level + 1}_price": mid + distance, f"ask{level + 1}_size": size[1]}
    book, trades = tmp_path / "book.parquet", tmp_path / "trades.parquet"
    pl.DataFrame(columns).write_parquet(book)
    pl.DataFrame({"ts_ms": np.arange(601) * 1000, "quantity": np.full(601, 2.0)}).write_parquet(trades)
    found = calibrate_modelled_book([(book, trades)])
    assert found.half_spread_per_volatility == pytest.approx(0.1 / volatility, rel=0.01)
    assert found.level_step_per_volatility == pytest.approx(0.2 / volatility, rel=0.01)
    assert found.touch_size_per_volume == pytest.approx(30 / 120, rel=0.05)
    assert found.level_size_per_volume == pytest.approx(6 / 120, rel=0.05)
    assert found.level_dispersion == pytest.approx(0.5, rel=0.1)


def test_calibration_refuses_files_that_say_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="samples must hold at least one pair of files"):
        calibrate_modelled_book([])
    empty = tmp_path / "trades.parquet"
    pl.DataFrame({"ts_ms": [1]}).write_parquet(empty)
    with pytest.raises(MarketDataError, match=r"trades.parquet, field quantity: a calibration file must have"):
        calibrate_modelled_book([(empty, empty)])


def test_pair_settings_differ_only_in_the_stream_they_draw() -> None:
    other = PairSettings(**{**PAIR.model_dump(), "base": "ETH"})
    bars = plain_bars()
    assert not add_modelled_book(bars, BOOK, other, seed=1).equals(modelled(bars))
