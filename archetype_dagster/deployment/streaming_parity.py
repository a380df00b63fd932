"""The proof that a bundle fed one bar at a time decides as the trained policy does on the whole stretch at once."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import polars as pl

from archetype_dagster.backtest.policy import TradingPolicy, decide
from archetype_dagster.backtest.replay import bar_ends
from archetype_dagster.deployment.onnx_policy import Decision, OnnxPolicy
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.features import WARMUP_BARS
from archetype_dagster.types import JsonDict


@dataclass(frozen=True)
class StreamingParity:
    """Outcome of `check_streaming`.

    Attributes:
        bars: bars with features, each decided once.
        restarts: times that the policy was saved as text and went on elsewhere.
        other_actions: bars whose action, base action or archetype differs.
        other_marks: bars whose mark price differs in any bit.
        first_difference: bar end of the first of them, ISO 8601; None without one.
    """

    bars: int
    restarts: int
    other_actions: int
    other_marks: int
    first_difference: str | None

    @property
    def passed(self) -> bool:
        """True where every bar was decided alike."""
        return self.other_actions == self.other_marks == 0

    def as_dict(self) -> JsonDict:
        """The report as JSON values."""
        return {**asdict(self), "passed": self.passed}


def bars_for_rows(bars: pl.DataFrame, dataset: MarketDataset) -> pl.DataFrame:
    """The bars that a stream needs to decide on exactly a dataset's rows: those from its first warm-up to its last row.

    Raises:
        MarketDataError: bars that do not hold the dataset's rows with their warm-up.
    """
    ends = bar_ends(bars)
    first, last = np.searchsorted(ends, dataset.timestamps[[0, -1]]).tolist()
    if first < WARMUP_BARS or last >= len(ends) or ends[last] != dataset.timestamps[-1]:
        raise MarketDataError("the bars do not hold the dataset's rows and their warm-up", field="timestamp")
    return bars[first - WARMUP_BARS : last + 1]


def stream_bars(policy: OnnxPolicy, bars: pl.DataFrame) -> list[Decision]:
    """Feed bars one at a time; the decisions of those with features."""
    decided = map(policy.on_bar, bars.iter_rows(named=True))
    return [decision for decision in decided if decision is not None]


def check_streaming(
    directory: Path, policy: TradingPolicy, bars: pl.DataFrame, dataset: MarketDataset, *, horizons: int = 8
) -> StreamingParity:
    """Stream the first horizons of a dataset through a bundle and compare every decision with `decide`.

    In the middle of each horizon's worth of bars the policy goes on in another instance, from its state as text.

    Args:
        directory: folder written by `export_policy`.
        policy: the policy that was exported.
        bars: bars of the pair, segmented, with the dataset's rows and the warm-up before them.
        dataset: rows with scaled features.
        horizons: consecutive horizons to stream.

    Raises:
        ValueError: no horizon, or an empty dataset.
        MarketDataError: bars without the dataset's rows.
        ArtifactError: the bundle is damaged.
    """
    if horizons < 1 or not len(dataset):
        raise ValueError(f"horizons must be positive and rows be there, got {horizons} and {len(dataset)} rows")
    starts, lengths = dataset.decision_starts()
    last = min(horizons, len(starts)) - 1
    dataset = dataset.rows(slice(0, int(starts[last] + lengths[last])))
    expected = decide(policy, dataset)
    fed = bars_for_rows(bars, dataset)
    now, other = OnnxPolicy.load(directory), OnnxPolicy.load(directory)
    decided: list[Decision] = []
    half = WARMUP_BARS + dataset.horizon_bars // 2
    cuts = [0, *range(half, fed.height, dataset.horizon_bars), fed.height]
    for begin, end in itertools.pairwise(cuts):
        decided += stream_bars(now, fed[begin:end])
        other.restore(json.loads(json.dumps(now.state(), allow_nan=False)))
        now, other = other, now
    if [one.timestamp.replace(tzinfo=None) for one in decided] != dataset.timestamps.tolist():
        raise MarketDataError("the stream decides on other bars than the dataset has rows", field="timestamp")
    codes = np.repeat(expected.codes, expected.lengths)
    found = np.array([(one.action, one.base_action, one.code) for one in decided])
    differs = (found != np.column_stack([expected.actions, expected.base_actions, codes])).any(axis=1)
    marks = np.array([one.mark for one in decided]) != dataset.mark
    wrong = np.flatnonzero(differs | marks)
    return StreamingParity(
        bars=len(decided),
        restarts=len(cuts) - 1,
        other_actions=int(differs.sum()),
        other_marks=int(marks.sum()),
        first_difference=decided[wrong[0]].timestamp.isoformat() if len(wrong) else None,
    )
