"""Our ledger beside the account of another engine, bar by bar."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from typing import Final, cast

import numpy as np
import polars as pl

from archetype_dagster.backtest.crosscheck.signals import EngineAccount, Signals, signals_of
from archetype_dagster.backtest.ledger import RECONCILIATION_TOLERANCE, Ledger
from archetype_dagster.backtest.replay import price_bars
from archetype_dagster.errors import MarketDataError, SettingsError
from archetype_dagster.settings import ExecutionSettings, PairSettings, Settings
from archetype_dagster.types import BoolArray, FloatArray, IndexArray, JsonDict

ENGINES: Final = ("backtrader", "vectorbt")
TOLERANCE: Final = 1e-6
_SHOWN: Final = 20


@dataclass(frozen=True)
class CrossCheck:
    """How far a ledger is from what another engine made of the same signals.

    Attributes:
        engine: name of the engine.
        version: its version.
        bars: number of bars compared.
        position_differences: bars after which the positions differ.
        value_differences: bars after which the net values differ by more than the tolerance.
        largest_difference: largest difference of the net values, over the larger of the initial
            capital and the ledger's net value.
        ledger_pnl: final profit by the ledger, quote units.
        engine_pnl: final profit by the engine, quote units.
        tolerance: largest difference that still passes.
        differing: the first 20 bars that differ: `timestamp`, `row`, and position, cash and net value of
            both, `relative_difference` of the net values.
    """

    engine: str
    version: str
    bars: int
    position_differences: int
    value_differences: int
    largest_difference: float
    ledger_pnl: float
    engine_pnl: float
    tolerance: float
    differing: pl.DataFrame

    @property
    def passed(self) -> bool:
        """True where every position is the same and no net value differs beyond the tolerance."""
        return not (self.position_differences or self.value_differences)

    @property
    def summary(self) -> str:
        """The outcome in one line."""
        pnl = f"profit {self.ledger_pnl:,.2f}, by {self.engine} {self.version} {self.engine_pnl:,.2f}"
        if self.passed:
            return f"{self.bars} bars agree to {self.largest_difference:.1e}; {pnl}"
        first = f"{self.differing['timestamp'][0]:%Y-%m-%d %H:%M}"
        return (
            f"{self.position_differences} positions and {self.value_differences} net values of {self.bars} bars "
            f"differ, first at {first}, by up to {self.largest_difference:.1e}; {pnl}"
        )

    def as_dict(self) -> JsonDict:
        """Verdict and numbers by name, ready for JSON; the differing bars as rows with ISO times."""
        named = {name: value for name, value in vars(self).items() if name != "differing"}
        rows = self.differing.with_columns(pl.col("timestamp").dt.to_string("iso:strict")).to_dicts()
        return {"passed": self.passed, **named, "differing": rows}


def cross_check(
    ledger: Ledger,
    bars: pl.DataFrame,
    *,
    pair: str | PairSettings,
    settings: ExecutionSettings | None = None,
    engine: str = "backtrader",
    horizon_starts: IndexArray | None = None,
) -> CrossCheck:
    """Replay what a ledger decided through another engine and compare the accounts.

    The engine gets the decided actions as target positions, the price each order fills at (the mark
    and the walk of that bar's book), the marks, the agreed commission rate and the ledger's initial
    capital. Positions, cash, fees and net value it works out by itself, shorts without margin.

    Args:
        ledger: T bars.
        bars: the pair's bars, segmented; those of the ledger must be among them.
        pair: the traded pair, by name or by its settings.
        settings: how it was to trade; the paper's by default.
        engine: `backtrader` or `vectorbt`.
        horizon_starts: int64 (k,), ledger rows at which horizons start; needed where
            `horizon_boundary` is `settle`, those beyond a ruined ledger's end are ignored.

    Raises:
        ValueError: `settle` without horizon_starts.
        MarketDataError: a ledger bar that is not among the bars, or bars that cannot be priced.
        SettingsError: an unknown pair or engine, or an engine that is not installed.
    """
    version, replay_signals = _engine(engine)
    execution = settings or ExecutionSettings()
    spec = Settings().pair(pair) if isinstance(pair, str) else pair
    priced = price_bars(_bars_of(ledger, bars), spec, execution)
    starts = None if horizon_starts is None else horizon_starts[horizon_starts < len(ledger)]
    signals = signals_of(
        ledger.action, priced, execution, initial_capital=ledger.initial_capital, horizon_starts=starts
    )
    account = replay_signals(signals)
    position, cash, net_value = (
        values[signals.last]
        for values in (account.position, account.cash - signals.credit, account.net_value - signals.credit)
    )
    scale = np.maximum(ledger.initial_capital, np.abs(ledger.net_value))
    relative = np.abs(ledger.net_value - net_value) / scale
    # `not <=` rather than `>`: a NaN differs too.
    moved = ~(np.abs(ledger.position - position) <= RECONCILIATION_TOLERANCE * spec.max_position)
    valued = ~(relative <= TOLERANCE)
    return CrossCheck(
        engine=engine,
        version=version,
        bars=len(ledger),
        position_differences=int(moved.sum()),
        value_differences=int(valued.sum()),
        largest_difference=float(relative.max()),
        ledger_pnl=float(ledger.net_value[-1] - ledger.initial_capital),
        engine_pnl=float(net_value[-1] - signals.initial_capital),
        tolerance=TOLERANCE,
        differing=_differing(ledger, moved | valued, position, cash, net_value, relative),
    )


def installed_engines() -> tuple[str, ...]:
    """The engines that can be imported here."""
    return tuple(engine for engine in ENGINES if find_spec(engine) is not None)


def engine_versions() -> dict[str, str]:
    """Version of each engine that can be imported here, by name."""
    return {engine: installed_version(engine) for engine in installed_engines()}


def _engine(name: str) -> tuple[str, Callable[[Signals], EngineAccount]]:
    if name not in ENGINES:
        raise SettingsError(f"engine must be one of {', '.join(ENGINES)}, got engine={name!r}")
    try:
        module = import_module(f"archetype_dagster.backtest.crosscheck.{name}_engine")
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"engine {name!r} needs {error.name}, which is not installed: pip install 'archetype-dagster[crosscheck]'"
        ) from error
    return module.VERSION, cast(Callable[[Signals], EngineAccount], module.replay_signals)


def _bars_of(ledger: Ledger, bars: pl.DataFrame) -> pl.DataFrame:
    """The ledger's bars, T rows in its order."""
    times = pl.Series("timestamp", ledger.timestamps).cast(pl.Datetime("us")).dt.replace_time_zone("UTC")
    known = times.is_in(bars["timestamp"].implode()).to_numpy()
    if not known.all():
        row = int(np.argmin(known))
        raise MarketDataError(f"the ledger's bar {times[row]} is not among the bars", row=row, field="timestamp")
    return pl.DataFrame([times]).join(bars, on="timestamp", how="left", maintain_order="left")


def _differing(
    ledger: Ledger,
    differs: BoolArray,
    position: FloatArray,
    cash: FloatArray,
    net_value: FloatArray,
    relative: FloatArray,
) -> pl.DataFrame:
    rows = np.flatnonzero(differs)[:_SHOWN]
    columns = {
        "row": rows,
        "position": ledger.position[rows],
        "engine_position": position[rows],
        "cash": ledger.cash[rows],
        "engine_cash": cash[rows],
        "net_value": ledger.net_value[rows],
        "engine_net_value": net_value[rows],
        "relative_difference": relative[rows],
    }
    return (
        ledger.frame()[rows]
        .select("timestamp")
        .with_columns(pl.Series(name, column) for name, column in columns.items())
    )
