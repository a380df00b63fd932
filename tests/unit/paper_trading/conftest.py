"""A small market with everything that can go wrong in a feed, and the stand-in policy that trades it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

STANDIN = Path(__file__).with_name("standin.py")
START = datetime(2024, 1, 1, tzinfo=UTC)
Rows = list[dict[str, Any]]


def make_rows(count: int, *, seed: int = 0, minutes: int = 10) -> Rows:
    """Bars of a random walk with a book of five levels, whose first bar ends at START."""
    generator = np.random.default_rng(seed)
    close = 2000 * np.exp(np.cumsum(generator.normal(0, 0.002, count)))
    opens = np.append(2000.0, close[:-1])
    size = generator.uniform(0.2, 3.0, (count, 5, 2))
    rows = []
    for row in range(count):
        high, low = max(opens[row], close[row]) + 1, min(opens[row], close[row]) - 1
        bar: dict[str, Any] = {"timestamp": START + timedelta(minutes=minutes * row)}
        bar |= {"open": opens[row], "high": high, "low": low, "close": close[row], "volume": 10.0}
        bar["taker_buy_volume"] = 4.0
        for level in range(1, 6):
            for side, sign, place in (("bid", -1, 0), ("ask", 1, 1)):
                bar[f"{side}{level}_price"] = round(close[row] + sign * (level - 0.5), 2)
                bar[f"{side}{level}_size"] = size[row, level - 1, place]
        rows.append({**bar, "book_source": "observed"})
    return rows


def with_faults(rows: Rows) -> Rows:
    """The bars with one lost, one twice, one late, one broken and one locked."""
    rows = [dict(row) for row in rows]
    rows[40]["high"] = rows[40]["low"] - 1
    rows[50]["ask1_price"] = rows[50]["bid1_price"]
    late, repeated = dict(rows[20]), dict(rows[30])
    return [*rows[:31], repeated, late, *rows[31:35], *rows[36:]]


@pytest.fixture(scope="session")
def standin() -> ModuleType:
    """The module of the stand-in policy."""
    spec = importlib.util.spec_from_file_location("paper_trading_standin", STANDIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session", name="make_rows")
def _make_rows() -> Callable[..., Rows]:
    return make_rows


@pytest.fixture(scope="session", name="with_faults")
def _with_faults() -> Callable[[Rows], Rows]:
    return with_faults
