"""The streaming policy, fed one bar at a time, decides as the batch evaluation does for all bars at once."""

import itertools
import json
from dataclasses import astuple
from datetime import timedelta

import numpy as np
import onnxruntime
import pytest
import torch

from archetype_dagster.backtest.policy import decide
from archetype_dagster.deployment import OnnxPolicy, replay_bundle
from archetype_dagster.deployment.bundle_graphs import BundleGraphs
from archetype_dagster.deployment.export import PARITY_TOLERANCE
from archetype_dagster.deployment.graphs import refiner_graph, write_graph
from archetype_dagster.deployment.sessions import CPU, CUDA
from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.market.features import FEATURE_NAMES, WARMUP_BARS
from archetype_dagster.types import FLAT, LONG, SHORT

RULES = [
    *itertools.product(("step", "hold"), ("argmax", "single_change"), (0, 1), ("carry", "settle")),
    *itertools.product((None,), ("argmax", "single_change"), (0,), ("carry",)),
]


def stream(policy, rows):
    return [decision for decision in map(policy.on_bar, rows) if decision is not None]


@pytest.mark.parametrize(("override", "decoding", "delay", "boundary"), RULES)
def test_every_rule_decides_as_the_batch_does(
    bundle, resealed, make_policy, dataset_of, rows, tmp_path, override, decoding, delay, boundary
):
    policy = make_policy(
        **{
            "refinement.override": override or "step",
            "codebook.decoding": decoding,
            "execution.execution_delay_bars": delay,
            "execution.horizon_boundary": boundary,
        },
    )
    rules = {"override": override, "decoding": decoding, "execution_delay_bars": delay, "horizon_boundary": boundary}
    if override is None:
        policy = policy.without_refinement()
        rules["graphs"] = {**json.loads((bundle / "policy.json").read_text())["graphs"], "refiner": None}
    directory = resealed(bundle, tmp_path, **rules)
    decided = stream(OnnxPolicy.load(directory), rows)
    dataset = dataset_of(policy.settings)
    expected = decide(policy, dataset)
    assert [one.timestamp.replace(tzinfo=None) for one in decided] == dataset.timestamps.tolist()
    assert [one.action for one in decided] == expected.actions.tolist()
    assert replay_bundle(BundleGraphs.load(directory), dataset).tolist() == expected.actions.tolist()
    assert [one.base_action for one in decided] == expected.base_actions.tolist()
    assert [one.code for one in decided] == np.repeat(expected.codes, expected.lengths).tolist()
    assert [one.mark for one in decided] == dataset.mark.tolist()
    assert set(expected.actions) == {0, 1, 2}, "the comparison must see every action"
    acting = np.flatnonzero(expected.override_rows >= 0)
    assert bool(len(acting)) == (override is not None), "the comparison must see overrides"
    assert all(decided[expected.override_rows[one]].overridden for one in acting)
    if override != "hold":
        assert sum(one.overridden for one in decided) == len(acting)


@pytest.mark.parametrize("bias", [(1.0, 0.0, 1.0), (1.0, 1.0, 1.0)], ids=["directions tie", "all tie"])
def test_equal_override_logits_are_decided_as_in_training(
    bundle, resealed, make_policy, dataset_of, rows, tmp_path, bias
):
    policy = make_policy()
    with torch.no_grad():
        policy.refiner.network.actor.weight.zero_()
        policy.refiner.network.actor.bias.copy_(torch.tensor(bias))
    directory = resealed(bundle, tmp_path)
    write_graph(directory, refiner_graph(policy.refiner.network, policy.codebook.quantizer.codes))
    decided = stream(OnnxPolicy.load(resealed(directory, directory)), rows)
    dataset = dataset_of(policy.settings)
    expected = decide(policy, dataset)
    assert [one.action for one in decided] == expected.actions.tolist()
    assert replay_bundle(BundleGraphs.load(directory), dataset).tolist() == expected.actions.tolist()
    overridden = [(one.base_action, one.action) for one in decided if one.overridden]
    if bias[1]:
        assert not overridden, "ties go to nothing"
    else:
        assert {pair for pair in overridden if pair[0] != SHORT} == {(FLAT, SHORT), (LONG, SHORT)}, "and then to short"


