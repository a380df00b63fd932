"""The proof that an exported bundle decides as the trained policy does, bar by bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from archetype_dagster.backtest.policy import TradingPolicy, decide
from archetype_dagster.codebook.decoding import decode_step
from archetype_dagster.deployment.bundle_graphs import BundleGraphs
from archetype_dagster.deployment.export import PARITY_TOLERANCE
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning.adaptations import apply_override, legal_override_mask
from archetype_dagster.refinement.adapter import greedy_override
from archetype_dagster.rl.market_windows import MarketWindows
from archetype_dagster.types import FLAT, ActionArray, IndexArray, JsonDict, StateArray

LogitArray = NDArray[np.float32]


@dataclass(frozen=True)
class GraphParity:
    """One graph against its trained network at one batch size.

    Attributes:
        graph: selector, decoder or refiner.
        batch_size: horizons run at once.
        observations: rows compared.
        max_abs_difference: largest difference of a logit.
        argmax_mismatches: rows whose largest logit is another one.
    """

    graph: str
    batch_size: int
    observations: int
    max_abs_difference: float
    argmax_mismatches: int


@dataclass(frozen=True)
class ParityReport:
    """Outcome of `check_parity`.

    Attributes:
        graphs: one entry a graph and batch size.
        horizons: horizons stepped through.
        bars: bars decided.
        action_mismatches: bars whose final action differs, summed over batch sizes.
        tolerance: largest difference of a logit that passes.
    """

    graphs: tuple[GraphParity, ...]
    horizons: int
    bars: int
    action_mismatches: int
    tolerance: float

    @property
    def max_abs_difference(self) -> float:
        """Largest difference of any logit."""
        return max(part.max_abs_difference for part in self.graphs)

    @property
    def passed(self) -> bool:
        """True where every logit is within the tolerance and every argmax and final action is equal."""
        mismatches = self.action_mismatches + sum(part.argmax_mismatches for part in self.graphs)
        return self.max_abs_difference <= self.tolerance and mismatches == 0

    def as_dict(self) -> JsonDict:
        """The report as JSON values."""
        return {**asdict(self), "max_abs_difference": self.max_abs_difference, "passed": self.passed}


def check_parity(
    directory: Path,
    policy: TradingPolicy,
    dataset: MarketDataset,
    *,
    horizons: int = 32,
    batch_sizes: Sequence[int] = (1, 4),
    tolerance: float = PARITY_TOLERANCE,
) -> ParityReport:
    """Step a bundle through the first horizons of a dataset and compare it with the trained policy.

    The bundle decides on its own logits throughout; only R_arche, the initial actions and the time left are
    taken from the trained policy's run, which is the same as long as every action is.

    Args:
        directory: folder written by `export_policy`.
        policy: the policy that was exported.
        dataset: rows with scaled features.
        horizons: consecutive horizons to step through.
        batch_sizes: horizons to run at once; each size is compared by itself.
        tolerance: largest difference of a logit that passes.

    Raises:
        ValueError: no horizon or batch size, or an empty dataset.
        ArtifactError: the bundle is damaged.
    """
    if horizons < 1 or not batch_sizes or min(batch_sizes) < 1:
        raise ValueError(f"horizons and batch_sizes must be positive, got {horizons} and {tuple(batch_sizes)}")
    bundle = BundleGraphs.load(directory)
    starts, lengths = dataset.decision_starts()
    if not len(starts):
        raise ValueError("check_parity needs at least one row, got an empty dataset")
    last = min(horizons, len(starts)) - 1
    dataset = dataset.rows(slice(0, int(starts[last] + lengths[last])))
    expected = decide(policy, dataset, trace=True)
    trace = expected.trace
    if trace is None:
        raise ValueError("decide kept no trace")
    real = np.arange(dataset.horizon_bars) < expected.lengths[:, np.newaxis]
    market = _Market.of(bundle, dataset, expected.starts)
    context = None if trace.context is None else _by_horizon(trace.context, real)
    graphs: list[GraphParity] = []
    wrong = 0
    for size in batch_sizes:
        run = _step_through(bundle, market, expected.initial_actions, context, size)
        graphs.append(_compare("selector", size, run.code_logits, trace.selector_logits))
        graphs.append(_compare("decoder", size, run.action_logits[real], trace.decoder_logits))
        if run.override_logits is not None and trace.refiner_logits is not None:
            graphs.append(_compare("refiner", size, run.override_logits[real], trace.refiner_logits))
        wrong += int(np.count_nonzero(run.actions[real] != expected.actions))
    return ParityReport(tuple(graphs), len(expected.starts), len(dataset), wrong, tolerance)


@dataclass(frozen=True)
class _Market:
    """What the graphs read on the rows int64 (n, h) of n horizons; beyond a horizon's end its last row again."""

    rows: Tensor
    states: MarketWindows
    selector: MarketWindows
    refiner: MarketWindows

    @classmethod
    def of(cls, bundle: BundleGraphs, dataset: MarketDataset, starts: IndexArray) -> _Market:
        rows = np.minimum(starts[:, np.newaxis] + np.arange(dataset.horizon_bars), len(dataset) - 1)
        sources = (MarketWindows(dataset, bars) for bars in (1, bundle.selector_bars, bundle.refiner_bars))
        return cls(torch.from_numpy(rows), *sources)

    def part(self, selection: slice) -> _Market:
        return replace(self, rows=self.rows[selection])


