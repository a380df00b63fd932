"""The probability that choosing the best of several trials chooses luck."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from archetype_dagster.backtest.metric_kernels import ratio
from archetype_dagster.backtest.statistics.splits import group_edges, held_out_groups, neighbours_held_out
from archetype_dagster.types import BoolArray, FloatArray, IndexArray, JsonDict

# Sharpe ratios held at once, combinations times trials.
_CHUNK: Final = 1 << 21
# Below this share of a trial's mean square, a variance from sums of squares is float residue.
_RESIDUE: Final = 1e-12


@dataclass(frozen=True)
class Overfitting:
    """What became of the winner of each combination, C in all, on the bars it was not chosen by.

    Sharpe ratios are per period; undefined ones are NaN in the arrays and rank last. A combination in
    which no trial has one in sample has no winner.

    Attributes:
        pbo: share of combinations whose winner is worse than the median trial out of sample, of those that have a
            winner, one that is the median counting half; None where none has.
        logits: float64 (C,), log(w / (1 - w)), w the winner's rank out of sample over N + 1, 1 being the worst;
            NaN without a winner.
        winners: int64 (C,), trial with the highest Sharpe ratio in sample; -1 without a winner.
        in_sample: float64 (C,), Sharpe ratio of the winner on the training bars.
        out_of_sample: float64 (C,), Sharpe ratio of the winner on the held-out bars.
        path_sharpes: float64 (P,), Sharpe ratios of the P = C(groups - 1, test_groups - 1) whole-length paths
            that the winners' held-out stretches make up.
        trials: number of trials N.
    """

    pbo: float | None
    logits: FloatArray
    winners: IndexArray
    in_sample: FloatArray
    out_of_sample: FloatArray
    path_sharpes: FloatArray
    trials: int

    @property
    def loss_share(self) -> float | None:
        """Share of winners whose Sharpe ratio out of sample is negative or undefined; None without a winner."""
        judged = self.out_of_sample[self.winners >= 0]
        return float(np.mean(~(judged >= 0))) if len(judged) else None

    @property
    def degradation(self) -> float | None:
        """Slope of the winners' Sharpe ratio out of sample on that in sample; None where either is constant."""
        both = np.isfinite(self.in_sample) & np.isfinite(self.out_of_sample)
        if both.sum() < 2 or np.ptp(self.in_sample[both]) == 0:
            return None
        x, y = self.in_sample[both], self.out_of_sample[both]
        return float(np.cov(x, y)[0, 1] / np.var(x, ddof=1))

    def as_dict(self) -> JsonDict:
        """Summary ready for JSON: quantiles stand for the arrays, lowest first (0, 5, 25, 50, 75, 95, 100 %)."""
        return {
            "pbo": self.pbo,
            "trials": self.trials,
            "combinations": len(self.logits),
            "loss_share": self.loss_share,
            "degradation": self.degradation,
            "logits": _quantiles(self.logits),
            "path_sharpes": _quantiles(self.path_sharpes),
        }


