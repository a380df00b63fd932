"""An exported bundle decides as the trained policy does, whatever the batch, and refuses what it must."""

import json
import re
import shutil
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
from archetype_dagster.codebook.model import Codebook
from archetype_dagster.deployment import BundleGraphs, check_parity, export_policy, read_bundle
from archetype_dagster.deployment.bundle import seal_bundle
from archetype_dagster.deployment.graphs import selector_graph, write_graph
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.features import FEATURE_NAMES
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.selection.continuous import ContinuousSelector
from archetype_dagster.selection.gaussian import GaussianSelectorNetwork
from archetype_dagster.settings import Settings

F, HORIZON, ROWS = len(FEATURE_NAMES), 24, 200


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
def policy(make_policy) -> TradingPolicy:
    return make_policy()


@pytest.fixture(scope="module")
def bare_bundle(make_policy, market, tmp_path_factory):
    """A policy without refiner whose logits are all equal."""
    policy = make_policy().without_refinement()
    with torch.no_grad():
        for head in (policy.codebook.decoder.head, policy.selector.network.actor):
            head.weight.zero_()
            head.bias.zero_()
    directory = tmp_path_factory.mktemp("bare")
    export_policy(policy, market.scaler, directory, pair="ETH")
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


def test_parity_holds_under_the_other_rules(bundle, resealed, make_policy, tmp_path, dataset):
    rules = {"codebook.decoding": "single_change", "refinement.override": "hold", "execution.execution_delay_bars": 1}
    stated = {"decoding": "single_change", "override": "hold", "execution_delay_bars": 1}
    directory = resealed(bundle, tmp_path, **stated)
    assert check_parity(directory, make_policy(**rules), replace(dataset, execution_delay_bars=1)).passed


def test_parity_fails_against_another_policy(make_policy, bundle, dataset):
    report = check_parity(bundle, make_policy(1), dataset)
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


def test_the_same_weights_give_the_same_bytes_and_no_paths(bundle, policy, dataset, tmp_path):
    before = decide(policy, dataset).actions
    write_graph(tmp_path, selector_graph(policy.selector.network))
    assert np.array_equal(decide(policy, dataset).actions, before)
    assert (tmp_path / "selector.onnx").read_bytes() == (bundle / "selector.onnx").read_bytes()
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
        assert b"site-packages" not in content
        assert str(Path.cwd()).encode() not in content


def test_another_process_gets_the_same_code_from_the_bundle_alone(bundle, policy, market):
    raw = market.scaler.mean + market.scaler.std * np.random.default_rng(9).normal(size=F)
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
    assert int(printed) == policy.selector.choose(market.scaler.transform(raw[np.newaxis]))[0]


def test_the_manifest_states_what_a_runtime_needs(bundle, market):
    manifest = json.loads((bundle / "policy.json").read_text())
    assert manifest["feature_names"] == list(FEATURE_NAMES)
    assert (manifest["horizon_bars"], manifest["max_position"], manifest["commission_rate"]) == (24, 100.0, 0.0002)
    assert (manifest["pair"], manifest["base"], manifest["quote"], manifest["bar_minutes"]) == (
        "ETH",
        "ETH",
        "USDT",
        10,
    )
    assert (manifest["decoding"], manifest["override"], manifest["hindsight"]) == ("argmax", "step", False)
    assert manifest["parents"] == {"vq_codebook": "c0de"}
    assert manifest["opset"] == onnx.load(bundle / "selector.onnx").opset_import[0].version
    opened = read_bundle(bundle)
    assert opened.scaler.mean.tolist() == market.scaler.mean.tolist()
    assert opened.costs.impact_curve.notional.tolist() == (
        ImpactCurve.default().scaled(Settings().pair("ETH").liquidity_scale).notional.tolist()
    )
    assert opened.hash == json.loads((bundle / "checksums.json").read_text())["bundle"]
    assert read_bundle(bundle, expected_hash=opened.hash).hash == opened.hash


def test_a_hindsight_policy_is_refused_and_nothing_is_written(make_policy, tmp_path):
    policy = make_policy(**{"codebook.decoder": "bilstm", "codebook.decoding": "single_change"})
    with pytest.raises(ArtifactError, match="hindsight"):
        export_policy(policy, FeatureScaler(np.zeros(F), np.ones(F), 10.0), tmp_path, pair="ETH")
    assert list(tmp_path.iterdir()) == []


