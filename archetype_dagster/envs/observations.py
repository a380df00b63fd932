"""What the backtest environments show of a leg: names, order and units of an observation's numbers.

Per leg: for each bar of the lookback, oldest first, `mid_price`, `volume`, `funding_rate` (where the leg pays
any), `basis_bps` (where an earlier leg has the same base asset) and the features, as `feature_wap_1` (where
asked for); then `cash` and `position`. The mid price, cash and position are written by the kernel, the rest are
columns made here.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from archetype_dagster.envs.legs import Leg
from archetype_dagster.types import FloatArray, IndexArray, StateArray

_BPS: Final = 1e4


def observation_names(legs: list[Leg], lookback_bars: int) -> tuple[str, ...]:
    """Names of an observation's numbers in order; bars before the newest carry their age, as `volume[t-1]`.

    Several legs are told apart by a prefix, as `BTCUSDT-SWAP.volume`.
    """
    names: list[str] = []
    for number, leg in enumerate(legs):
        prefix = f"{leg.name}." if len(legs) > 1 else ""
        shown = ("mid_price", *_column_names(legs, number))
        for age in reversed(range(lookback_bars)):
            names += [f"{prefix}{name}{f'[t-{age}]' if age else ''}" for name in shown]
        names += [f"{prefix}cash", f"{prefix}position"]
    return tuple(names)


def market_columns(legs: list[Leg], *, relative: bool) -> tuple[StateArray, IndexArray]:
    """Market columns of all legs but the mid price: float32 (T, C), and int64 (L + 1,) where each leg's begin."""
    columns: list[FloatArray] = []
    offsets = [0]
    for number, leg in enumerate(legs):
        first = _partner(legs, number)
        scaled = relative and not leg.volume_is_scaled
        columns.append(np.log1p(leg.volume / leg.unit) if scaled else leg.volume)
        if leg.has_funding:
            columns.append(leg.settled_rate * (_BPS if relative else 1.0))
        if first is not None:
            columns.append(_BPS * (leg.mark / first.mark - 1.0))
        columns += list(leg.features.T)
        offsets.append(len(columns))
    return np.stack(columns, axis=1).astype(np.float32), np.array(offsets)


def _column_names(legs: list[Leg], number: int) -> list[str]:
    leg = legs[number]
    names = ["volume"]
    if leg.has_funding:
        names.append("funding_rate")
    if _partner(legs, number) is not None:
        names.append("basis_bps")
    return [*names, *(f"feature_{name}" for name in leg.feature_names)]


def _partner(legs: list[Leg], number: int) -> Leg | None:
    """The first leg before this one with the same base asset."""
    return next((leg for leg in legs[:number] if leg.base == legs[number].base), None)
