"""The selector's best validation return by `selection.batch_size`, over several seeds; the test split is never read.

Run with `python benchmarks/selection_batch_size.py [--market ETH=FOLDER_OF_CANDLES ...] [--cache FOLDER]`. Only the
selector is trained again: the profile's codebook and table of returns are made once a market and kept in the cache.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from _machine import machine_line

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.pipeline.cache import StageCache
from archetype_dagster.pipeline.inputs import splits_of
from archetype_dagster.selection import ArchetypeReturns, train_selector
from archetype_dagster.selection.training import VALIDATION_SCORE
from archetype_dagster.settings import SelectionSettings, Settings, load_settings
from archetype_dagster.types import NoProgress

DEVICE = torch.device("cpu")


@dataclass
class Trial:
    """One market's datasets and table of returns."""

    settings: Settings
    cache: StageCache
    pair: str

    def __post_init__(self) -> None:
        kinds = ("feature_table", "archetype_returns")
        features, returns = self.cache.artifacts(kinds, self.settings, self.pair)
        splits = splits_of(features, self.settings)
        self.train, self.validation = splits.train, splits.validation
        self.table = ArchetypeReturns.load(returns.directory)

    def best(self, selection: SelectionSettings, seed: int) -> float:
        """Highest validation return of one training, percent of notional a horizon."""
        selector = train_selector(
            self.train,
            self.validation,
            self.table,
            selection,
            horizon_bars=self.settings.planner.horizon_bars,
            seed=seed,
            device=DEVICE,
            resume=ResumePoint(None, ""),
            progress=NoProgress(),
        )
        return float(selector.history[VALIDATION_SCORE].to_numpy().max())


def compare(market: str, profile: str, sizes: list[int], seeds: int, cache: Path) -> None:
    pair, _, folder = market.partition("=")
    source = {"market.source": "candles", "market.path": folder} if folder else {}
    settings = load_settings(profile, source)
    trial = Trial(settings, StageCache(cache, DEVICE, NoProgress()), pair)
    starts = f"{len(trial.table.train)} training and {len(trial.table.validation)} validation horizons"
    name = f"{pair}, {settings.market.source}"
    given = SelectionSettings(stride_bars=settings.selection.stride_bars)
    for budget, selection in ((f"profile {profile}", settings.selection), ("defaults", given)):
        rows = [
            [trial.best(selection.model_copy(update={"batch_size": size}), seed) for seed in range(seeds)]
            for size in sizes
        ]
        cells = [f"{np.mean(row):+.4f} ± {np.std(row, ddof=1):.4f}" for row in rows]
        print(f"| {name} | {starts} | {budget} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--market", action="append", help="PAIR for the embedded market, PAIR=FOLDER for candles")
    parser.add_argument("--profile", default="smoke")
    parser.add_argument("--batch-size", action="append", type=int)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cache", type=Path, help="folder that keeps what is shared; without it, it is made anew")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = options.batch_size or [32, 64, 128, 256]
    print(machine_line("torch", "numpy"))
    print(
        f"best {VALIDATION_SCORE} in percent of notional a horizon: mean ± standard deviation of {options.seeds} seeds"
    )
    print(f"| market | horizons | selection | {' | '.join(map(str, sizes))} |\n|--|--|--|{'--|' * len(sizes)}")
    with tempfile.TemporaryDirectory() as scratch:
        for market in options.market or ["ETH"]:
            compare(market, options.profile, sizes, options.seeds, options.cache or Path(scratch))


if __name__ == "__main__":
    main()
