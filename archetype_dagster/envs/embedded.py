"""What the hierarchical environments use when they are given nothing: the embedded market, archetypes, a selector."""

from __future__ import annotations

from typing import Final

import polars as pl
import torch

from archetype_dagster.codebook import Codebook
from archetype_dagster.envs.sources import EMBEDDED_MARKET
from archetype_dagster.market import MarketDataset, load_bars
from archetype_dagster.market.feature_table import build_feature_table
from archetype_dagster.seeding import seeded_initialisation
from archetype_dagster.selection import Selector
from archetype_dagster.selection.network import SelectorNetwork
from archetype_dagster.settings import CodebookSettings, SelectionSettings, Settings, SplitSettings

# Drawn this wide, untrained codes decode to plans that differ.
_SPREAD: Final = 2.0


def embedded_dataset(pair: str = "ETH") -> MarketDataset:
    """Four weeks of the embedded market, its features scaled on its first three."""
    bars = load_bars(EMBEDDED_MARKET, pair)
    ends = [bars["timestamp"][int(share * (bars.height - 1))] for share in (0, 0.75, 0.8, 0.9, 1)]
    splits = SplitSettings(
        train_start=ends[0], train_end=ends[1], validation_start=ends[1], validation_end=ends[2],
        test_start=ends[3], test_end=ends[4],
    )  # fmt: skip
    settings = Settings(splits=splits)
    return build_feature_table(bars, settings, pair).dataset(settings)


def embedded_codebook(dataset: MarketDataset) -> Codebook:
    """Seeded archetypes for a dataset that nothing has trained: plans of all kinds, none of them good."""
    codebook = Codebook.untrained(dataset.num_features, dataset.horizon_bars, CodebookSettings())
    with seeded_initialisation(0, "embedded_codebook"):
        torch.nn.init.normal_(codebook.quantizer.codes, std=_SPREAD)
        torch.nn.init.normal_(codebook.decoder.head.weight, std=_SPREAD)
    return codebook


def embedded_selector(codebook: Codebook) -> Selector:
    """A seeded selector for a codebook that nothing has trained."""
    with seeded_initialisation(0, "embedded_selector"):
        network = SelectorNetwork(codebook.num_features, codebook.num_codes, SelectionSettings().hidden_sizes)
    return Selector(network, pl.DataFrame())
