"""An exported bundle decides as the trained policy does, whatever the batch, and refuses what it must."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import polars as pl
import pytest
import torch

from archetype_dagster.backtest.policy import TradingPolicy, decide
from archetype_dagster.codebook.history import HISTORY_SCHEMA
from archetype_dagster.codebook.model import Codebook
from archetype_dagster.codebook.modules import CodebookModules
from archetype_dagster.deployment import BundleGraphs, check_parity, export_policy
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.features import FEATURE_NAMES
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.refinement.adapter import context_size
from archetype_dagster.refinement.network import RefinerNetwork
from archetype_dagster.refinement.refiner import Refiner
from archetype_dagster.selection.continuous import ContinuousSelector
from archetype_dagster.selection.gaussian import GaussianSelectorNetwork
from archetype_dagster.selection.network import SelectorNetwork
from archetype_dagster.selection.selector import Selector
from archetype_dagster.settings import Settings, load_settings

F, HORIZON, ROWS = len(FEATURE_NAMES), 24, 200
SCALER = FeatureScaler(np.linspace(-1.0, 2.0, F), np.linspace(0.5, 3.0, F), 10.0)


def make_settings(**overrides) -> Settings:
    base = {"planner.horizon_bars": HORIZON, "codebook.hidden_size": 32, "codebook.num_codes": 5}
    return load_settings("smoke", {**base, **overrides})


def make_policy(seed: int = 0, **overrides) -> TradingPolicy:
    settings = make_settings(**overrides)
    modules = CodebookModules.build(settings.codebook, F, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        selector = SelectorNetwork(F, settings.codebook.num_codes, settings.selection.hidden_sizes)
        refiner = RefinerNetwork(F, context_size(settings.codebook.code_dim), 32)
    with torch.no_grad():
        # Untrained heads hardly ever act: spread them out so that all actions and overrides occur.
        modules.quantizer.codes.copy_(torch.randn(modules.quantizer.codes.shape, generator=generator))
        modules.decoder.head.weight.mul_(8.0)
        refiner.actor.weight.copy_(torch.randn(refiner.actor.weight.shape, generator=generator) / 8)
        refiner.actor.bias.copy_(torch.tensor([0.0, 1.0, 0.0]))
        for block in (*refiner.blocks, refiner):
            block.norm.modulation.weight.copy_(torch.randn(block.norm.modulation.weight.shape, generator=generator) / 4)
    history = pl.DataFrame(schema=HISTORY_SCHEMA)
    codebook = Codebook(
        modules,
        settings=settings.codebook,
        num_features=F,
        horizon_bars=HORIZON,
        history=history,
    )
    return TradingPolicy(
        codebook,
        Selector(selector.eval().requires_grad_(False), pl.DataFrame()),
        Refiner(refiner.eval().requires_grad_(False), pl.DataFrame()),
        settings,
    )


@pytest.fixture(scope="module")
def dataset() -> MarketDataset:
    generator = np.random.default_rng(5)
    mark = 2600.0 * np.exp(np.cumsum(generator.normal(0, 0.002, ROWS)))
    step = np.abs(np.arange(3)[:, None] - np.arange(3))
    return MarketDataset(
        pair="ETH",
        timestamps=np.datetime64("2024-01-01", "us") + np.arange(ROWS) * np.timedelta64(10, "m"),
        states=generator.normal(size=(ROWS, F)).astype(np.float32),
        mark=mark,
        costs=0.03 * step * mark[:, None, None],
        segment=(np.arange(ROWS) >= 110).astype(np.int32),
        max_position=100.0,
        horizon_bars=HORIZON,
    )


@pytest.fixture(scope="module")
def policy() -> TradingPolicy:
    return make_policy()


@pytest.fixture(scope="module")
def bundle(policy, tmp_path_factory):
    directory = tmp_path_factory.mktemp("bundle")
    export_policy(policy, SCALER, directory, pair="ETH")
    return directory


@pytest.fixture(scope="module")
def bare_bundle(tmp_path_factory):
    """A policy without refiner whose logits are all equal."""
    policy = make_policy(seed=2).without_refinement()
    with torch.no_grad():
        for head in (policy.codebook.decoder.head, policy.selector.network.actor):
            head.weight.zero_()
            head.bias.zero_()
    directory = tmp_path_factory.mktemp("bare")
    export_policy(policy, SCALER, directory, pair="ETH")
    return directory, policy


def test_the_bundle_decides_as_the_policy_does_at_every_batch_size(bundle, policy, dataset):
    report = check_parity(bundle, policy, dataset, batch_sizes=(1, 3, 4))
    assert report.passed, report.as_dict()
    assert report.max_abs_difference <= 1e-5
    assert report.bars == ROWS
    assert {(part.graph, part.batch_size) for part in report.graphs} == {
        (graph, size) for graph in ("selector", "decoder", "refiner") for size in (1, 3, 4)
    }
    decisions = decide(policy, dataset)
    assert set(decisions.actions) == {0, 1, 2}, "the comparison must see every action"
    assert (decisions.override_rows >= 0).any(), "the comparison must see overrides"


def test_parity_holds_under_the_other_rules(tmp_path, dataset):
    policy = make_policy(
        **{
            "codebook.decoding": "single_change",
            "refinement.override": "hold",
            "execution.execution_delay_bars": 1,
        }
    )
    export_policy(policy, SCALER, tmp_path, pair="ETH")
    assert check_parity(tmp_path, policy, replace(dataset, execution_delay_bars=1)).passed


def test_parity_fails_against_another_policy(bundle, dataset):
    report = check_parity(bundle, make_policy(seed=1), dataset)
    assert not report.passed
    assert report.max_abs_difference > 1e-3


def test_graphs_name_their_state_and_leave_the_batch_free(bundle):
    decoder = onnx.load(bundle / "decoder_step.onnx").graph
    assert [value.name for value in decoder.input] == ["state", "code", "hidden_in", "cell_in"]
    assert [value.name for value in decoder.output] == ["action_logits", "hidden_out", "cell_out"]
    for file in bundle.glob("*.onnx"):
        graph = onnx.load(file).graph
        for value in (*graph.input, *graph.output):
            assert value.type.tensor_type.shape.dim[0].dim_param == "batch", f"{file.name}: {value.name}"


def test_equal_logits_choose_the_lowest_action_in_both_runtimes(bare_bundle, dataset):
    directory, policy = bare_bundle
    assert check_parity(directory, policy, dataset).passed
    decisions = decide(policy, dataset)
    assert not decisions.codes.any()
    assert not decisions.actions.any()


def test_a_policy_without_refiner_exports_two_graphs(bare_bundle):
    directory, _ = bare_bundle
    assert sorted(path.name for path in directory.glob("*.onnx")) == ["decoder_step.onnx", "selector.onnx"]
    bundle = BundleGraphs.load(directory)
    assert bundle.manifest["override"] is None
    one = np.zeros(1, dtype=np.float32)
    with pytest.raises(ValueError, match="without a refiner"):
        bundle.override_logits(np.zeros((1, F), np.float32), np.zeros(1, np.int64), np.ones(1, np.int8), one, one)


def test_the_same_policy_gives_the_same_bytes_and_no_paths(bundle, policy, dataset, tmp_path):
    before = decide(policy, dataset).actions
    export_policy(policy, SCALER, tmp_path, pair="ETH")
    assert np.array_equal(decide(policy, dataset).actions, before)
    names = sorted(path.name for path in bundle.iterdir())
    assert names == [
        "checksums.json",
        "decoder_step.onnx",
        "policy.json",
        "refiner_step.onnx",
        "scaler.json",
        "selector.onnx",
    ]
    for name in names:
        content = (bundle / name).read_bytes()
        assert content == (tmp_path / name).read_bytes(), name
        assert b"site-packages" not in content
        assert str(Path.cwd()).encode() not in content


def test_another_process_gets_the_same_code_from_the_bundle_alone(bundle, policy):
    raw = np.random.default_rng(9).normal(size=F)
    program = (
        "import json, sys, numpy as np, onnxruntime as ort\n"
        "folder, raw = sys.argv[1], np.array(json.loads(sys.argv[2]))\n"
        "s = json.load(open(folder + '/scaler.json'))\n"
        "x = np.clip((raw - s['mean']) / s['std'], -s['clip_sigma'], s['clip_sigma']).astype('float32')\n"
        "session = ort.InferenceSession(folder + '/selector.onnx')\n"
        "print(int(session.run(None, {'state': x[None]})[0].argmax()))\n"
    )
    command = [sys.executable, "-c", program, str(bundle), json.dumps(raw.tolist())]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert int(printed) == policy.selector.choose(SCALER.transform(raw[np.newaxis]))[0]


def test_the_manifest_states_what_a_runtime_needs(bundle):
    manifest = json.loads((bundle / "policy.json").read_text())
    assert manifest["feature_names"] == list(FEATURE_NAMES)
    assert (manifest["horizon_bars"], manifest["max_position"], manifest["commission_rate"]) == (24, 100.0, 0.0002)
    assert manifest["hindsight"] is False
    assert manifest["opset"] == onnx.load(bundle / "selector.onnx").opset_import[0].version
    assert BundleGraphs.load(bundle).bundle.scaler.mean == pytest.approx(SCALER.mean, abs=0)


def test_a_hindsight_policy_is_refused_and_nothing_is_written(tmp_path):
    policy = make_policy(**{"codebook.decoder": "bilstm", "codebook.decoding": "single_change"})
    with pytest.raises(ArtifactError, match="hindsight"):
        export_policy(policy, SCALER, tmp_path, pair="ETH")
    assert list(tmp_path.iterdir()) == []


def test_a_continuous_policy_is_refused_and_nothing_is_written(tmp_path):
    settings = make_settings(**{"codebook.embedding": "continuous"})
    selector = ContinuousSelector(GaussianSelectorNetwork(F, settings.codebook.code_dim, (8,)), pl.DataFrame())
    policy = TradingPolicy(Codebook.untrained(F, HORIZON, settings.codebook), selector, None, settings)
    with pytest.raises(ArtifactError, match="a continuous policy is not exported"):
        export_policy(policy, SCALER, tmp_path, pair="ETH")
    assert list(tmp_path.iterdir()) == []


def test_parts_of_different_runs_are_refused(tmp_path, policy):
    short = FeatureScaler(np.zeros(3), np.ones(3), 10.0)
    with pytest.raises(ArtifactError, match="the scaler's features must be 45, got 3"):
        export_policy(policy, short, tmp_path, pair="ETH")
    other = replace(policy, selector=make_policy(**{"codebook.num_codes": 7}).selector)
    with pytest.raises(ArtifactError, match="the selector's codes must be 5, got 7"):
        export_policy(other, SCALER, tmp_path, pair="ETH")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["selector.onnx", "scaler.json", "policy.json"])
def test_a_changed_or_missing_file_is_refused(bundle, tmp_path, name):
    for path in bundle.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(ArtifactError, match=f"{name} does not have the hash"):
        BundleGraphs.load(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ArtifactError, match=f"{name} is missing"):
        BundleGraphs.load(tmp_path)


def test_a_folder_without_checksums_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match=r"checksums\.json does not exist"):
        BundleGraphs.load(tmp_path)


@pytest.mark.parametrize("arguments", [{"horizons": 0}, {"batch_sizes": ()}, {"batch_sizes": (0,)}])
def test_parity_needs_something_to_compare(bundle, policy, dataset, arguments):
    with pytest.raises(ValueError, match="must be positive"):
        check_parity(bundle, policy, dataset, **arguments)
