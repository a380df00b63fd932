"""Replay of one action per bar against priced bars: positions, costs, cash and net value, vectorised.

Prices come from `market.book` alone, the code that also prices the planner's tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from archetype_dagster.backtest.ledger import Ledger
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book import execution_cost_parts, mark_prices
from archetype_dagster.settings import ExecutionSettings, PairSettings, Settings
from archetype_dagster.types import FLAT, ActionArray, BoolArray, FloatArray, IndexArray


@dataclass(frozen=True)
class PricedBars:
    """Bars with every possible trade priced, so that many runs share one walk of the books.

    Attributes:
        timestamps: datetime64[us] (T,), bar ends, UTC.
        mark: float64 (T,), mid prices, quote units.
        slippage: float64 (T, 3, 3), loss against the mark by (from, to) action, quote units.
        commission: float64 (T, 3, 3), commission by (from, to) action, quote units.
        segment: int32 (T,), equal for bars without a gap between them.
        max_position: m, base units.
        commission_rate: commission as a fraction of the traded notional.
    """

    timestamps: NDArray[np.datetime64]
    mark: FloatArray
    slippage: FloatArray
    commission: FloatArray
    segment: NDArray[np.int32]
    max_position: float
    commission_rate: float

    def __len__(self) -> int:
        return len(self.mark)


def replay(
    actions: ArrayLike,
    bars: pl.DataFrame,
    *,
    pair: str | PairSettings,
    initial_capital: float | None = None,
    settings: ExecutionSettings | None = None,
    horizon_starts: IndexArray | None = None,
) -> Ledger:
    """Trade one action per bar and keep the books.

    The action of bar t, decided at its end, executes on the book of bar t + execution_delay_bars of
    the same segment, the last bar's included; orders pending at a gap are cancelled. A position is held
    over a gap and its profit or loss booked. r_t = P_t (p_{t+1} - p_t) - O_t, V_t = cash + P_t p_t; the
    first V_t <= 0 is ruin and ends the ledger.

    Args:
        actions: integer (T,), 0 short, 1 flat, 2 long: the position wanted from that bar on.
        bars: T bars in the bars schema.
        pair: a traded pair, by name or by its settings; gives m and the liquidity.
        initial_capital: V_1 in quote units; by default that of `settings`, or else m times the first mark.
        settings: commission, depth policy, delay and horizon boundary; the paper's by default.
        horizon_starts: int64 (n,), first bar of each horizon; needed where `horizon_boundary` is
            `settle`, which closes the position before the first trade of each horizon.

    Raises:
        ValueError: actions that are not integers in 0..2, one per bar; a capital that is not positive
            and finite; `settle` without horizon_starts.
        MarketDataError: bars that break a rule of the book or of the depth policy.
        SettingsError: unknown pair.
    """
    execution = settings or ExecutionSettings()
    spec = Settings().pair(pair) if isinstance(pair, str) else pair
    return replay_priced(
        actions,
        price_bars(bars, spec, execution),
        settings=execution,
        initial_capital=initial_capital,
        horizon_starts=horizon_starts,
    )


def price_bars(bars: pl.DataFrame, pair: PairSettings, settings: ExecutionSettings) -> PricedBars:
    """Price every trade between the three positions on every bar's book, as the feature table does."""
    slippage, commission = execution_cost_parts(bars, settings, pair)
    return PricedBars(
        timestamps=bar_ends(bars),
        mark=mark_prices(bars),
        slippage=slippage,
        commission=commission,
        segment=bar_segments(bars),
        max_position=pair.max_position,
        commission_rate=settings.commission_rate,
    )


def bar_ends(bars: pl.DataFrame) -> NDArray[np.datetime64]:
    """Bar ends as datetime64[us] (T,), UTC."""
    return bars["timestamp"].dt.replace_time_zone(None).to_numpy().astype("datetime64[us]")


def bar_segments(bars: pl.DataFrame) -> NDArray[np.int32]:
    """Segment of each bar, int32 (T,); `MarketDataError` where bars with gaps do not say."""
    if "segment" in bars.columns:
        return bars["segment"].to_numpy().astype(np.int32)
    if bars["timestamp"].diff().drop_nulls().n_unique() > 1:
        raise MarketDataError("bars with gaps need a segment column; see market.bars.assign_segments", field="segment")
    return np.zeros(bars.height, dtype=np.int32)