class NotingGraphs(BundleGraphs):
    """Notes what returns and time the refiner is told, and never lets it act, so that it is asked wherever it may."""

    def override_logits(self, market, codes, base_actions, realised_return, time_left):
        self.told = (realised_return[0], time_left[0])
        return np.zeros((1, 3), dtype=np.float32)


@pytest.mark.parametrize(("delay", "boundary"), list(itertools.product((0, 1, 2), ("carry", "settle"))))
def test_the_refiner_is_told_the_returns_that_the_batch_tells_it(
    bundle, resealed, make_policy, dataset_of, rows, tmp_path, delay, boundary
):
    """Actions alone hardly show it: a return booked one bar late seldom changes one."""
    policy = make_policy(**{"execution.execution_delay_bars": delay, "execution.horizon_boundary": boundary})
    policy.refiner.network.actor.weight.zero_()
    streamed = OnnxPolicy.load(resealed(bundle, tmp_path, execution_delay_bars=delay, horizon_boundary=boundary))
    streamed.graphs = NotingGraphs(streamed.bundle)
    expected = decide(policy, dataset_of(policy.settings), trace=True)
    assert (expected.override_rows < 0).all()
    told = []
    for row in rows:
        streamed.graphs.told = None
        if streamed.on_bar(row) is not None:
            told.append(streamed.graphs.told)
    asked = [number for number, one in enumerate(told) if one is not None]
    assert len(asked) > len(told) / 4
    found = np.array([told[number] for number in asked])
    assert np.count_nonzero(found[:, 0]) > len(asked) / 2
    np.testing.assert_array_equal(found, expected.trace.context[asked, -2:])


def test_prices_of_changes_are_the_tables_bit_for_bit(bundle, make_policy, dataset_of, rows):
    policy = OnnxPolicy.load(bundle)
    settings = make_policy().settings
    table = dataset_of(settings).costs
    priced = [rows[-1 - back] for back in range(20)]
    for back, row in enumerate(priced):
        found = [[policy.cost(row, before, after) for after in range(3)] for before in range(3)]
        assert found == table[-1 - back].tolist()
    assert [policy.position(action) for action in range(3)] == [-100.0, 0.0, 100.0]


def test_no_decision_before_a_segment_is_warm_and_a_gap_starts_a_horizon(bundle, rows):
    policy = OnnxPolicy.load(bundle)
    assert policy.bars_missing == WARMUP_BARS + 1
    decided = [policy.on_bar(row) for row in rows]
    gap = next(index for index in range(1, len(rows)) if rows[index]["segment"] != rows[index - 1]["segment"])
    missing = [index for index, decision in enumerate(decided) if decision is None]
    assert missing == [*range(WARMUP_BARS), *range(gap, gap + WARMUP_BARS)]
    assert decided[gap - 1].tau not in (0, 23)
    assert decided[gap + WARMUP_BARS].tau == 0


def test_what_comes_later_changes_no_decision(bundle, rows):
    """Fed from outside one bar at a time: other futures give the same decisions up to where they part."""
    whole = stream(OnnxPolicy.load(bundle), rows)
    for parting in (100, 171):
        policy = OnnxPolicy.load(bundle)
        decided = stream(policy, rows[:parting])
        assert decided == whole[: len(decided)]
        other = [
            {name: 1.7 * value if isinstance(value, float) else value for name, value in row.items()}
            for row in rows[parting : parting + 20]
        ]
        later, expected = stream(policy, other), whole[len(decided) :]
        assert [one.mark for one in later] != [one.mark for one in expected[: len(later)]]
        assert [one.timestamp for one in later] == [one.timestamp for one in expected[: len(later)]]


def test_a_restarted_process_goes_on_at_every_bar_of_a_horizon(bundle, resealed, rows, tmp_path):
    directory = resealed(bundle, tmp_path, override="hold", execution_delay_bars=1)
    whole, fresh = OnnxPolicy.load(directory), OnnxPolicy.load(directory)
    expected = stream(whole, rows[:140])
    running = OnnxPolicy.load(directory)
    decided = stream(running, rows[: WARMUP_BARS + 1])
    for row in rows[WARMUP_BARS + 1 : 140]:
        saved = json.dumps(running.state(), allow_nan=False)
        fresh.restore(json.loads(saved))
        assert json.dumps(fresh.state()) == saved
        decided.append(fresh.on_bar(row))
        running, fresh = fresh, running
    # The segment ends at a gap within these bars.
    assert [astuple(one) for one in decided if one is not None] == [astuple(one) for one in expected]
    assert running.state() == whole.state()


