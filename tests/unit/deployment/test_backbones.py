"""Policies over windows: every backbone in selector and refiner streams as the batch decides."""

import itertools
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from archetype_dagster.artifacts import read_json
from archetype_dagster.backtest import BacktestEngine, decide, replay, spot_instrument
from archetype_dagster.backtest.replay import bar_ends
from archetype_dagster.deployment import (
    BundleGraphs,
    OnnxPolicy,
    OnnxPolicyStrategy,
    check_parity,
    check_streaming,
    replay_bundle,
)
from archetype_dagster.deployment.graphs import refiner_graph, selector_graph, write_graph
from archetype_dagster.market.feature_table import FeatureTable, build_feature_table
from archetype_dagster.market.sources import bars_for
from archetype_dagster.settings import Settings
from archetype_dagster.types import FLAT

# Windows longer than a horizon's first bars, and of different lengths in the two phases.
BACKBONES = {
    None: (1, {}),
    "RecurrentBackbone": (5, {"hidden_size": 8}),
    "TransformerBackbone": (6, {"n_heads": 2, "n_layers": 1, "d_ff": 16}),
    "PatchTSTBackbone": (8, {"patch_length": 4, "d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 16}),
    "AutoencoderBackbone": (3, {"hidden_sizes": [16], "bottleneck": 4}),
}
SPOT = spot_instrument("ETH", "USDT")
CAPITAL = 1e7  # outlives what any untrained policy loses
PAIRS = [("RecurrentBackbone", "TransformerBackbone")]
ALL_PAIRS = list(itertools.product(BACKBONES, BACKBONES))
RULES = list(itertools.product(("step", "hold"), ("argmax", "single_change")))


def backbones(selector, refiner):
    chosen = {}
    for phase, alias in (("selection", selector), ("refinement", refiner)):
        bars, arguments = BACKBONES[alias]
        chosen |= {f"{phase}.backbone": alias, f"{phase}.lookback_bars": bars, f"{phase}.backbone_kwargs": arguments}
    return chosen


@pytest.fixture(scope="module")
def graph_of(make_policy, tmp_path_factory):
    """A phase's graph over a backbone, exported once."""
    made: dict[tuple[str, str | None], tuple[Path, dict]] = {}

    def make(phase, alias):
        if (phase, alias) not in made:
            policy = make_policy(**backbones(alias, alias))
            codes = policy.codebook.quantizer.codes
            network = policy.selector.network if phase == "selector" else policy.refiner.network
            graph = selector_graph(network) if phase == "selector" else refiner_graph(network, codes)
            folder = tmp_path_factory.mktemp("graph")
            made[phase, alias] = folder / graph.file, write_graph(folder, graph)
        return made[phase, alias]

    return make


@pytest.fixture
def bundle_over(bundle, graph_of, resealed, tmp_path):
    def make(selector, refiner, **rules):
        target = resealed(bundle, tmp_path)
        graphs, bars = read_json(target / "policy.json")["graphs"], {}
        for phase, alias in (("selector", selector), ("refiner", refiner)):
            bars[f"{phase}_lookback_bars"] = BACKBONES[alias][0]
            if alias is not None:
                path, graphs[phase] = graph_of(phase, alias)
                (target / path.name).write_bytes(path.read_bytes())
        return resealed(target, target, graphs=graphs, **bars, **rules)

    return make


def assert_alike(directory, policy, market, rows, dataset_of):
    dataset = dataset_of(policy.settings)
    expected = decide(policy, dataset)
    streamed = OnnxPolicy.load(directory)
    decided = [decision for decision in map(streamed.on_bar, rows) if decision is not None]
    assert [one.action for one in decided] == expected.actions.tolist()
    assert [one.code for one in decided] == np.repeat(expected.codes, expected.lengths).tolist()
    assert replay_bundle(BundleGraphs.load(directory), dataset).tolist() == expected.actions.tolist()
    assert len(set(expected.actions)) > 1


@pytest.mark.parametrize(("selector", "refiner"), PAIRS)
def test_windows_decide_as_the_batch_does(bundle_over, make_policy, market, rows, dataset_of, selector, refiner):
    policy = make_policy(**backbones(selector, refiner), **{"refinement.override": "hold"})
    directory = bundle_over(selector, refiner, override="hold")
    assert_alike(directory, policy, market, rows, dataset_of)
    dataset = dataset_of(policy.settings)
    assert check_parity(directory, policy, dataset).passed
    report = check_streaming(directory, policy, market.bars, dataset)
    assert report.passed, report.as_dict()
    assert report.restarts > 8


@pytest.fixture(scope="module")
def whole_split(deployment_settings, market) -> tuple[pl.DataFrame, FeatureTable]:
    """As many bars as the settings' whole test split has, gaps included, and their features."""
    dates = Settings().splits
    span = {"start": (dates.test_start - timedelta(days=1)).isoformat(), "end": dates.test_end.isoformat()}
    settings = deployment_settings(**{f"market.synthetic.{name}": date for name, date in span.items()})
    bars = bars_for(settings, "ETH")
    return bars, build_feature_table(bars, settings, "ETH", scaler=market.scaler)


@pytest.fixture
def deployed(bundle_over, make_policy):
    """A policy and its bundle, for a pair of backbones under a rule of overrides and one of decoding."""

    def make(selector, refiner, override, decoding):
        rules = {"refinement.override": override, "codebook.decoding": decoding}
        policy = make_policy(**backbones(selector, refiner), **rules)
        return policy, bundle_over(selector, refiner, override=override, decoding=decoding)

    return make


def assert_earned_alike(directory, policy, bars, table):
    """The bundle in the engine of events, one bar after the other, against the ledger of the batch's actions."""
    dataset, execution = table.dataset(policy.settings), policy.settings.execution
    expected = decide(policy, dataset)
    assert len(dataset) > 35_000
    assert len(set(expected.actions)) > 1
    assert len(set(expected.codes)) > 1, "the comparison must see the selector"
    np.testing.assert_array_equal(replay_bundle(BundleGraphs.load(directory), dataset), expected.actions)

    actions = np.full(bars.height, FLAT, dtype=np.int8)
    actions[np.searchsorted(bar_ends(bars), dataset.timestamps)] = expected.actions
    ledger = replay(actions, bars, pair="ETH", initial_capital=CAPITAL, settings=execution)
    engine = BacktestEngine(CAPITAL, execution=execution)
    engine.add(SPOT, bars, liquidity_scale=policy.settings.pair("ETH").liquidity_scale)
    result = engine.run(OnnxPolicyStrategy(directory, [SPOT]))
    assert len(ledger) == bars.height, "the account must outlive the split"
    np.testing.assert_array_equal(result.positions["position"], ledger.position)
    np.testing.assert_allclose(result.bars["net_value"], ledger.net_value, rtol=1e-9)
    return expected


@pytest.mark.endurance
@pytest.mark.parametrize(("selector", "refiner"), ALL_PAIRS)
def test_every_pair_decides_on_the_whole_split_as_the_batch_does_while_it_moves_from_instance_to_instance(
    deployed, whole_split, selector, refiner
):
    """Archetypes, base actions and marks too, under one rule, another for each pair."""
    rule = RULES[(list(BACKBONES).index(selector) + list(BACKBONES).index(refiner)) % len(RULES)]
    policy, directory = deployed(selector, refiner, *rule)
    bars, table = whole_split
    dataset = table.dataset(policy.settings)
    report = check_streaming(directory, policy, bars, dataset, horizons=len(dataset))
    assert report.passed, report.as_dict()
    assert report.bars == len(dataset) > 35_000


@pytest.mark.endurance
@pytest.mark.parametrize(("selector", "refiner"), ALL_PAIRS)
@pytest.mark.parametrize(("override", "decoding"), RULES)
def test_every_combination_earns_bar_by_bar_on_the_whole_split_what_the_batch_earns(
    deployed, whole_split, selector, refiner, override, decoding
):
    policy, directory = deployed(selector, refiner, override, decoding)
    expected = assert_earned_alike(directory, policy, *whole_split)
    assert (expected.actions != expected.base_actions).any(), "the comparison must see the refiner"


@pytest.mark.endurance
@pytest.mark.parametrize("selector", BACKBONES)
@pytest.mark.parametrize("decoding", ["argmax", "single_change"])
def test_every_policy_without_a_refiner_earns_bar_by_bar_on_the_whole_split_what_the_batch_earns(
    deployed, resealed, whole_split, selector, decoding
):
    policy, directory = deployed(selector, None, "hold", decoding)
    graphs = read_json(directory / "policy.json")["graphs"]
    bare = resealed(directory, directory, graphs={**graphs, "refiner": None}, override=None)
    expected = assert_earned_alike(bare, replace(policy, refiner=None), *whole_split)
    np.testing.assert_array_equal(expected.actions, expected.base_actions)


def test_the_settings_default_to_the_current_bar():
    assert Settings().selection.lookback_bars == Settings().refinement.lookback_bars == 1
