"""The embedded market: valid and seeded, with an edge that a causal rule finds and a shuffle removes."""

from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.bars import side_matrix
from archetype_dagster.market.book import mark_prices, trade_costs
from archetype_dagster.market.synthetic import synthetic_bars
from archetype_dagster.market.validation import validate_bars
from archetype_dagster.settings import MarketSettings, Settings, SyntheticMarketSettings
from archetype_dagster.types import FloatArray

START = datetime(2022, 1, 1, tzinfo=UTC)
PAIR = Settings().pair("ETH")
BARS_PER_YEAR = 52_560


def market(rows: int = 5_000, *, seed: int = 0, levels: int = 5, **synthetic: object) -> pl.DataFrame:
    span = {"start": START, "end": START + timedelta(minutes=10 * rows)}
    settings = MarketSettings(
        book_levels=levels, synthetic=SyntheticMarketSettings.model_validate(span | dict(synthetic))
    )
    return synthetic_bars(settings, PAIR, pair_name="ETH", seed=seed)


def imbalance(bars: pl.DataFrame) -> FloatArray:
    bid, ask = (side_matrix(bars, side, "size", 5).sum(axis=1) for side in ("bid", "ask"))
    return (bid - ask) / (bid + ask)


def rule_returns(bars: pl.DataFrame) -> tuple[FloatArray, FloatArray]:
    """One-bar gross and net returns on notional, last 40 % of bars, of holding the sign of the smoothed imbalance.

    The dead band is measured on the first 60 %, so the rule knows nothing of the bars it trades.
    """
    smooth = pl.Series(imbalance(bars)).ewm_mean(half_life=12, adjust=False)
    band = 0.5 * float(smooth.head(int(0.6 * len(smooth))).std() or 0.0)
    side = pl.select(pl.when(smooth > band).then(1).when(smooth < -band).then(-1)).to_series()
    side_held = side.forward_fill().fill_null(0).to_numpy()
    first = int(0.6 * len(side))
    actions = side_held[first:] + 1
    mark = mark_prices(bars)[first:]
    m = PAIR.max_position
    costs = trade_costs(bars, max_position=m, commission_rate=0.0002)[first:]
    before = np.append(1, actions[:-1])
    paid = costs[np.arange(len(actions)), before, actions][:-1] / (m * mark[:-1])
    gross = (actions[:-1] - 1) * np.diff(mark) / mark[:-1]
    return gross, gross - paid


def sharpe(returns: FloatArray) -> float:
    return float(returns.mean() / returns.std() * np.sqrt(BARS_PER_YEAR))


def test_the_market_is_a_valid_bars_table_with_two_outages() -> None:
    bars = market(levels=25)
    report = validate_bars(bars)
    assert (report.segments, report.missing_bars, report.book_levels) == (3, 36, 25)
    assert report.rows == 5_000 - 36
    assert report.first_timestamp == START
    assert report.last_timestamp == START + timedelta(minutes=10 * 4_999)
    assert report.book_sources == ("modelled",)
    assert (report.locked_rows, report.crossed_rows, report.empty_side_rows, report.zero_volume_rows) == (0, 0, 0, 0)
    assert bars["segment"].unique().to_list() == [0, 1, 2]


def test_a_short_span_has_no_outage() -> None:
    assert validate_bars(market(999)).segments == 1


def test_the_same_seed_gives_the_same_market_and_another_seed_or_pair_another() -> None:
    first = market(1_200)
    assert first.equals(market(1_200))
    assert not first["close"].equals(market(1_200, seed=1)["close"])
    settings = MarketSettings(
        book_levels=5,
        synthetic=SyntheticMarketSettings(start=START, end=START + timedelta(minutes=12_000)),
    )
    other = synthetic_bars(settings, PAIR, pair_name="BNB", seed=0)
    assert not first["close"].equals(other["close"])