def replay_priced(
    actions: ArrayLike,
    priced: PricedBars,
    *,
    settings: ExecutionSettings,
    initial_capital: float | None = None,
    horizon_starts: IndexArray | None = None,
) -> Ledger:
    """`replay` on bars that are already priced; cumulative sums only, no loop over bars."""
    decided = _checked_actions(actions, len(priced))
    capital = _capital(initial_capital, settings, priced)
    held = _executed(decided, priced.segment, settings.execution_delay_bars)
    opening = np.concatenate([[FLAT], held[:-1]])
    # A settled bar trades twice, to flat and on; elsewhere the first leg is from a position to itself.
    between = np.where(settled_rows(settings, priced, horizon_starts), FLAT, opening)
    rows = np.arange(len(priced))
    fee = priced.commission[rows, opening, between] + priced.commission[rows, between, held]
    slippage = priced.slippage[rows, opening, between] + priced.slippage[rows, between, held]
    position = priced.max_position * (held - FLAT).astype(np.float64)
    traded = priced.max_position * (held - opening).astype(np.float64)
    turnover = priced.max_position * (np.abs(between - opening) + np.abs(held - between)).astype(np.float64)
    cash = capital - np.cumsum(traded * priced.mark + fee + slippage)
    net_value = cash + position * priced.mark
    moves = np.append(np.diff(priced.mark), 0.0)
    losing = net_value <= 0
    ruined = bool(losing.any())
    end = int(losing.argmax()) + 1 if ruined else len(priced)
    moves[end - 1] = 0.0
    return Ledger(
        timestamps=priced.timestamps[:end],
        mark=priced.mark[:end],
        action=decided[:end],
        position=position[:end],
        traded=traded[:end],
        turnover=turnover[:end],
        fee=fee[:end],
        slippage=slippage[:end],
        cash=cash[:end],
        net_value=net_value[:end],
        reward=(position * moves - (slippage + fee))[:end],
        initial_capital=capital,
        max_position=priced.max_position,
        commission_rate=priced.commission_rate,
        ruined=ruined,
    )


def _executed(decided: ActionArray, segment: NDArray[np.int32], delay: int) -> IndexArray:
    """Action whose position is held after each bar's trade, int64 (T,): the newest order that arrived."""
    rows = np.arange(len(decided))
    source = rows - delay
    arrives = source >= 0
    arrives &= segment[np.maximum(source, 0)] == segment
    newest = np.maximum.accumulate(np.where(arrives, source, -1))
    return np.where(newest >= 0, decided[np.maximum(newest, 0)], FLAT).astype(np.int64)


def settled_rows(settings: ExecutionSettings, priced: PricedBars, horizon_starts: IndexArray | None) -> BoolArray:
    """Bars that close their position before their trade, bool (T,): none unless `horizon_boundary` is `settle`.

    Raises:
        ValueError: `settle` without horizon_starts, or starts that are no rows of the bars.
    """
    rows = np.zeros(len(priced), dtype=np.bool_)
    if settings.horizon_boundary == "carry":
        return rows
    if horizon_starts is None:
        raise ValueError("horizon_boundary 'settle' needs horizon_starts, got None")
    starts = np.asarray(horizon_starts, dtype=np.int64)
    if ((starts < 0) | (starts >= len(priced))).any():
        raise ValueError(f"horizon_starts must be rows in 0..{len(priced) - 1}, got {starts.min()}..{starts.max()}")
    executed = starts + settings.execution_delay_bars
    reached = executed < len(priced)
    starts, executed = starts[reached], executed[reached]
    rows[executed[priced.segment[executed] == priced.segment[starts]]] = True
    return rows


def _checked_actions(actions: ArrayLike, num_bars: int) -> ActionArray:
    values = np.asarray(actions)
    if values.shape != (num_bars,):
        raise ValueError(f"actions must hold one action per bar, got shape {values.shape} for {num_bars} bars")
    if num_bars == 0:
        raise ValueError("replay needs at least one bar, got 0")
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"actions must be integers, got dtype {values.dtype}")
    unknown = (values < 0) | (values > 2)
    if unknown.any():
        row = int(unknown.argmax())
        raise ValueError(f"actions must be 0 (short), 1 (flat) or 2 (long), got {values[row]} at row {row}")
    return values.astype(np.int8)


def _capital(initial_capital: float | None, settings: ExecutionSettings, priced: PricedBars) -> float:
    chosen = settings.initial_capital if initial_capital is None else initial_capital
    capital = priced.max_position * float(priced.mark[0]) if chosen is None else float(chosen)
    if not (np.isfinite(capital) and capital > 0):
        raise ValueError(f"initial_capital must be positive and finite, got initial_capital={capital}")
    return capital
