"""Small hand-made markets for the backtest's tests."""

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl
import pytest
from torch import nn

from archetype_dagster.backtest.policy import TradingPolicy
from archetype_dagster.backtest.replay import PricedBars
from archetype_dagster.codebook.model import Codebook
from archetype_dagster.market.bars import assign_segments
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.sources import bars_for
from archetype_dagster.refinement.adapter import context_size
from archetype_dagster.refinement.network import RefinerNetwork
from archetype_dagster.refinement.refiner import Refiner
from archetype_dagster.seeding import seeded_initialisation
from archetype_dagster.selection.continuous import ContinuousSelector
from archetype_dagster.selection.gaussian import GaussianSelectorNetwork
from archetype_dagster.selection.network import SelectorNetwork
from archetype_dagster.selection.selector import Selector
from archetype_dagster.settings import Settings, load_settings

START = np.datetime64("2024-01-01T00:10", "us")
SPANS = {
    "market.synthetic.start": "2024-01-01T00:00:00Z",
    "market.synthetic.end": "2024-01-13T00:00:00Z",
    "splits.train_start": "2024-01-01T00:00:00Z",
    "splits.train_end": "2024-01-04T00:00:00Z",
    "splits.validation_start": "2024-01-04T00:00:00Z",
    "splits.validation_end": "2024-01-07T00:00:00Z",
    "splits.test_start": "2024-01-07T00:00:00Z",
    "splits.test_end": "2024-01-13T00:00:00Z",
    "planner.horizon_bars": 12,
    "market.book_levels": 5,
    "evaluation.random_archetype_draws": 5,
}
GAP = slice(1300, 1320)


def bar_ends(count: int) -> np.ndarray:
    return START + np.arange(count) * np.timedelta64(10, "m")


def settings_with(changes: Mapping[str, object]) -> Settings:
    return load_settings(overrides={**SPANS, **changes})


@pytest.fixture(scope="session")
def small_settings() -> Callable[..., Settings]:
    """Settings of twelve days of the embedded market with a horizon of 12 bars."""

    def make(**changes: object) -> Settings:
        return settings_with(changes)

    return make


@pytest.fixture(scope="session")
def small_bars() -> pl.DataFrame:
    """Their bars, with a gap of 20 bars inside the test split."""
    whole = bars_for(settings_with({}), "ETH")
    kept = pl.concat([whole[: GAP.start], whole[GAP.stop :]])
    return assign_segments(kept, bar_minutes=10)


@pytest.fixture
def priced() -> Callable[..., PricedBars]:
    """Bars with given marks, a commission rate and a loss of `half_spread` per unit traded."""

    def make(mark, *, rate=0.0, half_spread=0.0, max_position=1.0, segment=None) -> PricedBars:
        mark = np.asarray(mark, dtype=np.float64)
        units = max_position * np.abs(np.arange(3)[:, None] - np.arange(3))
        return PricedBars(
            timestamps=bar_ends(len(mark)),
            mark=mark,
            slippage=np.broadcast_to(half_spread * units, (len(mark), 3, 3)).copy(),
            commission=rate * units * mark[:, None, None],
            segment=np.zeros(len(mark), dtype=np.int32) if segment is None else np.asarray(segment, dtype=np.int32),
            max_position=max_position,
            commission_rate=rate,
        )

    return make


@pytest.fixture
def book_bars() -> Callable[..., pl.DataFrame]:
    """Bars whose book has `levels` levels of `size` units, one `tick` apart around the given mid prices."""

    def make(mid, *, size=1e6, tick=0.01, levels=5, segment=0) -> pl.DataFrame:
        mid = np.asarray(mid, dtype=np.float64)
        frame = pl.DataFrame(
            {
                "timestamp": pl.Series(bar_ends(len(mid))).dt.replace_time_zone("UTC"),
                "open": mid,
                "high": mid + tick,
                "low": mid - tick,
                "close": mid,
                "volume": np.full(len(mid), 100.0),
                "taker_buy_volume": pl.Series([None] * len(mid), dtype=pl.Float64),
            }
        )
        for level in range(1, levels + 1):
            distance = (level - 0.5) * tick
            frame = frame.with_columns(
                pl.Series(f"bid{level}_price", mid - distance),
                pl.Series(f"bid{level}_size", np.full(len(mid), float(size))),
                pl.Series(f"ask{level}_price", mid + distance),
                pl.Series(f"ask{level}_size", np.full(len(mid), float(size))),
            )
        return frame.with_columns(
            pl.lit("observed").alias("book_source"), pl.lit(segment, dtype=pl.Int32).alias("segment")
        )

    return make


@pytest.fixture
def random_dataset() -> Callable[..., MarketDataset]:
    """A random walk of scaled features and prices with gaps between segments of the given lengths."""

    def make(*, segments=(60, 30), delay=0, features=6, horizon=8, seed=0) -> MarketDataset:
        rng = np.random.default_rng(seed)
        rows = sum(segments)
        mark = 100 * np.exp(np.cumsum(rng.normal(0, 0.01, rows)))
        units = np.abs(np.arange(3)[:, None] - np.arange(3))
        return MarketDataset(
            pair="ETH",
            timestamps=bar_ends(rows),
            states=rng.normal(size=(rows, features)).astype(np.float32),
            mark=mark,
            costs=units * (mark * rng.uniform(0.001, 0.01, rows))[:, None, None],
            segment=np.repeat(np.arange(len(segments)), segments).astype(np.int32),
            max_position=2.0,
            horizon_bars=horizon,
            execution_delay_bars=delay,
        )

    return make


@pytest.fixture
def random_policy() -> Callable[..., TradingPolicy]:
    """A policy of untrained networks, sharp enough that its choices vary and its refiner, if it has one, acts."""

    def make(settings: Settings, *, features=6, codes=4, decoder="lstm", seed=0, embedding="vq") -> TradingPolicy:
        chosen = settings.codebook.model_copy(
            update={
                "embedding": embedding,
                "num_codes": codes,
                "code_dim": 3,
                "hidden_size": 8,
                "decoder": decoder,
                "decoding": "single_change" if decoder == "bilstm" else "argmax",
            }
        )
        with seeded_initialisation(seed, "random_policy"):
            codebook = Codebook.untrained(features, settings.planner.horizon_bars, chosen, seed=seed)
            nn.init.normal_(codebook.decoder.head.weight, std=2.0)
            if embedding == "continuous":
                chooser = GaussianSelectorNetwork(features, 3, (8,))
                nn.init.normal_(chooser.actor.weight)
                return TradingPolicy(codebook, ContinuousSelector(chooser.eval(), pl.DataFrame()), None, settings)
            selector = SelectorNetwork(features, codes, (8,))
            refiner = RefinerNetwork(features, context_size(3), 8)
            nn.init.normal_(codebook.quantizer.codes, std=2.0)
            nn.init.normal_(selector.actor.weight)
            nn.init.normal_(refiner.actor.weight)
            for block in refiner.blocks:
                nn.init.normal_(block.norm.modulation.weight)
        empty = pl.DataFrame()
        return TradingPolicy(codebook, Selector(selector.eval(), empty), Refiner(refiner.eval(), empty), settings)

    return make
