"""A small market with a gap and untrained policies whose choices vary, shared by the tests of deployment."""

import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest
import torch

from archetype_dagster.artifacts import read_json, write_json
from archetype_dagster.backtest.policy import TradingPolicy
from archetype_dagster.codebook.history import HISTORY_SCHEMA
from archetype_dagster.codebook.model import Codebook
from archetype_dagster.codebook.modules import CodebookModules
from archetype_dagster.deployment import export_policy
from archetype_dagster.deployment.bundle import CHECKSUMS_FILE, POLICY_FILE, seal_bundle
from archetype_dagster.market.bars import assign_segments
from archetype_dagster.market.feature_table import build_feature_table
from archetype_dagster.market.features import FEATURE_NAMES, compute_features
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.market.synthetic import synthetic_bars
from archetype_dagster.refinement.adapter import context_size
from archetype_dagster.refinement.network import RefinerNetwork
from archetype_dagster.refinement.refiner import Refiner
from archetype_dagster.selection.network import SelectorNetwork
from archetype_dagster.selection.selector import Selector
from archetype_dagster.settings import Settings, load_settings

HORIZON = 24
SEED = 2  # its choices, actions and overrides vary
START = datetime(2024, 1, 1, tzinfo=UTC)


class DeploymentMarket(NamedTuple):
    """Bars of ETH with one gap, and the scaler of their features."""

    bars: pl.DataFrame
    scaler: FeatureScaler


@pytest.fixture(scope="session")
def deployment_settings() -> Callable[..., Settings]:
    def make(**overrides) -> Settings:
        base = {"planner.horizon_bars": HORIZON, "codebook.hidden_size": 32, "codebook.num_codes": 5}
        return load_settings("smoke", {**base, **overrides})

    return make


@pytest.fixture(scope="session")
def market(deployment_settings) -> DeploymentMarket:
    settings = deployment_settings(
        **{
            "market.synthetic.start": START.isoformat(),
            "market.synthetic.end": (START + timedelta(minutes=10 * 330)).isoformat(),
        }
    )
    bars = synthetic_bars(settings.market, settings.pair("ETH"), pair_name="ETH", seed=3)
    # The gap lies in the middle of a horizon, and the last horizon is cut short by the end.
    kept = bars.with_row_index().filter(pl.col("index") != 60 + 2 * HORIZON + 10).drop("index")
    segmented = assign_segments(kept, bar_minutes=10)
    return DeploymentMarket(segmented, FeatureScaler.fit(compute_features(segmented).select(FEATURE_NAMES).to_numpy()))


@pytest.fixture(scope="session")
def dataset_of(market):
    """The market's dataset under some settings."""
    return lambda settings: build_feature_table(market.bars, settings, "ETH", scaler=market.scaler).dataset(settings)


