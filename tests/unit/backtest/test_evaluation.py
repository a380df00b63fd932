"""Every variant trades the same bars at the same prices, and each does what its name says."""

import numpy as np
import pytest

from archetype_dagster.backtest.evaluation import VARIANTS, evaluate
from archetype_dagster.backtest.ledger import reconcile
from archetype_dagster.backtest.replay import price_bars
from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.market.feature_table import build_feature_table
from archetype_dagster.market.features import FEATURE_NAMES
from archetype_dagster.market.splits import split_dataset


@pytest.fixture
def evaluated(small_bars, small_settings, random_policy):
    def run(decoder="lstm", embedding="vq", **overrides):
        settings = small_settings(**overrides)
        table = build_feature_table(small_bars, settings, "ETH")
        policy = random_policy(settings, features=len(FEATURE_NAMES), decoder=decoder, embedding=embedding)
        return evaluate(small_bars, table, policy, settings, "ETH")

    return run


@pytest.mark.parametrize(
    "overrides", [{}, {"execution.horizon_boundary": "settle"}, {"execution.execution_delay_bars": 1}]
)
def test_every_account_reconciles_on_the_same_bars(evaluated, small_bars, small_settings, overrides):
    test_bars = (small_bars["timestamp"] >= small_settings().splits.test_start).sum()
    evaluation = evaluated(**overrides)
    assert list(evaluation.variants) == list(VARIANTS)
    for variant in evaluation.variants.values():
        report = reconcile(variant.ledger)
        assert report.passed, (variant.name, report.failures)
        assert len(variant.ledger) == evaluation.bars == test_bars
        assert variant.ledger.initial_capital == 100 * variant.ledger.mark[0]
        assert variant.ledger.traded[-1] == 0
        m = variant.performance
        if m.sharpe is not None and m.calmar is not None:
            assert m.calmar == pytest.approx(m.sharpe * m.annual_volatility / m.max_drawdown, rel=1e-12)


def test_the_bounds_are_what_they_say(evaluated):
    variants = evaluated().variants
    flat, hold, plan = (variants[name] for name in ("always_flat", "buy_and_hold", "hindsight_plan"))
    assert flat.ledger.trades == 0
    assert flat.performance.total_return == 0
    assert flat.performance.sharpe is None
    assert hold.ledger.trades == 1
    first, last = hold.ledger.mark[0], hold.ledger.mark[-1]
    paid = hold.ledger.fee[0] + hold.ledger.slippage[0]
    assert hold.performance.total_return == pytest.approx((100 * (last - first) - paid) / (100 * first))
    assert plan.performance.total_return > max(
        variant.performance.total_return for name, variant in variants.items() if name != "hindsight_plan"
    )


def test_positions_are_closed_on_the_first_bar_after_a_gap(evaluated):
    evaluation = evaluated()
    ledger = evaluation.variants["base_archetype"].ledger
    step = np.diff(ledger.timestamps)
    after = int(np.argmax(step > np.timedelta64(10, "m"))) + 1
    assert not ledger.position[after : after + 60].any()
    without_features = np.setdiff1d(np.arange(evaluation.bars), evaluation.bar_rows)
    assert set(range(12)) <= set(without_features)
    assert not evaluation.full.ledger.position[without_features].any()


def test_rows_of_the_decisions_are_the_bars_they_were_made_on(evaluated, small_bars, small_settings):
    evaluation = evaluated()
    settings = small_settings()
    test = split_dataset(build_feature_table(small_bars, settings, "ETH").dataset(settings), settings.splits).test
    ledger = evaluation.full.ledger
    np.testing.assert_array_equal(ledger.timestamps[evaluation.bar_rows], test.timestamps)
    np.testing.assert_array_equal(ledger.mark[evaluation.bar_rows], test.mark)
    np.testing.assert_array_equal(ledger.action[evaluation.bar_rows][:-1], evaluation.decisions.actions[:-1])


def test_planner_and_replay_read_the_same_prices_and_costs(small_bars, small_settings):
    """To the last bit, so that a plan replayed earns exactly its planned value."""
    settings = small_settings()
    dataset = build_feature_table(small_bars, settings, "ETH").dataset(settings)
    priced = price_bars(small_bars, settings.pair("ETH"), settings.execution)
    rows = np.searchsorted(priced.timestamps, dataset.timestamps)
    np.testing.assert_array_equal(dataset.mark, priced.mark[rows])
    np.testing.assert_array_equal(dataset.costs, (priced.slippage + priced.commission)[rows])


def test_profits_by_horizon_add_up(evaluated):
    evaluation = evaluated()
    ledger = evaluation.full.ledger
    capital = 100 * ledger.mark[evaluation.bar_rows[evaluation.decisions.starts]]
    outside = np.setdiff1d(np.arange(len(ledger)), evaluation.bar_rows)
    total = (evaluation.horizon_returns * capital).sum() + ledger.reward[outside].sum()
    assert total == pytest.approx(ledger.net_value[-1] - ledger.initial_capital, rel=1e-9)
    assert evaluation.code_usage.sum() == len(evaluation.decisions.codes)
    assert sum(evaluation.overrides.values()) == len(evaluation.decisions.codes)


def test_the_base_archetype_is_the_best_on_validation(evaluated):
    evaluation = evaluated()
    assert evaluation.base_code == int(np.argmax(evaluation.validation_profits))
    assert len(set(evaluation.validation_profits.tolist())) == evaluation.num_codes


def test_random_archetypes_are_seeded_and_averaged(evaluated):
    one, same, other = evaluated(), evaluated(), evaluated(seed=1)
    assert len(one.random_draws) == 5
    assert one.random_draws == same.random_draws
    assert one.random_draws != other.random_draws
    returns = sorted(draw.total_return for draw in one.random_draws)
    row = one.variants["random_archetype"]
    assert row.performance.total_return == pytest.approx(np.mean(returns))
    assert row.ledger.performance().total_return == returns[2]


def test_without_refinement_the_same_archetypes_trade_their_base_actions(evaluated):
    evaluation = evaluated()
    base = evaluation.variants["no_refinement"].ledger
    rows = evaluation.bar_rows[:-1]
    np.testing.assert_array_equal(base.action[rows], evaluation.decisions.base_actions[:-1])
    assert evaluation.overrides["none"] < len(evaluation.decisions.codes)


def test_results_of_a_decoder_that_reads_the_future_are_flagged(evaluated):
    causal, reading = evaluated(), evaluated(decoder="bilstm")
    assert {name for name, variant in causal.variants.items() if variant.hindsight} == {"hindsight_plan"}
    assert {name for name, variant in reading.variants.items() if not variant.hindsight} == {
        "buy_and_hold",
        "always_flat",
    }
    assert reading.hindsight
    assert not causal.hindsight


def test_a_policy_without_codes_has_no_report(evaluated):
    with pytest.raises(ArtifactError, match=r"'continuous' has no codes.*report or leaderboard"):
        evaluated(embedding="continuous")


def test_a_table_of_other_bars_is_refused(small_bars, small_settings, random_policy):
    settings = small_settings()
    table = build_feature_table(small_bars, settings, "ETH")
    policy = random_policy(settings, features=len(FEATURE_NAMES))
    with pytest.raises(MarketDataError, match="not among the bars"):
        evaluate(small_bars.gather_every(2), table, policy, settings, "ETH")
    with pytest.raises(MarketDataError, match="no bars"):
        evaluate(small_bars[:800], table, policy, settings, "ETH")
