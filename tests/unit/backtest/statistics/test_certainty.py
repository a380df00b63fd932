"""The whole verdict on ledgers, and the settings it is made with."""

import json

import numpy as np
import pytest

from archetype_dagster.backtest.replay import replay_priced
from archetype_dagster.backtest.statistics import certainty, compare_paths, expected_maximum_sharpe
from archetype_dagster.settings import ExecutionSettings, StatisticsSettings

SETTINGS = StatisticsSettings(
    bootstrap_samples=200, overfitting_groups=6, overfitting_test_groups=3, purge_bars=5, embargo_bars=2
)
YEAR = 52_560


@pytest.fixture
def account(priced):
    """The ledger of given actions on one random market of 1,200 bars."""
    market = 100 * np.exp(np.cumsum(np.random.default_rng(0).normal(0, 1e-3, 1200)))
    bars = priced(market, rate=1e-4)

    def trade(actions):
        return replay_priced(np.broadcast_to(actions, 1200).astype(np.int8), bars, settings=ExecutionSettings())

    return trade


@pytest.fixture
def trials(account):
    rng = np.random.default_rng(1)
    return {str(seed): account(np.repeat(rng.integers(0, 3, 50), 24)) for seed in range(6)}


def test_everything_is_there_and_ready_for_json(account, trials):
    found = certainty(trials["0"], settings=SETTINGS, seed=0, benchmarks={"buy_and_hold": account(2)}, trials=trials)
    assert found.bars == 1200
    assert found.periods_per_year == YEAR
    assert found.sharpe.trials == found.overfitting.trials == 6
    text = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert text["intervals"]["sharpe"]["estimate"] == trials["0"].performance().sharpe
    assert text["overfitting"]["combinations"] == 20
    assert text["comparisons"]["buy_and_hold"] == (
        compare_paths(
            trials["0"].net_value_path,
            account(2).net_value_path,
            settings=SETTINGS,
            periods_per_year=YEAR,
            seed=0,
        ).as_dict()
    )


def test_annual_and_per_period_figures_agree(trials):
    found = certainty(trials["0"], settings=SETTINGS, seed=0, trials=trials)
    annual = [trial.performance().sharpe for trial in trials.values()]
    assert found.sharpe.estimate.sharpe * np.sqrt(YEAR) == pytest.approx(annual[0])
    assert found.sharpe.expected_maximum == pytest.approx(expected_maximum_sharpe(6, np.var(annual, ddof=1)))
    assert found.sharpe.deflated < found.sharpe.probabilistic


def test_more_may_have_been_tried_than_there_are_ledgers_of(trials):
    few = certainty(trials["0"], settings=SETTINGS, seed=0, trials=trials)
    annual = [trial.performance().sharpe for trial in trials.values()]
    many = certainty(trials["0"], settings=SETTINGS, seed=0, trials=trials, trial_sharpes=[*annual * 20, None])
    assert many.sharpe.trials == 121
    assert many.sharpe.deflated < few.sharpe.deflated


def test_one_trial_is_not_deflated_and_not_overfitted(trials):
    found = certainty(trials["0"], settings=SETTINGS, seed=0)
    assert found.sharpe.trials == 1
    assert found.sharpe.deflated == found.sharpe.probabilistic
    assert found.overfitting is None
    assert found.comparisons == {}


def test_an_account_that_never_traded_has_no_sharpe_ratio(account):
    found = certainty(account(1), settings=SETTINGS, seed=0, benchmarks={"buy_and_hold": account(2)})
    assert found.sharpe is None
    assert found.intervals["sharpe"].defined_share == 0.0
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_ruined_account_is_judged_on_the_same_bars(account, trials, priced):
    crash = np.concatenate([np.linspace(100, 110, 300), np.full(900, 250.0)])
    ruined = replay_priced(np.zeros(1200, dtype=np.int8), priced(crash), settings=ExecutionSettings())
    assert ruined.ruined
    assert len(ruined) < 1200
    found = certainty(
        ruined, settings=SETTINGS, seed=0, benchmarks={"flat": account(1)}, trials={**trials, "ruined": ruined}
    )
    assert found.intervals["total_return"].estimate == -1.0
    assert found.overfitting.trials == 7
    json.dumps(found.as_dict(), allow_nan=False)


def test_the_same_seed_gives_the_same_bytes(account, trials):
    first, again = (
        json.dumps(
            certainty(trials["0"], settings=SETTINGS, seed=5, benchmarks={"hold": account(2)}, trials=trials).as_dict()
        )
        for _ in range(2)
    )
    assert first == again


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"overfitting_groups": 6, "overfitting_test_groups": 6}, "below overfitting_groups=6"),
        ({"overfitting_groups": 24, "overfitting_test_groups": 12}, "got 2704156"),
        ({"block_bars": 0.5}, "block_bars"),
        ({"confidence": 1.0}, "confidence"),
        ({"blocks": 3}, "blocks"),
    ],
)
def test_settings_out_of_range_are_refused(values, rule):
    with pytest.raises(ValueError, match=rule):
        StatisticsSettings(**values)
