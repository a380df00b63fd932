"""Whatever is wrong with the files: no error but `MarketDataError`, no NaN, and no bar that knows what came later."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.features import FEATURE_NAMES, WARMUP_BARS, compute_features
from archetype_dagster.market.sources import bars_with_report
from archetype_dagster.settings import load_settings

Row = dict[str, Any]
Fault = Callable[[list[Row], random.Random, str], list[Row]]
START_MS = 1_704_067_200_000
BAR_MS = 600_000
BARS = 70
# Bars that end in the last bar before the cut may be missing on one side, because a recording ends there.
CUT = 64
PRICED = {"books": "bid2_price", "trades": "price", "candles": "high"}
SIZED = {"books": "ask1_size", "trades": "quantity", "candles": "volume"}


def sound(kind: str, first: int, last: int, seed: int) -> list[Row]:
    """Records of the bars from `first` until before `last`."""
    rng = random.Random(f"{kind} {first} {seed}")
    step = {"books": 120_000, "trades": 150_000, "candles": 300_000}[kind]
    rows = []
    for time in range(START_MS + first * BAR_MS, START_MS + last * BAR_MS, step):
        price = 100.0 + rng.random()
        if kind == "candles":
            row = {"open_time": time, "open": price, "high": price + 1, "low": price - 1, "close": price, "volume": 2.0}
        elif kind == "trades":
            row = {"ts_ms": time, "price": price, "quantity": rng.random() + 0.1, "side": rng.choice(["buy", "sell"])}
        else:
            row = {"ts_ms": time + step - 1_000}
            for level in range(1, 6):
                row |= {f"bid{level}_price": price - level, f"bid{level}_size": rng.random() + 0.1}
                row |= {f"ask{level}_price": price + level, f"ask{level}_size": rng.random() + 0.1}
        rows.append(row)
    return rows


def setting(column: Callable[[str], str], value: Any) -> Fault:
    """A fault that gives a cell of some rows a value."""

    def fault(rows: list[Row], rng: random.Random, kind: str) -> list[Row]:
        chosen = set(rng.sample(range(len(rows)), min(3, len(rows))))
        return [row | {column(kind): value} if index in chosen else row for index, row in enumerate(rows)]

    return fault


def gap(rows: list[Row], rng: random.Random, kind: str) -> list[Row]:
    begin = rng.randrange(len(rows))
    return rows[:begin] + rows[begin + rng.randrange(1, 30) :] or rows[:1]


def repeat(rows: list[Row], rng: random.Random, kind: str) -> list[Row]:
    return [*rows, *rng.sample(rows, min(5, len(rows)))]


def disorder(rows: list[Row], rng: random.Random, kind: str) -> list[Row]:
    return rng.sample(rows, len(rows))


def change_unit(rows: list[Row], rng: random.Random, kind: str) -> list[Row]:
    """Microseconds from some row on."""
    clock, begin = next(iter(rows[0])), rng.randrange(len(rows))
    return [row | {clock: row[clock] * 1000} if index >= begin else row for index, row in enumerate(rows)]


def cross(rows: list[Row], rng: random.Random, kind: str) -> list[Row]:
    if kind != "books":
        return rows
    offset = rng.choice([0.0, -0.5])
    chosen = set(rng.sample(range(len(rows)), min(4, len(rows))))
    return [
        row | {"ask1_price": row["bid1_price"] + offset} if index in chosen and row["bid1_price"] else row
        for index, row in enumerate(rows)
    ]


FAULTS: dict[str, Fault] = {
    "gap": gap,
    "repeat": repeat,
    "disorder": disorder,
    "unit": change_unit,
    "crossed": cross,
    "null price": setting(PRICED.__getitem__, None),
    "null size": setting(SIZED.__getitem__, None),
    "zero size": setting(SIZED.__getitem__, 0.0),
    "zero price": setting(PRICED.__getitem__, 0.0),
    "negative price": setting(PRICED.__getitem__, -1.0),
    "nan": setting(PRICED.__getitem__, float("nan")),
    "inf": setting(SIZED.__getitem__, float("inf")),
    "spike": setting(PRICED.__getitem__, 1e9),
    "no side": setting(lambda kind: "ask1_price" if kind == "books" else PRICED[kind], None),
}
CHOICES = st.lists(st.sampled_from(sorted(FAULTS)), max_size=5)


def faulty(kind: str, first: int, last: int, seed: int, faults: list[str]) -> list[Row]:
    rng, rows = random.Random(f"{seed}"), sound(kind, first, last, seed)
    for fault in faults:
        rows = FAULTS[fault](rows, rng, kind)
    return rows


def built(folder: Path, name: str, tables: dict[str, list[Row]], suffix: str) -> pl.DataFrame | None:
    """Bars of the tables written into files; None where they are refused."""
    for kind, rows in tables.items():
        frame, file = pl.DataFrame(rows, infer_schema_length=None), folder / f"{name}_btcusdt_{kind}.{suffix}"
        frame.write_csv(file) if suffix == "csv" else frame.write_parquet(file)
    source = "candles" if "candles" in tables else "book-table"
    chosen = {"market.source": source, "market.path": str(folder / f"{name}_*.{suffix}")}
    try:
        return bars_with_report(load_settings("smoke", chosen), "BTC")[0]
    except MarketDataError:
        return None


def check_sound(bars: pl.DataFrame) -> None:
    numbers = bars.drop("timestamp", "book_source", "segment")
    assert not numbers.select(pl.any_horizontal((~pl.all().is_finite()).any())).item()
    assert numbers.select("open", "high", "low", "close", "volume").null_count().sum_horizontal().item() == 0
    assert bars["timestamp"].is_sorted()
    assert bars["timestamp"].n_unique() == bars.height
    assert (bars["ask1_price"] > bars["bid1_price"]).all()
    if bars["segment"].value_counts()["count"].max() > WARMUP_BARS:
        assert np.isfinite(compute_features(bars).select(FEATURE_NAMES).to_numpy()).all()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CHOICES, CHOICES, CHOICES, st.integers(0, 999), st.sampled_from(["csv", "parquet"]), st.booleans())
def test_faults_never_leak_through_or_look_ahead(
    tmp_path: Path, past: list[str], after: list[str], other: list[str], seed: int, suffix: str, candles: bool
) -> None:
    kinds = ("candles",) if candles else ("books", "trades")
    before = {kind: faulty(kind, 0, CUT, seed, past) for kind in kinds}
    first = {kind: rows + faulty(kind, CUT, BARS, seed, after) for kind, rows in before.items()}
    second = {kind: rows + faulty(kind, CUT, BARS + 3, seed + 1, other) for kind, rows in before.items()}
    one, two = built(tmp_path, "one", first, suffix), built(tmp_path, "two", second, suffix)
    for bars in (one, two):
        if bars is not None:
            check_sound(bars)
    if one is not None and two is not None:
        known = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(minutes=10 * (CUT - 1))
        assert one.filter(pl.col("timestamp") <= known).equals(two.filter(pl.col("timestamp") <= known))


@pytest.mark.parametrize("kinds", [("candles",), ("books", "trades")])
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_no_single_fault_stops_the_ingestion(tmp_path: Path, fault: str, kinds: tuple[str, ...]) -> None:
    tables = {kind: faulty(kind, 0, BARS, 1, [fault]) for kind in kinds}
    bars = built(tmp_path, "one", tables, "parquet")
    assert bars is not None
    check_sound(bars)
    assert BARS - 40 < bars.height <= BARS


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace(b"\n", b"\n" + text.split(b"\n")[0] + b"\n", 2),
        lambda text: text.split(b"\n", 1)[1],
        lambda text: text[: len(text) // 2 - 3],
        lambda text: text.replace(b",100.", b",abc", 1),
        lambda text: text.replace(b"\n", b"\n,,\n", 1),
        lambda text: b"",
        lambda text: b"\xff\xfe" + text,
        lambda text: text + b"\x00" * 50,
    ],
)
def test_damaged_text_is_refused_or_read_and_never_anything_else(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    tables = {"candles": sound("candles", 0, BARS, 1)}
    assert built(tmp_path, "one", tables, "csv") is not None
    file = tmp_path / "one_btcusdt_candles.csv"
    file.write_bytes(damage(file.read_bytes()))
    chosen = {"market.source": "candles", "market.path": str(file)}
    try:
        bars, _ = bars_with_report(load_settings("smoke", chosen), "BTC")
    except MarketDataError as error:
        named = error.file
    else:
        check_sound(bars)
        named = str(file)
    assert named == str(file)