def test_volatility_is_as_set_and_clusters() -> None:
    returns = np.diff(np.log(market(40_000, drift_bps=0.0, reversion=0.0)["close"].to_numpy()))
    assert np.std(returns) == pytest.approx(18e-4, rel=0.1)
    size = np.abs(returns)
    assert np.corrcoef(size[:-1], size[1:])[0, 1] > 0.1
    assert abs(np.corrcoef(returns[:-1], returns[1:])[0, 1]) < 0.03


def test_a_position_fits_into_the_visible_book() -> None:
    asks = side_matrix(market(levels=25), "ask", "size", 25).sum(axis=1)
    assert np.mean(asks > PAIR.max_position) > 0.99
    assert np.mean(asks > 2 * PAIR.max_position) > 0.7


@pytest.mark.parametrize("strength", [0.0, 0.35, 0.8])
def test_the_imbalance_has_the_stated_correlation_with_the_drift_of_the_next_bar(strength: float) -> None:
    # Without noise the return is the drift itself, so its sign is the regime's direction.
    bars = market(120_000, signal_strength=strength, volatility_bps=1e-6, drift_bps=0.5, reversion=0.0, regime_bars=60)
    change = np.diff(bars["close"].to_numpy())
    direction = np.sign(np.where(np.abs(change) > 0.02, change, 0.0))
    found = np.corrcoef(imbalance(bars)[:-1], direction)[0, 1]
    assert found == pytest.approx(strength, abs=0.05)


def test_a_reverting_regime_draws_the_price_back() -> None:
    free, held = (
        market(30_000, drift_bps=0.0, reversion=pull, regime_bars=2_000)["close"].to_numpy() for pull in (0.0, 0.3)
    )
    variance_ratio = [np.var(np.log(p[60:] / p[:-60])) / (60 * np.var(np.diff(np.log(p)))) for p in (free, held)]
    assert variance_ratio[1] < 0.85 * variance_ratio[0]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_causal_rule_earns_after_costs_out_of_sample_and_nothing_on_shuffled_returns(seed: int) -> None:
    honest_gross, honest_net = rule_returns(market(60_000, seed=seed, levels=25))
    shuffled_gross, shuffled_net = rule_returns(market(60_000, seed=seed, levels=25, shuffle_returns=True))
    # Over 0.46 years a rule without an edge has a Sharpe ratio of standard deviation 1.5.
    assert sharpe(honest_net) > 4.5
    assert abs(sharpe(shuffled_gross)) < 4.5
    assert shuffled_net.mean() < shuffled_gross.mean()
    assert sharpe(honest_net) - sharpe(shuffled_net) > 4.5
    # Small per bar all the same.
    assert honest_gross.mean() < 0.1 * honest_gross.std()


def test_shuffling_keeps_the_moves_and_the_imbalances_and_parts_them() -> None:
    honest, shuffled = market(4_000), market(4_000, shuffle_returns=True)
    np.testing.assert_allclose(imbalance(honest), imbalance(shuffled))
    common = set(honest["volume"].to_list()) & set(shuffled["volume"].to_list())
    # The outages leave out other moves in each.
    assert len(common) >= 4_000 - 2 * 36
    assert not honest["volume"].equals(shuffled["volume"])


def test_holding_earns_nothing_remarkable() -> None:
    totals = []
    for seed in range(24):
        close = market(3_000, seed=seed)["close"].to_numpy()
        totals.append(np.log(close[-1] / close[0]))
    assert abs(np.mean(totals)) < 3 * np.std(totals) / np.sqrt(len(totals))


def test_an_empty_span_and_a_price_below_the_tick_are_refused() -> None:
    with pytest.raises(MarketDataError, match="must end after it starts"):
        market(0)
    penny = PAIR.model_copy(update={"synthetic_price": 0.05})
    settings = MarketSettings(synthetic=SyntheticMarketSettings(start=START, end=START + timedelta(days=1)))
    with pytest.raises(MarketDataError, match=r"too low for 25 levels of tick 0.01"):
        synthetic_bars(settings, penny, pair_name="ETH", seed=0)
