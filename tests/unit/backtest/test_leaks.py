"""The leak check must find a planted leak in every kind of array, and nothing where there is none."""

import json

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest.leaks import LeakStatus, TracedRows, check_no_lookahead, perturb_after
from archetype_dagster.market.bars import num_book_levels
from archetype_dagster.market.features import compute_features
from archetype_dagster.market.validation import validate_bars


@pytest.fixture
def bars(book_bars):
    rng = np.random.default_rng(1)
    return book_bars(100 * np.exp(np.cumsum(rng.normal(0, 0.002, 150))), size=3.0)


def clock(bars):
    return bars["timestamp"].dt.replace_time_zone(None).to_numpy()


def rolling_mean(bars, *, center):
    mean = bars.select(pl.col("close").rolling_mean(window_size=11, min_samples=1, center=center)).to_numpy()
    return {"mean": TracedRows(clock(bars), mean)}


def check(run, bars, **options):
    return check_no_lookahead(run, bars, **{"cuts": 4, "seed": 0, **options})


def test_a_causal_window_passes(bars):
    report = check(lambda bars: rolling_mean(bars, center=False), bars)
    assert report.status is LeakStatus.PASSED
    assert report.leaks == ()
    assert report.responsive == ("mean",)
    assert report.compared["mean"] == sum(np.searchsorted(clock(bars), cut) + 1 for cut in report.cuts)


def test_a_planted_centred_window_fails_and_is_named(bars):
    report = check(lambda bars: rolling_mean(bars, center=True), bars)
    assert report.status is LeakStatus.FAILED
    assert len(report.leaks) == len(report.cuts) == 4
    first = report.leaks[0]
    assert (first.array, first.cut) == ("mean", report.cuts[0])
    assert clock(bars)[first.row] == first.known_at == first.cut - 4 * np.timedelta64(10, "m")
    assert report.reason.startswith("mean at 2024-01-01T")
    assert json.loads(json.dumps(report.as_dict()))["status"] == "failed"


def centred_features(bars, *, center):
    """The real features, with the trend of one of them taken over a window that may look ahead."""
    table = compute_features(bars).with_columns(
        pl.col("volume_imbalance").rolling_mean(window_size=11, min_samples=1, center=center)
    )
    return {"features": TracedRows(clock(table), table.drop("timestamp").to_numpy())}


def test_the_real_features_pass_and_fail_with_a_centred_window_among_them(bars):
    assert check(lambda bars: centred_features(bars, center=False), bars).status is LeakStatus.PASSED
    report = check(lambda bars: centred_features(bars, center=True), bars)
    assert (report.status, report.leaks[0].array) == (LeakStatus.FAILED, "features")


def test_one_bit_of_the_future_is_enough(bars):
    def run(bars):
        close = bars["close"].to_numpy()
        return {"close": TracedRows(clock(bars), close + np.append(close[1:], 0) * 1e-15)}

    assert check(run, bars).status is LeakStatus.FAILED


def test_a_result_whose_length_depends_on_the_future_fails(bars):
    def run(bars):
        kept = bars.filter(pl.col("close") < bars["close"].max())
        return {"kept": TracedRows(clock(kept), kept["open"].to_numpy())}

    assert check(run, bars).status is LeakStatus.FAILED


def test_a_run_that_ignores_its_bars_proves_nothing(bars):
    report = check(lambda bars: {"zeros": TracedRows(clock(bars), np.zeros(bars.height))}, bars)
    assert report.status is LeakStatus.FAILED
    assert "put to the test" in report.reason


def test_admitted_hindsight_is_reported_and_hides_no_other_leak(bars):
    def run(bars):
        return {"admitted": rolling_mean(bars, center=True)["mean"], "hidden": rolling_mean(bars, center=leak)["mean"]}

    leak = False
    assert check(run, bars, hindsight={"admitted"}).status is LeakStatus.HINDSIGHT
    leak = True
    report = check(run, bars, hindsight={"admitted"})
    assert report.status is LeakStatus.FAILED
    assert report.reason.startswith("hidden")


def test_the_same_seed_draws_the_same_cuts(bars):
    def run(bars):
        return rolling_mean(bars, center=False)

    assert check(run, bars).cuts.tolist() == check(run, bars).cuts.tolist()
    assert check(run, bars).cuts.tolist() != check(run, bars, seed=1).cuts.tolist()


def test_a_check_that_cannot_be_made_is_refused(bars):
    def nothing(bars):
        return {"empty": TracedRows(clock(bars)[:0], np.zeros(0))}

    with pytest.raises(ValueError, match="cuts must be positive"):
        check(nothing, bars, cuts=0)
    with pytest.raises(ValueError, match="nothing was traced in empty"):
        check(nothing, bars)
    with pytest.raises(ValueError, match="too few"):
        check(lambda bars: rolling_mean(bars, center=False), bars[:1])


def test_the_changed_market_is_valid_and_another_one(bars):
    with_holes = bars.with_columns(
        pl.when(pl.int_range(pl.len()) == 120).then(None).otherwise(pl.col(name)).alias(name)
        for name in ("ask5_price", "ask5_size")
    )
    changed = perturb_after(with_holes, 99, np.random.default_rng(0))
    validate_bars(changed)
    assert changed[:100].equals(with_holes[:100])
    assert changed["ask5_price"].null_count() == 1
    assert changed.schema == with_holes.schema
    names = [
        f"{s}{i}_{f}" for s in ("bid", "ask") for i in range(1, num_book_levels(bars) + 1) for f in ("price", "size")
    ]
    for name in ["open", "high", "low", "close", "volume", *names]:
        ratio = (changed[name][100:] / with_holes[name][100:]).log().abs()
        assert ratio.median() > 0.1, name
