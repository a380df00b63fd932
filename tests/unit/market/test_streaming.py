"""The feature stream: the batch's rows bit by bit, from any start, across gaps, saved and restored anywhere."""

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.market import compute_features, load_bars
from archetype_dagster.market.bars import assign_segments
from archetype_dagster.market.features import FEATURE_NAMES, WARMUP_BARS
from archetype_dagster.market.streaming import FeatureStream
from archetype_dagster.settings import MarketSettings

# Equality is by bits for all but the logarithms, which a processor's vector unit may round differently.
ULPS = 4


def _streamed(bars: pl.DataFrame, stream: FeatureStream) -> pl.DataFrame:
    """What the stream yields, with the time of each row."""
    rows = [(bar["timestamp"], stream.push(bar)) for bar in bars.iter_rows(named=True)]
    ready = [(timestamp, features) for timestamp, features in rows if features is not None]
    return pl.DataFrame(
        {"timestamp": [timestamp for timestamp, _ in ready], "features": [features.tolist() for _, features in ready]},
        schema={"timestamp": pl.Datetime("us", "UTC"), "features": pl.List(pl.Float64)},
    )


def _assert_same(stream: pl.DataFrame, batch: pl.DataFrame) -> None:
    assert stream["timestamp"].to_list() == batch["timestamp"].to_list()
    values = np.array(stream["features"].to_list()).reshape(batch.height, len(FEATURE_NAMES))
    for column, name in enumerate(batch.columns[1:]):
        if name.startswith("log_return"):
            np.testing.assert_array_max_ulp(values[:, column], batch[name].to_numpy(), maxulp=ULPS)
        else:
            assert_array_equal(values[:, column], batch[name].to_numpy(), err_msg=name)


def _set(bars: pl.DataFrame, row: int, **values: float | None) -> pl.DataFrame:
    here = pl.int_range(pl.len()) == row
    return bars.with_columns(
        pl.when(here).then(pl.lit(value, dtype=pl.Float64)).otherwise(pl.col(name)).alias(name)
        for name, value in values.items()
    )


def _standx_bars(shared_data: Path) -> pl.DataFrame:
    """72 hours of 10-minute bars with a real 10-level book, almost half of them locked."""
    table = pl.read_csv(shared_data / "book" / "standx_perp_btcusd_bars_10min_72h.csv")
    ends = (
        pl.from_epoch(pl.col("bar_open_ms") + 600_000, time_unit="ms")
        .cast(pl.Datetime("us"))
        .dt.replace_time_zone("UTC")
    )
    traded = table.with_columns(ends.alias("timestamp")).drop_nulls("open")
    return assign_segments(traded, bar_minutes=10)


@pytest.mark.parametrize("scale", ["relative", "raw"])
def test_the_stream_yields_the_rows_of_the_batch_on_the_embedded_market(scale):
    bars = load_bars("synthetic", "BTC", end=datetime(2021, 6, 4, tzinfo=UTC))
    _assert_same(_streamed(bars, FeatureStream(scale=scale)), compute_features(bars, scale=scale))


def test_the_stream_yields_the_rows_of_the_batch_on_real_bars_with_a_locked_book(shared_data):
    bars = _standx_bars(shared_data)
    assert (bars["bid1_price"] >= bars["ask1_price"]).sum() == 201
    _assert_same(_streamed(bars, FeatureStream()), compute_features(bars))
    holed = assign_segments(pl.concat([bars[:150], bars[156:]]), bar_minutes=10)
    _assert_same(_streamed(holed, FeatureStream()), compute_features(holed))


def test_the_stream_yields_the_rows_of_the_batch_across_an_outage_of_real_candles(shared_data):
    file = shared_data / "spot_5m" / "BTCUSDT.parquet"
    bars = load_bars(file, "BTC", start=datetime(2021, 8, 12), end=datetime(2021, 8, 15))
    assert bars["segment"].n_unique() == 2
    _assert_same(_streamed(bars, FeatureStream()), compute_features(bars))


def test_other_bar_lengths_have_their_own_gaps(shared_data):
    market = MarketSettings(source="candles", path=shared_data / "spot_15m" / "BNBUSDT.parquet", bar_minutes=15)
    bars = load_bars(market, "BNB", start=datetime(2021, 8, 12), end=datetime(2021, 8, 15))
    batch = compute_features(bars)
    assert batch.height
    _assert_same(_streamed(bars, FeatureStream(bar_minutes=15)), batch)
    assert _streamed(bars, FeatureStream(bar_minutes=10)).is_empty()


@settings(max_examples=10, deadline=None)
@given(start=st.integers(0, 130), gap=st.integers(1, 199), seed=st.integers(0, 2**16))
def test_any_start_gives_the_same_rows_after_its_own_warm_up(random_bars, start, gap, seed):
    bars = random_bars(200, seed=seed, gap_at=gap)
    late = _streamed(bars[start:], FeatureStream())
    _assert_same(late, compute_features(bars[start:]))
    whole = _streamed(bars, FeatureStream())
    assert whole.join(late, on="timestamp", how="semi").equals(late)