def test_a_continuous_policy_is_refused_and_nothing_is_written(deployment_settings, tmp_path):
    settings = deployment_settings(**{"codebook.embedding": "continuous"})
    selector = ContinuousSelector(GaussianSelectorNetwork(F, settings.codebook.code_dim, (8,)), pl.DataFrame())
    policy = TradingPolicy(Codebook.untrained(F, HORIZON, settings.codebook), selector, None, settings)
    with pytest.raises(ArtifactError, match="a continuous policy is not exported"):
        export_policy(policy, FeatureScaler(np.zeros(F), np.ones(F), 10.0), tmp_path, pair="ETH")
    assert list(tmp_path.iterdir()) == []


def test_parts_of_different_runs_are_refused(make_policy, tmp_path, policy):
    fitting, short = (FeatureScaler(np.zeros(size), np.ones(size), 10.0) for size in (F, 3))
    with pytest.raises(ArtifactError, match="the scaler's features must be 45, got 3"):
        export_policy(policy, short, tmp_path, pair="ETH")
    other = replace(policy, selector=make_policy(**{"codebook.num_codes": 7}).selector)
    with pytest.raises(ArtifactError, match="the selector's codes must be 5, got 7"):
        export_policy(other, fitting, tmp_path, pair="ETH")
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


def test_another_file_in_the_folder_is_refused(bundle, tmp_path):
    shutil.copytree(bundle, tmp_path, dirs_exist_ok=True)
    (tmp_path / "manifest.json").write_text("{}")
    read_bundle(tmp_path)
    shutil.copy(bundle / "selector.onnx", tmp_path / "selector2.onnx")
    with pytest.raises(ArtifactError, match=r"selector2\.onnx is not listed in checksums\.json"):
        read_bundle(tmp_path)


def test_changed_checksums_and_another_bundle_are_refused(bundle, tmp_path):
    shutil.copytree(bundle, tmp_path, dirs_exist_ok=True)
    with pytest.raises(ArtifactError, match=r"is the bundle \w+, expected 0123"):
        read_bundle(tmp_path, expected_hash="0123")
    sums = json.loads((tmp_path / "checksums.json").read_text())
    sums["files"]["policy.json"] = "0" * 64
    (tmp_path / "checksums.json").write_text(json.dumps(sums))
    with pytest.raises(ArtifactError, match="does not have the hash it states for the bundle"):
        read_bundle(tmp_path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema_version": 3}, "has schema version 3, this version reads 2; upgrade"),
        ({"schema_version": 1}, "has schema version 1, this version reads 2; export the policy again"),
        ({"feature_names": ["volume"]}, "names 1 features, this version computes 45"),
        ({"feature_names": ["wap_2", *FEATURE_NAMES[1:]]}, "feature 0 is 'wap_2', here 'volume'"),
        ({"feature_hash": "0"}, "feature_hash is '0', this version computes with"),
        ({"warmup_bars": 30}, "warmup_bars is 30"),
        ({"rules": {}}, "rules is"),
        ({"hindsight": True}, "hindsight is True"),
        ({"num_codes": 7}, "the selector's outputs are"),
        ({"selector_lookback_bars": 4}, "the selector's inputs are"),
        ({"decoding": "sampled"}, "decoding must be one of"),
        ({"override": None}, "an override rule exactly where it has a refiner"),
        ({"depth_policy": "partial"}, "depth_policy must be one of"),
        ({"schema_version": True}, "has schema version True, this version reads 2; export the policy again"),
        ({"feature_names": 45}, "feature_names must be a list, got 45"),
        ({"warmup_bars": 60.0}, r"warmup_bars is 60\.0, this version computes with 60"),
        ({"hindsight": 0}, "hindsight is 0, this version computes with False"),
        ({"num_codes": "5"}, "num_codes must be an integer of at least 1, got '5'"),
        ({"refiner_lookback_bars": True}, "refiner_lookback_bars must be an integer of at least 1, got True"),
        ({"max_position": "much"}, "max_position must be a finite number, got 'much'"),
        ({"max_position": True}, "max_position must be a finite number, got True"),
        ({"max_position": -1.0}, "max_position must be a number above 0, got -1.0"),
        ({"commission_rate": -0.1}, "commission_rate must be a number from 0 to below 1, got -0.1"),
        ({"impact_curve": {"notional": [1.0]}}, r"impact_curve\.distance_bps is missing"),
        ({"impact_curve": {"notional": [1, True], "distance_bps": [1, 2]}}, r"notional\[1\] must be a finite number"),
        ({"impact_curve": {"notional": [2, 1], "distance_bps": [1, 2]}}, "impact_curve is not a curve .*increasing"),
        ({"horizon_bars": 0}, "horizon_bars must be an integer of at least 1, got 0"),
        ({"horizon_bars": "24"}, "horizon_bars must be an integer of at least 1, got '24'"),
        ({"bar_minutes": None}, "bar_minutes must be an integer of at least 1, got None"),
        ({"execution_delay_bars": -1}, "execution_delay_bars must be an integer of at least 0, got -1"),
        ({"base": None}, "base must be a name, got None"),
        ({"graphs": {}}, "must name the graphs selector and decoder"),
    ],
)
def test_a_manifest_that_this_version_does_not_compute_is_refused(bundle, resealed, tmp_path, change, reason):
    with pytest.raises(ArtifactError, match=reason):
        read_bundle(resealed(bundle, tmp_path, **change))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda graphs: [], "graphs must be an object of named fields, got "),
        (lambda graphs: {**graphs, "selector": []}, r"graphs\.selector must be an object of named fields, got "),
        (lambda graphs: {**graphs, "selector": {}}, r"graphs\.selector\.file is missing"),
        (lambda graphs: {**graphs, "decoder": {**graphs["decoder"], "outputs": []}}, "the decoder's outputs are "),
        (lambda graphs: {**graphs, "decoder": {"file": "decoder_step.onnx"}}, "the decoder's outputs are None"),
    ],
)
def test_graphs_of_another_kind_than_a_manifest_has_are_refused(bundle, tmp_path, change, reason):
    shutil.copytree(bundle, tmp_path, dirs_exist_ok=True)
    manifest = json.loads((tmp_path / "policy.json").read_text())
    with pytest.raises(ArtifactError, match=rf"policy\.json: {reason}.*export the policy again"):
        read_bundle(sealed(tmp_path, "policy.json", {**manifest, "graphs": change(manifest["graphs"])}))


