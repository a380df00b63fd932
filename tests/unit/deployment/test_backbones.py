"""Policies over windows: every backbone in selector and refiner streams as the batch decides."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from archetype_dagster.artifacts import read_json
from archetype_dagster.backtest.policy import decide
from archetype_dagster.deployment import BundleGraphs, OnnxPolicy, check_parity, check_streaming, replay_bundle
from archetype_dagster.deployment.graphs import refiner_graph, selector_graph, write_graph
from archetype_dagster.settings import Settings

# Windows longer than a horizon's first bars, and of different lengths in the two phases.
BACKBONES = {
    None: (1, {}),
    "RecurrentBackbone": (5, {"hidden_size": 8}),
    "TransformerBackbone": (6, {"n_heads": 2, "n_layers": 1, "d_ff": 16}),
    "PatchTSTBackbone": (8, {"patch_length": 4, "d_model": 16, "n_heads": 2, "n_layers": 1, "d_ff": 16}),
    "AutoencoderBackbone": (3, {"hidden_sizes": [16], "bottleneck": 4}),
}
PAIRS = [("RecurrentBackbone", "TransformerBackbone")]


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


@pytest.mark.endurance
@pytest.mark.parametrize(("selector", "refiner"), list(itertools.product(BACKBONES, BACKBONES)))
def test_every_combination_decides_as_the_batch_does(
    bundle_over, make_policy, market, rows, dataset_of, selector, refiner
):
    for override, decoding in itertools.product(("step", "hold"), ("argmax", "single_change")):
        rules = {"refinement.override": override, "codebook.decoding": decoding}
        policy = make_policy(**backbones(selector, refiner), **rules)
        directory = bundle_over(selector, refiner, override=override, decoding=decoding)
        assert_alike(directory, policy, market, rows, dataset_of)


def test_the_settings_default_to_the_current_bar():
    assert Settings().selection.lookback_bars == Settings().refinement.lookback_bars == 1
