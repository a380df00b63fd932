"""What is traded: spot pairs and perpetual swaps, with their units, their grids and their rule of profit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from archetype_dagster.types import FloatArray

Settlement = Literal["usd_margin", "coin_margin"]
_GRID_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Instrument:
    """One tradable thing. Made by `spot_instrument` and `swap_instrument`.

    Attributes:
        kind: `spot` or `swap`.
        base: base asset, e.g. BTC.
        quote: quote asset, the unit of prices.
        settle: of a swap, what profit is paid in: `usd_margin` in the quote asset, `coin_margin` in the base
            asset; None for spot.
        contract_size: of one contract, base units (spot and `usd_margin`) or quote units (`coin_margin`).
        tick_size: smallest price step in quote units; None where prices are off any grid.
        lot_size: smallest order step in contracts; None where sizes are.
    """

    kind: Literal["spot", "swap"]
    base: str
    quote: str
    settle: Settlement | None = None
    contract_size: float = 1.0
    tick_size: float | None = None
    lot_size: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("spot", "swap"):
            raise ValueError(f"kind must be 'spot' or 'swap', got kind={self.kind!r}")
        for name in ("base", "quote"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.isalnum():
                raise ValueError(f"{name} must be an asset's name in letters and digits, got {name}={value!r}")
        if self.base == self.quote:
            raise ValueError(f"base and quote must differ, got base={self.base!r}, quote={self.quote!r}")
        if self.kind == "spot" and (self.settle is not None or self.contract_size != 1.0):
            raise ValueError(
                "a spot instrument has no settle and a contract_size of 1, "
                f"got settle={self.settle!r}, contract_size={self.contract_size}"
            )
        if self.kind == "swap" and self.settle not in ("usd_margin", "coin_margin"):
            raise ValueError(f"settle must be 'usd_margin' or 'coin_margin', got settle={self.settle!r}")
        for name in ("contract_size", "tick_size", "lot_size"):
            value = getattr(self, name)
            if value is None and name != "contract_size":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {name}={value!r}")

    @property
    def symbol(self) -> str:
        """The name used in results, e.g. `BTC-USDT`, `BTC-USDT-SWAP`, `BTC-USD-COIN-SWAP`."""
        swap = {None: "", "usd_margin": "-SWAP", "coin_margin": "-COIN-SWAP"}[self.settle]
        return f"{self.base}-{self.quote}{swap}"

    @property
    def settle_currency(self) -> str:
        """The asset that profit, fees and funding are paid in."""
        return self.base if self.settle == "coin_margin" else self.quote

    def profit(self, contracts: float | FloatArray, entry: float | FloatArray, exit: float | FloatArray) -> FloatArray:
        """Profit of holding `contracts` (negative: short) from one price to another, in `settle_currency`.

        Spot and `usd_margin` are linear: contracts times contract_size (exit - entry). `coin_margin` is
        inverse, as its contracts are worth a fixed number of quote units: contracts times contract_size
        (1 / entry - 1 / exit).
        """
        move = 1 / entry - 1 / exit if self.settle == "coin_margin" else exit - entry
        return contracts * self.contract_size * move  # type: ignore[return-value]

    def notional(self, contracts: float | FloatArray, price: float | FloatArray) -> FloatArray:
        """Value of `contracts` at a price, quote units; for `coin_margin` the price does not enter."""
        value = contracts * self.contract_size
        return value if self.settle == "coin_margin" else value * price  # type: ignore[return-value]

    def check_order(self, contracts: float, price: float | None = None) -> None:
        """Refuse what a venue would: a size off the lot, a price off the tick.

        Raises:
            ValueError: a size or price that is not positive and finite, or off its grid.
        """
        for name, value, step in (("size", contracts, self.lot_size), ("price", price, self.tick_size)):
            if value is None:
                continue
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive and finite, got {name}={value}")
            steps = value / step if step is not None else 1.0
            if abs(steps - round(steps)) > _GRID_TOLERANCE or round(steps) == 0:
                raise ValueError(f"{name} must be a whole multiple of {step}, got {name}={value}")

    def on_tick(self, price: float) -> float:
        """The nearest price on the tick grid, the same float for every way of computing it; as it is without one.

        Raises:
            ValueError: the price is not positive and finite.
        """
        if not 0 < price < math.inf:
            raise ValueError(f"price must be positive and finite, got price={price}")
        return price if self.tick_size is None else from_steps(round(price / self.tick_size), self.tick_size)


def spot_instrument(
    base: str, quote: str, *, tick_size: float | None = None, lot_size: float | None = None
) -> Instrument:
    """A spot pair: one contract is one base unit, bought and sold for the quote asset.

    Raises:
        ValueError: an empty or odd asset name, or a step that is not positive and finite.
    """
    return Instrument("spot", base, quote, tick_size=tick_size, lot_size=lot_size)


def swap_instrument(
    base: str,
    quote: str,
    settle: Settlement = "usd_margin",
    contract_size: float = 1.0,
    *,
    tick_size: float | None = None,
    lot_size: float | None = None,
) -> Instrument:
    """A perpetual swap; see `Instrument.profit` for what each `settle` earns.

    Raises:
        ValueError: an empty or odd asset name, an unknown settle, or a contract size or step that is not
            positive and finite.
    """
    return Instrument("swap", base, quote, settle, contract_size, tick_size, lot_size)


def whole_inverse(step: float) -> float:
    """1 / step where that is a whole number up to rounding, else 0."""
    inverse = 1 / step
    nearest = float(round(inverse)) if inverse < 2.0**53 else 0.0
    return nearest if nearest >= 1 and abs(inverse - nearest) <= 1e-9 * nearest else 0.0


def from_steps(steps: int, step: float) -> float:
    """`steps` times `step` as the float nearest to the decimal number: 3 steps of 0.1 are 0.3."""
    inverse = whole_inverse(step)
    return steps / inverse if inverse else steps * step
