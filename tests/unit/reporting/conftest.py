"""A small evaluation made by hand: 400 bars, four archetypes, a cut horizon and a policy that wins a little."""

from collections.abc import Callable

import numpy as np
import pytest

from archetype_dagster.backtest.evaluation import VARIANTS, Evaluation, Variant
from archetype_dagster.backtest.performance import mean_performance
from archetype_dagster.backtest.policy import Decisions
from archetype_dagster.backtest.replay import PricedBars, replay_priced
from archetype_dagster.settings import ExecutionSettings, Settings

BARS, WARMUP, HORIZON, CODES = 5000, 60, 72, 10
MAX_POSITION = 100.0
PER_YEAR = 52_560.0


@pytest.fixture(scope="session")
def settings() -> Settings:
    return Settings()


@pytest.fixture(scope="session")
def make_evaluation() -> Callable[..., Evaluation]:
    return build_evaluation


@pytest.fixture(scope="session")
def evaluation() -> Evaluation:
    return build_evaluation()


def build_evaluation(*, hindsight: bool = False, crash: bool = False, seed: int = 0) -> Evaluation:
    generator = np.random.default_rng(seed)
    moves = generator.normal(0, 0.002, BARS)
    mark = 2600.0 * np.exp(np.cumsum(moves))
    if crash:
        mark[BARS // 2 :] *= 2.2
    unit = np.abs(np.arange(3)[:, None] - np.arange(3)) * MAX_POSITION
    priced = PricedBars(
        timestamps=np.datetime64("2024-01-25T00:00", "us") + np.arange(BARS) * np.timedelta64(10, "m"),
        mark=mark,
        slippage=1e-4 * unit * mark[:, None, None],
        commission=2e-4 * unit * mark[:, None, None],
        segment=np.zeros(BARS, dtype=np.int32),
        max_position=MAX_POSITION,
        commission_rate=2e-4,
    )
    rows = np.arange(WARMUP, BARS)
    starts = np.arange(0, len(rows), HORIZON)
    lengths = np.diff(np.append(starts, len(rows)))
    codes = generator.integers(0, CODES - 1, len(starts))
    ahead = np.array([mark[rows[s + n - 1]] > mark[rows[s]] for s, n in zip(starts, lengths, strict=True)])
    lucky = generator.random(len(starts)) < 0.56
    base = np.repeat(np.where(ahead == lucky, 2, 0), lengths).astype(np.int8)
    base[np.repeat(codes % 3 == 1, lengths)] = 1
    override_rows = np.where(generator.random(len(starts)) < 0.3, starts + 5, -1)
    actions = base.copy()
    actions[override_rows[override_rows >= 0]] = 2
    if crash:
        actions[:] = 0

    def trade(choice):
        every = np.ones(BARS, dtype=np.int8)
        every[rows] = choice
        return replay_priced(every, priced, settings=ExecutionSettings())

    ledgers = {
        "full": trade(actions),
        "no_refinement": trade(base),
        "base_archetype": trade(np.roll(base, 720)),
        "random_archetype": trade(np.roll(base, 1440)),
        "buy_and_hold": replay_priced(np.full(BARS, 2), priced, settings=ExecutionSettings()),
        "always_flat": replay_priced(np.ones(BARS, dtype=np.int8), priced, settings=ExecutionSettings()),
        "hindsight_plan": trade(np.repeat(np.where(ahead, 2, 0), lengths)),
    }
    draws = tuple(ledgers[name].performance(PER_YEAR) for name in ("random_archetype", "base_archetype"))
    metrics = {name: ledger.performance(PER_YEAR) for name, ledger in ledgers.items()}
    metrics["random_archetype"] = mean_performance(draws)
    reads = {"hindsight_plan"} | (
        {"full", "no_refinement", "base_archetype", "random_archetype"} if hindsight else set()
    )
    return Evaluation(
        pair="ETH",
        variants={name: Variant(name, ledgers[name], metrics[name], name in reads) for name in VARIANTS},
        decisions=Decisions(
            starts=starts,
            lengths=lengths,
            codes=codes,
            initial_actions=np.ones(len(starts), dtype=np.int8),
            base_actions=base,
            override_rows=override_rows,
            override_directions=np.where(override_rows >= 0, 1, 0).astype(np.int8),
            actions=actions,
        ),
        bar_rows=rows,
        base_code=3,
        validation_profits=np.arange(CODES, dtype=np.float64),
        random_draws=draws,
        bars=BARS,
        book_sources=("modelled",),
        periods_per_year=PER_YEAR,
        max_position=MAX_POSITION,
    )
