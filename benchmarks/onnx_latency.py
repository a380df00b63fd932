"""Latency per bar of a deployed policy, features included, with torch eager beside it; start-up, memory, replay.

Run with `python benchmarks/onnx_latency.py`; nothing else should run meanwhile. The networks have the paper's sizes and
random weights, spread so that actions and overrides vary; the book has 25 levels. The process keeps to one core. Both
runtimes stream the same bars through the same code and differ in the networks alone; their decisions must be equal, or
the run stops. `features` reads a bar, checks it, computes the 45 features and scales them; `rest` is the rules, the
execution losses behind R_arche and the calls between the parts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import wraps
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from _machine import machine_line

from archetype_dagster.backtest.policy import TradingPolicy, decide
from archetype_dagster.codebook.model import Codebook
from archetype_dagster.deployment import BundleGraphs, OnnxPolicy, export_policy, replay_bundle
from archetype_dagster.deployment.graphs import DecoderStep, RefinerStep, SelectorStep
from archetype_dagster.deployment.streaming_parity import bars_for_rows
from archetype_dagster.market.feature_table import build_feature_table
from archetype_dagster.market.features import FEATURE_NAMES, compute_features
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.market.synthetic import synthetic_bars
from archetype_dagster.refinement.adapter import context_size
from archetype_dagster.refinement.network import RefinerNetwork
from archetype_dagster.refinement.refiner import Refiner
from archetype_dagster.selection.network import SelectorNetwork
from archetype_dagster.selection.selector import Selector
from archetype_dagster.settings import Settings, load_settings

F = len(FEATURE_NAMES)
PAIR = "ETH"
SKIP = 200
NETWORKS = {"selector": "code_logits", "decoder": "action_logits", "refiner": "override_logits"}
STARTUP = """
import json, sys, time
begun = time.perf_counter()
{before}
from archetype_dagster.deployment import OnnxPolicy
imported = time.perf_counter()
policy = OnnxPolicy.load(sys.argv[1])
loaded = time.perf_counter()
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(json.dumps([imported - begun, loaded - imported, int(peak.split()[1]) / 1024]))
"""


class TorchGraphs(BundleGraphs):
    """The bundle's networks as they were trained, called eagerly."""

    def __init__(self, bundle: Any, policy: TradingPolicy) -> None:
        super().__init__(bundle)
        codes = policy.codebook.quantizer.codes
        self.networks = {
            "selector": SelectorStep(policy.selector.network),
            "decoder": DecoderStep(policy.codebook.decoder, codes),
            "refiner": RefinerStep(policy.refiner.network, codes),
        }

    def _run(self, session: Any, name: str, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with torch.no_grad():
            outputs = self.networks[name](*(torch.from_numpy(value) for value in inputs.values()))
        return [value.numpy() for value in (outputs if isinstance(outputs, tuple) else (outputs,))]


def untrained(settings: Settings) -> TradingPolicy:
    torch.manual_seed(2)
    codebook = Codebook.untrained(F, settings.planner.horizon_bars, settings.codebook)
    selector = SelectorNetwork(F, settings.codebook.num_codes, settings.selection.hidden_sizes)
    refiner = RefinerNetwork(F, context_size(settings.codebook.code_dim), settings.refinement.hidden_size)
    with torch.no_grad():
        codebook.quantizer.codes.normal_()
        codebook.decoder.head.weight.mul_(8.0)
        refiner.actor.weight.normal_(std=0.1)
        refiner.actor.bias[1] = 1.0
    networks = (network.eval().requires_grad_(False) for network in (selector, refiner))
    chosen, refined = networks
    return TradingPolicy(codebook, Selector(chosen, pl.DataFrame()), Refiner(refined, pl.DataFrame()), settings)


def timed(owner: Any, name: str, into: list[float]) -> Callable[[], None]:
    """Replace a method by one that notes its seconds; gives what restores it."""
    method = getattr(owner, name)

    @wraps(method)
    def run(*arguments: Any) -> Any:
        begun = time.perf_counter()
        result = method(*arguments)
        into.append(time.perf_counter() - begun)
        return result

    setattr(owner, name, run)
    return lambda: setattr(owner, name, method)


def latencies(policy: OnnxPolicy, rows: Sequence[Mapping[str, Any]], skip: int) -> tuple[np.ndarray, list[int]]:
    """Seconds of each call that decides, the first `skip` left out, and all actions."""
    policy.reset()
    seconds, actions = [], []
    for row in rows:
        begun = time.perf_counter()
        decision = policy.on_bar(row)
        elapsed = time.perf_counter() - begun
        if decision is not None:
            seconds.append(elapsed)
            actions.append(decision.action)
    return np.array(seconds[skip:]), actions


def shares(policy: OnnxPolicy, rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Mean microseconds a deciding bar by part, from a run with a clock around each."""
    parts: dict[str, list[float]] = {name: [] for name in NETWORKS}
    restore = [timed(policy.graphs, method, parts[name]) for name, method in NETWORKS.items()]
    deciding: list[float] = []
    restore.append(timed(policy, "_decide", deciding))
    whole, _ = latencies(policy, rows, 0)
    for undo in restore:
        undo()
    sums = {name: sum(seconds) for name, seconds in parts.items()}
    sums["features"] = whole.sum() - sum(deciding)
    sums["rest"] = sum(deciding) - sum(sums[name] for name in NETWORKS)
    return {name: 1e6 * seconds / len(whole) for name, seconds in sums.items()}


def startup(directory: Path, before: str) -> list[float]:
    """Seconds to import, seconds to load and peak MiB of a fresh process; the best of three."""
    command = [sys.executable, "-c", STARTUP.format(before=before), str(directory)]
    runs = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3)]
    return min(runs)


def rows_a_second(work: Callable[[], Iterable[Any]], rows: int, repeats: int) -> float:
    seconds = []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begun)
    return rows / min(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bars", type=int, default=5000)
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs; p50 and p99 of the one with the lowest p99, the worst of them all"
    )
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    print(machine_line("onnxruntime", "torch", "numpy"))

    begin = load_settings("paper").market.synthetic.start
    span = {"market.synthetic.start": begin, "market.synthetic.end": begin + timedelta(minutes=10 * options.bars)}
    settings = load_settings("paper", {**span, "market.source": "synthetic"})
    bars = synthetic_bars(settings.market, settings.pair(PAIR), pair_name=PAIR, seed=0)
    scaler = FeatureScaler.fit(compute_features(bars).select(FEATURE_NAMES).to_numpy())
    dataset = build_feature_table(bars, settings, PAIR, scaler=scaler).dataset(settings)
    rows, policy = list(bars_for_rows(bars, dataset).iter_rows(named=True)), untrained(settings)

    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        export_policy(policy, scaler, directory, pair=PAIR)
        onnx, eager = OnnxPolicy.load(directory), OnnxPolicy.load(directory)
        eager.graphs = TorchGraphs(eager.bundle, policy)
        batch = decide(policy, dataset)
        figures = {}
        for name, streamed in (("onnx", onnx), ("torch", eager)):
            runs = [latencies(streamed, rows, skip=SKIP) for _ in range(options.repeats)]
            if any(actions != batch.actions.tolist() for _, actions in runs):
                raise SystemExit(f"{name} streamed other actions than the batch decided")
            best = min((seconds for seconds, _ in runs), key=lambda seconds: float(np.percentile(seconds, 99)))
            worst = max(float(seconds.max()) for seconds, _ in runs)
            figures[name] = [1e6 * float(value) for value in (*np.percentile(best, [50, 99]), worst)]
        overrides = int((batch.override_rows >= 0).sum())
        print(
            f"{len(dataset):,} decisions, {len(batch.starts)} horizons, {overrides} overrides; microseconds a bar, "
            f"the first {SKIP} left out"
        )
        print(f"{'':10}{'onnx':>10}{'torch':>10}{'ratio':>8}")
        for label, ours, theirs in zip(("p50", "p99", "worst"), figures["onnx"], figures["torch"], strict=True):
            print(f"{label:10}{ours:10,.0f}{theirs:10,.0f}{theirs / ours:8.2f}")
        parts = {name: shares(streamed, rows) for name, streamed in (("onnx", onnx), ("torch", eager))}
        total = sum(parts["onnx"].values())
        print("mean by part, and its share with onnx")
        for name, ours in parts["onnx"].items():
            theirs = parts["torch"][name]
            print(f"{name:10}{ours:10,.1f}{theirs:10,.1f}{theirs / ours:8.2f}{ours / total:8.0%}")
        print("fresh process: seconds to import, seconds to load, peak MiB")
        for name, before in (("onnx", ""), ("torch", "import torch")):
            print(f"{name:10}" + "".join(f"{value:10.2f}" for value in startup(directory, before)))
        graphs = BundleGraphs.load(directory)
        replayed = rows_a_second(lambda: replay_bundle(graphs, dataset), len(dataset), options.repeats)
        batched = rows_a_second(lambda: decide(policy, dataset).actions, len(dataset), options.repeats)
        print(f"replay at once, bars/s: onnx {replayed:,.0f}, torch {batched:,.0f}, ratio {replayed / batched:.2f}")


if __name__ == "__main__":
    main()
