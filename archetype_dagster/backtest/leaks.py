"""The proof that nothing sees the future: change everything after some time and compare everything before it.

Belongs here: the check itself, for any function of bars, and how a market is changed. What a policy
lays open for the check is in `tracing`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from archetype_dagster.backtest.replay import bar_ends
from archetype_dagster.market.bars import num_book_levels
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.types import BoolArray, JsonDict

_PRICE_SPREAD: Final = 0.5
_SHAPE_SPREAD: Final = 1.0


@dataclass(frozen=True)
class TracedRows:
    """One array that a run computed, with the time at which each entry had to be known.

    Attributes:
        known_at: datetime64[us] (n,), bar end of each entry, UTC.
        values: (n, ...), anything: prices, features, logits, decisions.
    """

    known_at: NDArray[np.datetime64]
    values: NDArray[Any]


class LeakStatus(StrEnum):
    """Outcome of a leak check; `hindsight` where the policy is known to read the future."""

    PASSED = "passed"
    FAILED = "failed"
    HINDSIGHT = "hindsight"


@dataclass(frozen=True)
class Leak:
    """The first entry of an array that changed although it was known before the market was changed.

    Attributes:
        array: name of the traced array.
        known_at: bar end of the entry, UTC.
        cut: last bar end left as it was, UTC.
        row: zero-based row of `known_at` in the bars.
    """

    array: str
    known_at: np.datetime64
    cut: np.datetime64
    row: int

    def __str__(self) -> str:
        return f"{self.array} at {self.known_at} (row {self.row}) depends on bars after {self.cut}"


@dataclass(frozen=True)
class LeakReport:
    """What a leak check compared and found.

    Attributes:
        status: passed, failed or hindsight.
        cuts: datetime64[us], last bar end left as it was in each trial.
        compared: entries compared bit by bit, by array, over all cuts.
        responsive: arrays that did change after a cut, i.e. whose entries before it were put to the test.
        leaks: first leak of each array and cut; empty unless failed or hindsight.
        reason: one line for people.
    """

    status: LeakStatus
    cuts: NDArray[np.datetime64]
    compared: dict[str, int]
    responsive: tuple[str, ...]
    leaks: tuple[Leak, ...]
    reason: str

    def as_dict(self) -> JsonDict:
        """The report as JSON values."""
        return {
            "status": self.status.value,
            "cuts": [str(cut) for cut in self.cuts],
            "compared": dict(self.compared),
            "responsive": list(self.responsive),
            "leaks": [str(leak) for leak in self.leaks],
            "reason": self.reason,
        }


def check_no_lookahead(
    run: Callable[[pl.DataFrame], Mapping[str, TracedRows]],
    bars: pl.DataFrame,
    *,
    cuts: int,
    seed: int,
    hindsight: Collection[str] = (),
) -> LeakReport:
    """Run, change all bars after a random t, run again; every traced entry known at t or before must not move a bit.

    Args:
        run: what is checked; maps bars to the arrays it computed. It must be deterministic.
        bars: bars in the bars schema, a few horizons long.
        cuts: number of random times t, drawn without replacement.
        seed: seed of the times and of the changes.
        hindsight: arrays admitted to read the future; their leaks make the status `hindsight`, while
            a leak in any other array still fails.

    Raises:
        ValueError: cuts below 1, nothing traced, or bars too short to cut.
    """
    if cuts < 1:
        raise ValueError(f"cuts must be positive, got cuts={cuts}")
    baseline = run(bars)
    timestamps = bar_ends(bars)
    generator = numpy_generator(seed, "leak_check")
    rows = _draw_cuts(timestamps, baseline, cuts, generator)
    compared = dict.fromkeys(baseline, 0)
    responsive: set[str] = set()
    leaks: list[Leak] = []
    for row in rows:
        changed = run(perturb_after(bars, int(row), generator))
        for name, before, differs in _differences(baseline, changed, timestamps[row]):
            compared[name] += int(before.sum())
            if differs[~before].any():
                responsive.add(name)
            if (differs & before).any():
                known_at = baseline[name].known_at[differs & before].min()
                leaks.append(Leak(name, known_at, timestamps[row], int(np.searchsorted(timestamps, known_at))))
    status, reason = _verdict(leaks, responsive, hindsight, compared)
    return LeakReport(status, timestamps[rows], compared, tuple(sorted(responsive)), tuple(leaks), reason)


def perturb_after(bars: pl.DataFrame, row: int, generator: np.random.Generator) -> pl.DataFrame:
    """Bars whose rows after `row` are another market: prices, candle shapes, books and volumes, by tens of percent.

    Clock, segments and the rows up to `row` stay as they are; null levels stay null, and levels keep their order.
    """
    after = np.arange(bars.height) > row

    def factors(spread: float) -> pl.Series:
        return pl.Series(np.where(after, np.exp(generator.normal(0, spread, bars.height)), 1.0))

    def kept_before(name: str, values: pl.Series) -> pl.Series:
        return pl.select(pl.when(pl.Series(after)).then(values).otherwise(bars[name])).to_series().alias(name)

    level = factors(_PRICE_SPREAD)
    opened, closed = (bars[name] * level * factors(_PRICE_SPREAD) for name in ("open", "close"))
    body = pl.DataFrame({"open": opened, "close": closed})
    traded = factors(_SHAPE_SPREAD)
    candle = {
        "open": opened,
        "close": closed,
        "high": body.max_horizontal() * (1 + factors(_SHAPE_SPREAD) / 100),
        "low": body.min_horizontal() / (1 + factors(_SHAPE_SPREAD) / 100),
        "volume": bars["volume"] * traded,
        "taker_buy_volume": bars["taker_buy_volume"].cast(pl.Float64) * traded,
    }
    mid = ((bars["bid1_price"] + bars["ask1_price"]) / 2).fill_null(bars["close"])
    book = {}
    for side in ("bid", "ask"):
        # A common power of the distance ratio keeps the levels in order, on their side of the mid.
        stretch = factors(_SHAPE_SPREAD)
        for depth in range(1, num_book_levels(bars) + 1):
            price, size = f"{side}{depth}_price", f"{side}{depth}_size"
            book[price] = mid * level * (bars[price] / mid) ** stretch
            book[size] = bars[size] * factors(_SHAPE_SPREAD)
    return bars.with_columns(kept_before(name, values) for name, values in {**candle, **book}.items())


def _draw_cuts(
    timestamps: NDArray[np.datetime64],
    baseline: Mapping[str, TracedRows],
    cuts: int,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """Rows after which the market changes: each leaves at least one entry of every array before it."""
    empty = [name for name, traced in baseline.items() if not len(traced.known_at)]
    if empty or not baseline:
        raise ValueError(f"nothing was traced in {', '.join(empty) or 'the run'}; the bars may be too few")
    first = np.searchsorted(timestamps, max(traced.known_at.min() for traced in baseline.values()))
    eligible = np.arange(first, len(timestamps) - 1)
    if not len(eligible):
        raise ValueError(f"{len(timestamps)} bars are too few to change some after the first traced row")
    return np.sort(generator.choice(eligible, size=min(cuts, len(eligible)), replace=False))


def _differences(
    baseline: Mapping[str, TracedRows], changed: Mapping[str, TracedRows], cut: np.datetime64
) -> Iterator[tuple[str, BoolArray, BoolArray]]:
    """For each array: which entries were known at the cut, and which differ in any bit; an absent entry differs."""
    for name, traced in baseline.items():
        before = traced.known_at <= cut
        other = changed.get(name)
        if (
            other is None
            or not np.array_equal(other.known_at, traced.known_at)
            or (other.values.shape, other.values.dtype) != (traced.values.shape, traced.values.dtype)
        ):
            yield name, before, np.ones(len(before), dtype=np.bool_)
        else:
            yield name, before, (_bits(traced.values) != _bits(other.values)).any(axis=1)


def _bits(values: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)


def _verdict(
    leaks: list[Leak], responsive: set[str], hindsight: Collection[str], compared: Mapping[str, int]
) -> tuple[LeakStatus, str]:
    forbidden = [leak for leak in leaks if leak.array not in hindsight]
    if forbidden:
        return LeakStatus.FAILED, str(min(forbidden, key=lambda leak: leak.known_at))
    if not responsive:
        return LeakStatus.FAILED, "nothing traced changed even after a cut, so nothing was put to the test"
    if hindsight:
        return LeakStatus.HINDSIGHT, "the decoder reads the horizon's future; all that does not depend on it is causal"
    return LeakStatus.PASSED, f"{sum(compared.values()):,} entries of {len(compared)} arrays did not move a bit"