@settings(max_examples=10, deadline=None)
@given(
    cut=st.integers(0, 160),
    gap=st.integers(1, 159),
    seed=st.integers(0, 2**16),
    scale=st.sampled_from(["relative", "raw"]),
)
def test_a_stream_saved_as_json_goes_on_as_if_never_stopped(random_bars, cut, gap, seed, scale):
    bars = random_bars(160, seed=seed, gap_at=gap)
    stream = FeatureStream(scale=scale)
    head = _streamed(bars[:cut], stream)
    restored = FeatureStream.restore(json.loads(json.dumps(stream.state(), allow_nan=False)))
    assert restored.state() == stream.state()
    assert restored.bars_missing == stream.bars_missing
    tail = _streamed(bars[cut:], restored)
    assert pl.concat([head, tail]).equals(_streamed(bars, FeatureStream(scale=scale)))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    row=st.integers(50, 69),
    sizes=st.lists(st.sampled_from([0.0, None, 1e-9, 1.0, 1e9]), min_size=10, max_size=10),
    absent=st.sets(st.sampled_from([f"{side}{level}" for side in ("bid", "ask") for level in range(1, 6)])),
    touch=st.sampled_from(["apart", "locked", "crossed"]),
    volume=st.sampled_from([0.0, 7.0]),
)
def test_degenerate_books_are_read_as_the_batch_reads_them(random_bars, seed, row, sizes, absent, touch, volume):
    names = [f"{side}{level}" for side in ("bid", "ask") for level in range(1, 6)]
    bars = random_bars(70, seed=seed, levels=7)
    if touch != "apart":
        bars = _set(bars, row, ask1_price=bars["bid1_price"][row] - 0.02 * (touch == "crossed"))
    bars = _set(bars, row, volume=volume, **{f"{name}_size": size for name, size in zip(names, sizes, strict=True)})
    bars = _set(bars, row, **{f"{name}_price": None for name in absent})
    _assert_same(_streamed(bars, FeatureStream()), compute_features(bars))


def test_a_gap_is_seen_without_segment_numbers_and_a_segment_number_without_a_gap(random_bars):
    bars = random_bars(200, gap_at=90)
    expected = compute_features(bars)
    _assert_same(_streamed(bars.drop("segment"), FeatureStream()), expected)
    renumbered = random_bars(200).with_columns(bars["segment"])
    _assert_same(_streamed(renumbered, FeatureStream()), compute_features(renumbered))


def test_warm_up_is_counted_down_and_starts_again_after_a_gap(random_bars):
    bars = random_bars(140, gap_at=70)
    stream, missing = FeatureStream(), []
    for bar in bars.iter_rows(named=True):
        missing.append(stream.bars_missing)
        assert (stream.push(bar) is None) == (stream.bars_missing > 0)
    assert missing[0] == WARMUP_BARS + 1
    assert missing[60:71] == [1, *[0] * 10]
    # The gap is seen when the first bar after it arrives.
    assert missing[71] == WARMUP_BARS


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"close": -1.0}, "field close: must be positive and finite, got -1.0"),
        ({"high": None}, "field high: must be positive and finite, got None"),
        ({"volume": float("nan")}, "field volume: must be finite and not negative, got nan"),
        ({"ask3_size": -0.1}, "field ask3_size: must be finite and not negative, got -0.1"),
        ({"bid2_price": 0.0}, "field bid2_price: must be positive and finite, got 0.0"),
        ({"bid2_price": float("nan")}, "field bid2_price: must be positive and finite, got nan"),
        ({"open": "dear"}, "field open: must be a number, got 'dear'"),
        ({"timestamp": datetime(2030, 1, 1)}, "field timestamp: must be a datetime with its time zone"),
        ({"timestamp": datetime(2020, 1, 1, tzinfo=UTC)}, "field timestamp: must grow from bar to bar"),
    ],
)
def test_a_refused_bar_is_named_and_leaves_the_stream_as_it_was(random_bars, change, message):
    *head, last = random_bars(70).iter_rows(named=True)
    stream, untouched = FeatureStream(), FeatureStream()
    for bar in head:
        stream.push(bar)
        untouched.push(bar)
    with pytest.raises(MarketDataError, match=message):
        stream.push({**last, **change})
    assert stream.state() == untouched.state()
    assert_array_equal(stream.push(last), untouched.push(last))


@pytest.mark.parametrize("column", ["timestamp", "close", "bid4_size"])
def test_a_missing_column_is_named(random_bars, column):
    bar = random_bars(1).drop(column).row(0, named=True)
    with pytest.raises(MarketDataError, match=f"field {column}: missing column"):
        FeatureStream().push(bar)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 0}, "it has version 0, this version reads 1"),
        ({"scale": "log"}, "scale must be"),
        ({"bars": 3}, "its window is not 3 finite values"),
        ({"window": {}}, "ask1_price"),
        ({"before": None}, "NoneType"),
        ({"timestamp": "noon"}, "noon"),
        ({"timestamp": "2024-01-01T00:00:00"}, "time zone"),
    ],
)
def test_a_damaged_state_is_refused(random_bars, change, message):
    stream = FeatureStream()
    for bar in random_bars(2).iter_rows(named=True):
        stream.push(bar)
    with pytest.raises(ArtifactError, match=f"not the state of a feature stream .*{message}"):
        FeatureStream.restore({**stream.state(), **change})


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match="scale must be 'relative' or 'raw', got scale='log'"):
        FeatureStream(scale="log")
    with pytest.raises(ValueError, match="bar_minutes must be positive, got bar_minutes=0"):
        FeatureStream(bar_minutes=0)


def test_other_time_zones_are_the_same_moment(random_bars):
    bars = random_bars(70)
    zone = timezone(timedelta(hours=5, minutes=30))
    moved = [{**bar, "timestamp": bar["timestamp"].astimezone(zone)} for bar in bars.iter_rows(named=True)]
    stream = FeatureStream()
    rows = [stream.push(bar) for bar in moved]
    assert_array_equal(rows[-1], compute_features(bars).row(-1)[1:])
    assert stream.state()["timestamp"] == (datetime(2024, 1, 1, tzinfo=UTC) + timedelta(minutes=690)).isoformat()