@pytest.fixture(scope="session")
def make_policy(deployment_settings) -> Callable[..., TradingPolicy]:
    """Untrained heads hardly ever act: these are spread out so that all actions and overrides occur."""

    def make(seed: int = SEED, **overrides) -> TradingPolicy:
        settings = deployment_settings(**overrides)
        features = len(FEATURE_NAMES)
        modules = CodebookModules.build(settings.codebook, features, seed=seed)
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            selector = SelectorNetwork(
                features,
                settings.codebook.num_codes,
                settings.selection.hidden_sizes,
                **settings.selection.market_input,
            )
            # Each network from a seed of its own, so that one's backbone leaves the other as it is.
            torch.manual_seed(seed + 1)
            refiner = RefinerNetwork(
                features, context_size(settings.codebook.code_dim), 32, **settings.refinement.market_input
            )
        with torch.no_grad():
            modules.quantizer.codes.copy_(torch.randn(modules.quantizer.codes.shape, generator=generator))
            modules.decoder.head.weight.mul_(8.0)
            refiner.actor.weight.copy_(torch.randn(refiner.actor.weight.shape, generator=generator) / 8)
            patient = torch.tensor([0.0, 1.0, 0.0])
            refiner.actor.bias.copy_(patient)
            # Some backbones say nearly the same of every window: without this one choice always wins.
            if selector.lookback_bars > 1:
                draws = torch.Generator().manual_seed(seed)
                noise = torch.randn(256, selector.lookback_bars, features, generator=draws)
                selector.actor.bias.sub_(selector.eval()(noise)[0].mean(dim=0))
            for block in (*refiner.blocks, refiner):
                modulation = block.norm.modulation.weight
                modulation.copy_(torch.randn(modulation.shape, generator=generator) / 4)
            if refiner.lookback_bars > 1:
                draws = torch.Generator().manual_seed(seed)
                noise = torch.randn(256, refiner.lookback_bars, features, generator=draws)
                context = torch.randn(256, context_size(settings.codebook.code_dim), generator=draws)
                refiner.actor.bias.add_(patient - refiner.eval()(noise, context)[0].mean(dim=0))
        codebook = Codebook(
            modules,
            settings=settings.codebook,
            num_features=features,
            horizon_bars=HORIZON,
            history=pl.DataFrame(schema=HISTORY_SCHEMA),
        )
        return TradingPolicy(
            codebook,
            Selector(selector.eval().requires_grad_(False), pl.DataFrame()),
            Refiner(refiner.eval().requires_grad_(False), pl.DataFrame()),
            settings,
        )

    return make


@pytest.fixture(scope="session")
def rows(market) -> list[dict]:
    """The market's bars as they come, one by one."""
    return list(market.bars.iter_rows(named=True))


@pytest.fixture(scope="session")
def bundle(make_policy, market, tmp_path_factory) -> Path:
    """The exported policy; exporting takes seconds, so other rules are resealed copies of it."""
    directory = tmp_path_factory.mktemp("bundle")
    export_policy(make_policy(), market.scaler, directory, pair="ETH", parents={"vq_codebook": "c0de"})
    return directory


@pytest.fixture(scope="session")
def resealed() -> Callable[..., Path]:
    """A copy of a bundle with other values in its manifest (None drops a graph), under checksums that fit."""

    def make(source: Path, target: Path, **changes) -> Path:
        if source != target:
            shutil.copytree(source, target, dirs_exist_ok=True)
        manifest = {**read_json(target / POLICY_FILE), **changes}
        for name, graph in list(manifest["graphs"].items()):
            if graph is None:
                (target / read_json(source / POLICY_FILE)["graphs"][name]["file"]).unlink()
                del manifest["graphs"][name]
        write_json(target / POLICY_FILE, manifest)
        seal_bundle(target, [path.name for path in target.iterdir() if path.name != CHECKSUMS_FILE])
        return target

    return make


@pytest.fixture(scope="session")
def malformed() -> Callable[[Any], Iterator[tuple[str, Any]]]:
    """A manifest with one thing wrong at a time, anywhere in it: gone, or of another kind."""

    def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        if path:
            yield path
        # Of a list its first two, as the others are alike.
        inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
        for name, one in inner:
            yield from places(one, (*path, name))

    def make(manifest: Any) -> Iterator[tuple[str, Any]]:
        for path in places(manifest):
            for wrong in ("gone", None, True, -1, 0.5, 10**400, "word", [], [[]], {}, {"a": {}}):
                changed = deepcopy(manifest)
                inside = changed
                for name in path[:-1]:
                    inside = inside[name]
                if wrong == "gone":
                    del inside[path[-1]]
                elif inside[path[-1]] == wrong and type(inside[path[-1]]) is type(wrong):
                    continue
                else:
                    inside[path[-1]] = wrong
                yield f"{'.'.join(map(str, path))} is {wrong!r:.20}", changed
        for wrong in (None, [], 5, "word", {}):
            yield f"all of it is {wrong}", wrong

    return make
