"""The whole method finds the edge that is really in the embedded market, and none where there is none.

Three seeds, each its own market and its own networks, small enough for a minute or two. Profits are compared
per horizon on bars the policy never saw; a one-sided t statistic of 3 is a chance of about one in 700.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.backtest.evaluation import evaluate
from archetype_dagster.backtest.policy import TradingPolicy, archetype_actions
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.codebook.training import train_codebook
from archetype_dagster.market.feature_table import build_feature_table
from archetype_dagster.market.sources import bars_for
from archetype_dagster.market.splits import split_dataset
from archetype_dagster.planning.trajectories import build_trajectories
from archetype_dagster.refinement.training import train_refiner
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.selection.returns_table import build_archetype_returns
from archetype_dagster.selection.training import train_selector
from archetype_dagster.settings import Settings, load_settings
from archetype_dagster.types import FloatArray, NoProgress

SEEDS = (0, 1, 2)
SIGNIFICANT = 3.0


@dataclass(frozen=True)
class HorizonProfits:
    """Profit of each test horizon in percent of m p_0, float64 (n,)."""

    full: FloatArray
    buy_and_hold: FloatArray
    random_archetype: FloatArray


def settings_for(seed: int, *, shuffled: bool) -> Settings:
    return load_settings(
        "smoke",
        {
            "seed": seed,
            "market.synthetic": {"start": "2023-01-01T00:00Z", "end": "2025-01-01T00:00Z", "shuffle_returns": shuffled},
            "market.book_levels": 5,
            "splits": {
                "train_start": "2023-01-01",
                "train_end": "2023-07-01",
                "validation_start": "2023-07-01",
                "validation_end": "2023-09-01",
                "test_start": "2023-09-01",
                "test_end": "2025-01-01",
            },
            # Ten times the notional, so that no account is ruined and every horizon counts the same.
            "execution.initial_capital": 2_600_000,
            "planner.num_trajectories": 1200,
            "codebook.hidden_size": 32,
            "codebook.epochs": 6,
            "codebook.num_codes": 6,
            "codebook.learning_rate": 0.005,
            "selection.total_steps": 400_000,
            "refinement.total_steps": 30_000,
            "refinement.evaluations": 2,
        },
    )


def out_of_sample(seed: int, *, shuffled: bool) -> HorizonProfits:
    settings = settings_for(seed, shuffled=shuffled)
    device, resume, progress = torch.device("cpu"), ResumePoint(None, "edge"), NoProgress()
    common = {"device": device, "progress": progress}
    bars = bars_for(settings, "ETH")
    table = build_feature_table(bars, settings, "ETH")
    splits = split_dataset(table.dataset(settings), settings.splits)
    plans = build_trajectories(splits.train, settings.planner, seed=seed, progress=progress)
    codebook = train_codebook(splits.train, plans, settings.codebook, seed=seed, resume=resume, **common)
    returns = build_archetype_returns(
        splits.train, splits.validation, codebook, settings.planner, settings.selection, **common
    )
    selector = train_selector(
        splits.train,
        splits.validation,
        returns,
        settings.selection,
        horizon_bars=settings.planner.horizon_bars,
        seed=seed,
        resume=resume,
        **common,
    )
    refiner = train_refiner(
        splits.train,
        splits.validation,
        codebook,
        selector,
        settings.refinement,
        beta_1=settings.beta_1("ETH"),
        seed=seed,
        resume=resume,
        **common,
    )
    policy = TradingPolicy(codebook, selector, refiner, settings)
    evaluation = evaluate(bars, table, policy, settings, "ETH")

    decisions, rows = evaluation.decisions, evaluation.bar_rows
    notional = evaluation.max_position * evaluation.full.ledger.mark[rows[decisions.starts]]

    def per_horizon(reward: FloatArray) -> FloatArray:
        return np.asarray(100 * np.add.reduceat(reward[rows], decisions.starts) / notional)

    # The mean over many draws, so that the comparison is with the distribution and not with one path.
    account = SplitAccounts(bars, splits.test, settings, (settings.splits.test_start, settings.splits.test_end))
    by_code = archetype_actions(codebook, splits.test)
    horizon = np.repeat(np.arange(len(decisions.starts)), decisions.lengths)
    draws = [
        numpy_generator(seed, "test", draw).integers(len(by_code), size=len(decisions.starts)) for draw in range(20)
    ]
    random = [account.trade(by_code[codes[horizon], np.arange(len(horizon))]).reward for codes in draws]
    return HorizonProfits(
        full=per_horizon(evaluation.full.ledger.reward),
        buy_and_hold=per_horizon(evaluation.variants["buy_and_hold"].ledger.reward),
        random_archetype=per_horizon(np.mean(random, axis=0)),
    )


def t_statistic(sample: FloatArray) -> float:
    return float(sample.mean() / sample.std(ddof=1) * np.sqrt(len(sample)))


@pytest.fixture(scope="module")
def honest() -> list[HorizonProfits]:
    return [out_of_sample(seed, shuffled=False) for seed in SEEDS]


@pytest.fixture(scope="module")
def shuffled() -> list[HorizonProfits]:
    return [out_of_sample(seed, shuffled=True) for seed in SEEDS]


@pytest.mark.slow
@pytest.mark.parametrize("rival", ["always_flat", "buy_and_hold", "random_archetype"])
def test_the_policy_beats_its_rivals_out_of_sample(honest: list[HorizonProfits], rival: str) -> None:
    def excess(profits: HorizonProfits) -> FloatArray:
        return profits.full - (0.0 if rival == "always_flat" else getattr(profits, rival))

    assert all(excess(profits).sum() > 0 for profits in honest)
    assert t_statistic(np.concatenate([excess(profits) for profits in honest])) > SIGNIFICANT


@pytest.mark.slow
def test_its_edge_vanishes_when_returns_are_shuffled(
    honest: list[HorizonProfits], shuffled: list[HorizonProfits]
) -> None:
    with_edge = np.concatenate([profits.full for profits in honest])
    without = np.concatenate([profits.full for profits in shuffled])
    assert t_statistic(without) < SIGNIFICANT
    assert without.mean() < with_edge.mean() / 4
    pooled = np.sqrt(with_edge.var(ddof=1) / len(with_edge) + without.var(ddof=1) / len(without))
    assert (with_edge.mean() - without.mean()) / pooled > SIGNIFICANT