def test_reset_forgets_everything(bundle, rows):
    policy = OnnxPolicy.load(bundle)
    first = stream(policy, rows[:100])
    policy.reset()
    assert policy.bars_missing == WARMUP_BARS + 1
    assert stream(policy, rows[:100]) == first


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 0}, "has version 0"),
        ({"bundle": "f" * 64}, "belongs to bundle ffffffffffff"),
        ({"window": [[0.0]]}, "shape"),
        ({"decoder": [[0.0]]}, "an array has shape"),
        ({"horizon": {"code": 1, "held": 7}}, "state of a horizon"),
        ({"horizon": {"kode": 1}}, "kode"),
        ({"stream": {"scale": "raw", "bar_minutes": 10}}, "features are raw over 10 minutes"),
        ({"stream": {"scale": "relative", "bar_minutes": 10}}, "feature stream"),
    ],
)
def test_another_state_is_refused_and_changes_nothing(bundle, rows, change, reason):
    policy = OnnxPolicy.load(bundle)
    stream(policy, rows[:70])
    before = policy.state()
    with pytest.raises(ArtifactError, match=reason):
        policy.restore({**before, **change})
    assert policy.state() == before


def test_an_unusable_bar_is_refused_and_changes_nothing(bundle, resealed, rows, tmp_path):
    policy = OnnxPolicy.load(resealed(bundle, tmp_path, depth_policy="reject"))
    deep = [{name: 1e4 * value if name.endswith("_size") else value for name, value in row.items()} for row in rows]
    stream(policy, deep[:80])
    before = policy.state()
    shallow = {**rows[80], "bid1_size": 1e-3, "bid2_size": 1e-3}
    for bar, reason in (
        (deep[79], "must grow from bar to bar"),
        ({**deep[80], "close": -1.0}, "field close"),
        ({**deep[80], "bid7_size": float("nan")}, "field bid7_size"),
        (shallow, "visible depth"),
    ):
        with pytest.raises(MarketDataError, match=reason):
            policy.on_bar(bar)
        assert policy.state() == before
    assert policy.on_bar(deep[80]).timestamp == rows[80]["timestamp"]


def test_providers_are_named_and_a_missing_one_is_refused(bundle):
    assert OnnxPolicy.load(bundle, providers=[CPU]).manifest["providers"] == [CPU, "CUDAExecutionProvider"]
    with pytest.raises(ValueError, match=r"provider TensorFarmProvider is not available.*CPUExecutionProvider"):
        OnnxPolicy.load(bundle, providers=["TensorFarmProvider"])
    with pytest.raises(ValueError, match="at least one provider in a list"):
        OnnxPolicy.load(bundle, providers="CPUExecutionProvider")


@pytest.mark.skipif(CUDA not in onnxruntime.get_available_providers(), reason="this onnxruntime has no CUDA provider")
def test_a_gpu_decides_as_the_processor_does(bundle, rows):
    on_gpu, on_cpu = OnnxPolicy.load(bundle, providers=[CUDA, CPU]), OnnxPolicy.load(bundle)
    assert [astuple(one) for one in stream(on_gpu, rows)] == [astuple(one) for one in stream(on_cpu, rows)]
    states = np.random.default_rng(0).normal(size=(256, len(FEATURE_NAMES))).astype(np.float32)
    found, expected = on_gpu.graphs.code_logits(states), on_cpu.graphs.code_logits(states)
    np.testing.assert_allclose(found, expected, rtol=0, atol=PARITY_TOLERANCE)


@pytest.mark.skipif(CUDA in onnxruntime.get_available_providers(), reason="this onnxruntime has the CUDA provider")
def test_a_gpu_that_is_not_there_is_refused_even_with_the_processor_behind_it(bundle):
    with pytest.raises(ValueError, match=r"provider CUDAExecutionProvider is not available.*CPUExecutionProvider"):
        OnnxPolicy.load(bundle, providers=[CUDA, CPU])


def test_a_late_bar_is_a_gap(bundle, rows):
    policy = OnnxPolicy.load(bundle)
    stream(policy, rows[:90])
    late = {**rows[90], "timestamp": rows[90]["timestamp"] + timedelta(minutes=1), "segment": rows[89]["segment"]}
    assert policy.on_bar(late) is None
    assert policy.bars_missing == WARMUP_BARS
