"""A policy over windows decides as one that lives bar by bar, and sees nothing of what comes later."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from archetype_dagster.backtest.leaks import LeakStatus
from archetype_dagster.backtest.policy import decide
from archetype_dagster.backtest.tracing import check_policy, newest_horizons
from archetype_dagster.market.feature_table import build_feature_table
from archetype_dagster.market.features import FEATURE_NAMES, WARMUP_BARS
from archetype_dagster.market.sources import bars_for
from archetype_dagster.refinement import Refiner, RefinerNetwork, context_size
from archetype_dagster.rl.market_windows import MarketWindows
from archetype_dagster.seeding import seeded_initialisation
from archetype_dagster.selection import Selector, SelectorNetwork
from archetype_dagster.settings import load_settings

H = 8
SETTINGS = load_settings(overrides={"planner.horizon_bars": H})


@pytest.fixture
def window_policy(random_policy):
    """The random policy whose selector and refiner read 5 and 9 bars."""

    def make(settings=SETTINGS, *, features=6):
        policy = random_policy(settings, features=features)
        with seeded_initialisation(1, "window_policy"):
            selector = SelectorNetwork(features, 4, (8,), backbone="TransformerBackbone", lookback_bars=5)
            refiner = RefinerNetwork(
                features, context_size(3), 8, backbone="RecurrentBackbone", lookback_bars=9,
                backbone_kwargs={"hidden_size": 8},
            )  # fmt: skip
            for module in (selector.actor, refiner.actor, *(block.norm.modulation for block in refiner.blocks)):
                nn.init.normal_(module.weight, std=2.0)
        empty = pl.DataFrame()
        return replace(policy, selector=Selector(selector.eval(), empty), refiner=Refiner(refiner.eval(), empty))

    return make


def test_each_decision_is_that_of_its_own_window(random_dataset, window_policy):
    dataset, policy = random_dataset(segments=(50, 8, 3, 61)), window_policy()
    decisions = decide(policy, dataset, trace=True)
    assert len(set(decisions.codes.tolist())) > 1
    assert (decisions.override_rows >= 0).any()
    begins = np.searchsorted(dataset.segment, dataset.segment)
    for horizon, start in enumerate(decisions.starts):
        window = _window(dataset, start, begins[start], 5)
        np.testing.assert_allclose(
            policy.selector.logits(window[None])[0], decisions.trace.selector_logits[horizon], atol=1e-5
        )
    windows = np.stack([_window(dataset, row, begin, 9) for row, begin in enumerate(begins)])
    np.testing.assert_allclose(
        policy.refiner.logits(windows, decisions.trace.context), decisions.trace.refiner_logits, atol=1e-4
    )


@pytest.mark.parametrize("cut", [3, 21, 49, 50, 57, 100])
def test_other_bars_after_a_row_change_nothing_up_to_it(random_dataset, window_policy, cut):
    dataset, other, policy = (
        random_dataset(segments=(50, 70)),
        random_dataset(segments=(50, 70), seed=1),
        window_policy(),
    )
    after = np.arange(len(dataset)) > cut
    changed = replace(
        dataset,
        states=np.where(after[:, None], other.states, dataset.states),
        mark=np.where(after, other.mark, dataset.mark),
        costs=np.where(after[:, None, None], other.costs, dataset.costs),
    )
    before, moved = decide(policy, dataset, trace=True), decide(policy, changed, trace=True)
    np.testing.assert_array_equal(moved.actions[~after], before.actions[~after])
    np.testing.assert_array_equal(moved.trace.refiner_logits[~after], before.trace.refiner_logits[~after])
    known = before.starts <= cut
    np.testing.assert_array_equal(moved.trace.selector_logits[known], before.trace.selector_logits[known])
    assert not np.array_equal(moved.trace.refiner_logits, before.trace.refiner_logits)


def test_the_leak_check_passes_windows_and_finds_one_that_reads_a_bar_ahead(window_policy, small_settings, monkeypatch):
    settings = small_settings(
        **{
            f"{phase}.{name}": value
            for phase, lookback in (("selection", 5), ("refinement", 9))
            for name, value in (("backbone", "RecurrentBackbone"), ("lookback_bars", lookback))
        }
    )
    bars = bars_for(settings, "ETH")[:400]
    scaler = build_feature_table(bars, settings, "ETH").scaler
    policy = window_policy(settings, features=len(FEATURE_NAMES))
    assert newest_horizons(bars, settings, 2).height == WARMUP_BARS + 8 + 2 * 12
    report = check_policy(bars, settings, "ETH", scaler, policy)
    assert report.status is LeakStatus.PASSED, report.reason
    assert {"selector_logits", "refiner_logits"} <= set(report.responsive)

    def ahead(windows, rows):
        return honest(windows, (rows + 1).clamp(max=len(windows._states) - 1))

    honest = MarketWindows.at
    monkeypatch.setattr(MarketWindows, "at", ahead)
    leaking = check_policy(bars, settings, "ETH", scaler, policy)
    assert leaking.status is LeakStatus.FAILED
    assert "refiner_logits" in {leak.array for leak in leaking.leaks}
    assert not {leak.array for leak in leaking.leaks} & {"features", "states"}


def _window(dataset, row, begin, lookback):
    rows = dataset.states[max(begin, row - lookback + 1) : row + 1]
    return torch.cat([torch.zeros(lookback - len(rows), dataset.num_features), torch.from_numpy(rows)]).numpy()