@dataclass(frozen=True)
class _BundleRun:
    code_logits: LogitArray
    action_logits: LogitArray
    override_logits: LogitArray | None
    actions: ActionArray


def _step_through(
    bundle: BundleGraphs, market: _Market, initial_actions: ActionArray, context: StateArray | None, size: int
) -> _BundleRun:
    """Run n horizons, `size` at once and one bar after the other."""
    parts = [
        _step_batch(bundle, market.part(rows), None if context is None else context[rows])
        for rows in (slice(at, at + size) for at in range(0, len(initial_actions), size))
    ]
    code_logits, action_logits, base = (np.concatenate([part[index] for part in parts]) for index in range(3))
    if context is None:
        return _BundleRun(code_logits, action_logits, None, base)
    override_logits = np.concatenate([part[3] for part in parts if part[3] is not None])
    legal = legal_override_mask(base, initial_action=initial_actions)
    steps, directions = greedy_override(override_logits, legal)
    actions = apply_override(base, steps, directions, bundle.override)
    return _BundleRun(code_logits, action_logits, override_logits, actions)


def _step_batch(
    bundle: BundleGraphs, market: _Market, context: StateArray | None
) -> tuple[LogitArray, LogitArray, ActionArray, LogitArray | None]:
    code_logits = bundle.code_logits(market.selector.at(market.rows[:, 0]).numpy())
    codes: IndexArray = code_logits.argmax(axis=1).astype(np.int64)
    state = bundle.initial_state(len(codes))
    actions = np.full(len(codes), FLAT, dtype=np.int8)
    action_logits, base, override_logits = [], [], []
    for tau, rows in enumerate(market.rows.unbind(dim=1)):
        logits, state = bundle.action_logits(market.states.at(rows).numpy(), codes, state)
        actions = decode_step(logits, actions, bundle.decoding)
        action_logits.append(logits)
        base.append(actions)
        if context is not None:
            realised, time_left = (np.ascontiguousarray(context[:, tau, column]) for column in (-2, -1))
            seen = market.refiner.at(rows).numpy()
            override_logits.append(bundle.override_logits(seen, codes, actions, realised, time_left))
    stacked = np.stack(override_logits, axis=1) if override_logits else None
    return code_logits, np.stack(action_logits, axis=1), np.stack(base, axis=1), stacked


def _by_horizon(rows: StateArray, real: NDArray[np.bool_]) -> StateArray:
    """Rows (T, C) of consecutive horizons as (n, h, C), zero beyond a horizon's length."""
    padded = np.zeros((*real.shape, rows.shape[1]), dtype=rows.dtype)
    padded[real] = rows
    return padded


def _compare(graph: str, size: int, found: LogitArray, expected: LogitArray) -> GraphParity:
    return GraphParity(
        graph=graph,
        batch_size=size,
        observations=len(expected),
        max_abs_difference=float(np.abs(found - expected).max()),
        argmax_mismatches=int(np.count_nonzero(found.argmax(axis=-1) != expected.argmax(axis=-1))),
    )