def probability_of_overfitting(
    returns: ArrayLike, *, groups: int, purge_bars: int = 0, embargo_bars: int = 0, test_groups: int | None = None
) -> Overfitting:
    """Probability of backtest overfitting over every choice of held-out groups of time.

    With `test_groups` None half of the groups are held out, which without purge and embargo is the
    combinatorially symmetric cross-validation of Bailey, Borwein, Lopez de Prado and Zhu (2017). Any
    other number, and the dropped bars, are the combinatorial purged variant (Lopez de Prado 2018,
    chapter 12). Trials are compared by Sharpe ratio. A winner that is the median counts half, so that noise
    gives one half on average for odd numbers of trials too, where the paper's "no better than" counts it
    whole. All combinations come from sums over groups, so that no bar is read twice.

    Args:
        returns: (T, N) per-bar returns of N >= 2 trials on the same T bars, finite.
        groups: equal stretches of time; even where `test_groups` is None.
        purge_bars: training bars dropped on either side of a held-out stretch.
        embargo_bars: further training bars dropped after it.
        test_groups: groups held out at a time, in [1, groups).

    Raises:
        ValueError: a wrong shape, a value that is not finite, numbers out of range, or groups too short to purge.
    """
    sample = np.asarray(returns, dtype=np.float64)
    if sample.ndim != 2 or sample.shape[1] < 2:
        raise ValueError(f"returns must be (T, N) with at least two trials, got shape {sample.shape}")
    if not np.isfinite(sample).all():
        raise ValueError(f"returns must be finite, got {sample[~np.isfinite(sample)][0]}")
    if test_groups is None and groups % 2:
        raise ValueError(f"groups must be even where half of them are held out, got groups={groups}")
    edges = group_edges(len(sample), groups, purge_bars=purge_bars, embargo_bars=embargo_bars)
    held_out = held_out_groups(groups, groups // 2 if test_groups is None else test_groups)
    # Common units keep squares of small returns far from the floor of float64.
    sums = _group_sums(sample / (np.abs(sample).max() or 1.0), edges, purge_bars, embargo_bars)
    per_chunk = max(1, _CHUNK // sample.shape[1])
    parts = [_judge(held_out[first : first + per_chunk], sums) for first in range(0, len(held_out), per_chunk)]
    winners = np.concatenate([part[0] for part in parts])
    logits, in_sample, out_of_sample = np.concatenate([part[1] for part in parts], axis=1)
    judged = logits[winners >= 0]
    return Overfitting(
        pbo=float(np.mean(judged < 0) + np.mean(judged == 0) / 2) if len(judged) else None,
        logits=logits,
        winners=winners,
        in_sample=in_sample,
        out_of_sample=out_of_sample,
        path_sharpes=_path_sharpes(held_out, winners, sums[:, 0, 0]),
        trials=sample.shape[1],
    )


def _group_sums(sample: FloatArray, edges: IndexArray, purge_bars: int, embargo_bars: int) -> FloatArray:
    """Count, sum and sum of squares of each group as its neighbours leave it, float64 (groups, 2, 2, 3, N).

    The second index says whether the group before is held out, the third whether the one after is.
    """
    sums = np.empty((len(edges) - 1, 2, 2, 3, sample.shape[1]))
    for group, after, before in product(range(len(edges) - 1), (0, 1), (0, 1)):
        first = edges[group] + after * (purge_bars + embargo_bars)
        kept = sample[first : edges[group + 1] - before * purge_bars]
        sums[group, after, before] = np.full(kept.shape[1], len(kept)), kept.sum(axis=0), (kept**2).sum(axis=0)
    return sums


def _judge(held_out: BoolArray, sums: FloatArray) -> tuple[IndexArray, FloatArray]:
    """The winner of each combination, int64 (C,), and float64 (3, C): its logit, Sharpe ratio in and out of sample."""
    after, before = neighbours_held_out(held_out)
    states = np.stack([~after & ~before, ~after & before, after & ~before, after & before], axis=-1)
    training = (states & ~held_out[..., None]).reshape(len(held_out), -1).astype(np.float64)
    inside = _sharpes(training, sums.reshape(training.shape[1], *sums.shape[3:]))
    outside = _sharpes(held_out.astype(np.float64), sums[:, 0, 0])
    winners = inside.argmax(axis=1)[:, None]
    won, kept = (np.take_along_axis(values, winners, axis=1) for values in (inside, outside))
    # Trials that end level share the mean of their ranks.
    rank = (outside < kept).sum(axis=1) + ((outside == kept).sum(axis=1) + 1) / 2
    share = rank / (outside.shape[1] + 1)
    judged = np.stack([np.log(share / (1 - share)), won[:, 0], np.where(np.isneginf(kept), np.nan, kept)[:, 0]])
    no_winner = np.isneginf(won[:, 0])
    judged[:, no_winner] = np.nan
    return np.where(no_winner, -1, winners[:, 0]), judged


def _sharpes(weights: FloatArray, sums: FloatArray) -> FloatArray:
    """Sharpe ratios (C, N) from group sums (G, 3, N) that weights (C, G) pick; -inf, ranked last, where undefined."""
    picked = (weights @ sums.reshape(len(sums), -1)).reshape(len(weights), *sums.shape[1:])
    mean, square = picked[:, 1] / picked[:, 0], picked[:, 2] / picked[:, 0]
    variance = square - mean**2
    variance[variance <= _RESIDUE * square] = 0.0
    sharpes = ratio(mean, np.sqrt(variance))
    return np.where(np.isnan(sharpes), -np.inf, sharpes)


def _path_sharpes(held_out: BoolArray, winners: IndexArray, sums: FloatArray) -> FloatArray:
    """Sharpe ratio of each whole-length path: path j takes group g from the j-th combination that holds g out."""
    groups = held_out.shape[1]
    combination = np.nonzero(held_out.T)[1].reshape(groups, -1)
    picked = sums[np.arange(groups)[:, None], :, winners[combination]].sum(axis=0)
    sharpes = _sharpes(np.ones((1, 1)), picked.T[None])[0]
    sharpes[np.isneginf(sharpes) | (winners[combination] < 0).any(axis=0)] = np.nan
    return np.asarray(sharpes)


def _quantiles(values: FloatArray) -> list[float] | None:
    finite = values[np.isfinite(values)]
    return [float(value) for value in np.quantile(finite, [0, 0.05, 0.25, 0.5, 0.75, 0.95, 1])] if len(finite) else None
