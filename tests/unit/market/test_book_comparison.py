"""Modelled beside real books: a book compared with itself, with a deeper one, and what cannot be compared."""

import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.book_comparison import compare_books
from archetype_dagster.market.modelled_book import add_modelled_book
from archetype_dagster.settings import ModelledBookSettings, Settings

PAIR = Settings().pair("BTC")
BOOK = ModelledBookSettings(levels=8)


@pytest.fixture
def observed(random_bars) -> pl.DataFrame:
    """Bars whose observed book is the one that the model gives them with seed 3."""
    plain = random_bars(120, gap_at=50).select("timestamp", "open", "high", "low", "close", "volume", "segment")
    return add_modelled_book(plain, BOOK, PAIR, seed=3).with_columns(book_source=pl.lit("observed"))


def _by_measure(compared: pl.DataFrame, column: str) -> dict[str, float]:
    return dict(zip(compared["measure"], compared[column], strict=True))


def test_a_modelled_book_is_equal_to_itself_in_every_measure(observed):
    compared = compare_books(observed, ModelledBookSettings(), PAIR, seed=3)
    assert compared["measure"].to_list() == [
        "spread [bp]",
        "depth of 5 levels, a side [BTC]",
        "depth of 8 levels, a side [BTC]",
        "distance of level 5 from the mid [bp]",
        "distance of level 8 from the mid [bp]",
        "cost of m = 8 BTC [bp]",
        "cost of 2m = 16 BTC [bp]",
    ]
    assert compared["ratio"].to_list() == [1.0] * 7
    assert compared["real_low"].equals(compared["modelled_low"], check_names=False)


def test_measures_follow_the_book(observed):
    sizes = [name for name in observed.columns if name.endswith("_size")]
    half = observed.with_columns(pl.col(name) / 2 for name in sizes)
    ratio = _by_measure(compare_books(half, BOOK, PAIR, seed=3), "ratio")
    assert ratio["depth of 5 levels, a side [BTC]"] == pytest.approx(2.0)
    assert ratio["spread [bp]"] == 1.0
    assert ratio["cost of m = 8 BTC [bp]"] < 1.0
    row = observed[:1]
    real = _by_measure(compare_books(row, BOOK, PAIR, seed=0), "real")
    bid, ask = row["bid1_price"][0], row["ask1_price"][0]
    assert real["spread [bp]"] == pytest.approx(1e4 * (ask - bid) / ((ask + bid) / 2))
    depth = sum(row[f"{side}{level}_size"][0] for side in ("bid", "ask") for level in range(1, 6))
    assert real["depth of 5 levels, a side [BTC]"] == pytest.approx(depth / 2)


def test_the_model_sees_nothing_of_the_real_book(observed):
    other = observed.with_columns(pl.selectors.matches("^(bid|ask)") * 3.0)
    columns = ["measure", "modelled", "modelled_low", "modelled_high"]
    one, two = (compare_books(bars, BOOK, PAIR, seed=5) for bars in (observed, other))
    assert one.select(columns).equals(two.select(columns))
    assert not one["real"].equals(two["real"])


def test_bars_with_an_empty_side_are_left_out(observed):
    names = [f"ask{level}_{field}" for level in range(1, 9) for field in ("price", "size")]
    holed = observed.with_columns(pl.when(pl.int_range(pl.len()) != 40).then(name).alias(name) for name in names)
    compared = compare_books(holed, BOOK, PAIR, seed=3)
    assert compared.drop("measure").null_count().sum_horizontal().item() == 0
    assert compared["real"].is_finite().all()


def test_only_observed_books_are_compared(observed):
    with pytest.raises(MarketDataError, match="field book_source: only observed books"):
        compare_books(observed.with_columns(book_source=pl.lit("modelled")), BOOK, PAIR, seed=0)
    with pytest.raises(MarketDataError, match="no bar with both sides"):
        compare_books(observed.clear(), BOOK, PAIR, seed=0)