def sealed(directory: Path, name: str, content: object) -> Path:
    """The bundle with another JSON file, under checksums that fit."""
    (directory / name).write_text(json.dumps(content))
    seal_bundle(directory, [path.name for path in directory.iterdir() if path.name != "checksums.json"])
    return directory


# What nothing runs on: where the policy comes from, and what it was tested with.
TOLD_ONLY = ("opset", "providers", "tolerances", "parents", "seed")


@pytest.mark.parametrize("name", ["policy.json", "scaler.json"])
def test_whatever_is_wrong_in_a_file_that_it_runs_on_is_one_clear_error(bundle, malformed, tmp_path, name):
    shutil.copytree(bundle, tmp_path, dirs_exist_ok=True)
    content = json.loads((tmp_path / name).read_text())
    told = {field: content.pop(field) for field in TOLD_ONLY if field in content}
    refused, taken = {}, []
    for what, wrong in malformed(content):
        sealed(tmp_path, name, {**told, **wrong} if isinstance(wrong, dict) else wrong)
        try:
            read_bundle(tmp_path)
            taken.append(what)
        except ArtifactError as error:
            refused[what] = str(error)
    assert [(what, message) for what, message in refused.items() if name not in message] == []
    # Numbers within their range, and names.
    fits = r"(pair|base|quote|max_position|commission_rate|impact_curve|mean|std|clip_sigma).* is (-1|0\.5|'word')"
    assert [what for what in taken if not re.fullmatch(fits, what)] == []


def test_a_graph_of_other_shapes_than_its_manifest_states_is_refused(bundle, resealed, tmp_path):
    directory = resealed(bundle, tmp_path)
    (directory / "selector.onnx").write_bytes((bundle / "decoder_step.onnx").read_bytes())
    with pytest.raises(ArtifactError, match=r"selector\.onnx: inputs must be"):
        BundleGraphs.load(resealed(directory, directory))
    (directory / "selector.onnx").write_bytes(b"no graph")
    with pytest.raises(ArtifactError, match=r"selector\.onnx is not a graph that onnxruntime can open"):
        BundleGraphs.load(resealed(directory, directory))


def test_a_folder_without_checksums_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match=r"checksums\.json does not exist"):
        BundleGraphs.load(tmp_path)


@pytest.mark.parametrize("arguments", [{"horizons": 0}, {"batch_sizes": ()}, {"batch_sizes": (0,)}])
def test_parity_needs_something_to_compare(bundle, policy, dataset, arguments):
    with pytest.raises(ValueError, match="must be positive"):
        check_parity(bundle, policy, dataset, **arguments)
