from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from archetype_dagster.errors import SettingsError
from archetype_dagster.settings.files import config_text
from archetype_dagster.settings.policy_specs import PolicySpec, load_policy_spec, policy_spec_names

NAMES = policy_spec_names()
# The other values of fields that take no arbitrary ones.
OTHERS: dict[Any, Any] = {
    **{"random": "first", "log": "simple", "softmax": "renormalised", "sell": "buy", "auto": 0.1, "lstm": "gru"},
    **{"TransformerBackbone": "RecurrentBackbone", "RecurrentBackbone": "TransformerBackbone"},
    **{"AutoencoderBackbone": "PatchTSTBackbone", "PatchTSTBackbone": "AutoencoderBackbone"},
}
CLEAN_RL = {
    "algorithm": {"name": "CleanRL", "learning_rate": 1e-3, "anneal_learning_rate": False, "minibatches": 2},
    "universe": {"source": "candles", "path": "candles", "pairs": ["ETH"], "bar_minutes": 10},
}


FIXED = {"universe.path": "elsewhere", "universe.pairs": ["BTC"]}
# Whole batches must stay whole.
SIZES = ("algorithm.batch_size", "algorithm.rollout_steps", "copies")


def spec(name: str, changes: dict[str, Any] | None = None) -> PolicySpec:
    return load_policy_spec(name, changes)


def sections(model: BaseModel, place: str = "") -> Iterator[str]:
    yield place
    for name, value in model:
        if isinstance(value, BaseModel):
            yield from sections(value, f"{place}{name}.")


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for name, child in value.items():
            yield from leaves(child, f"{place}.{name}" if place else name)
    else:
        yield place, value


def another(value: Any) -> Any:
    """A value of the same kind that is not this one and lies near it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.99 if value else 0.01
    if isinstance(value, list | tuple):
        return [another(part) for part in value]
    return OTHERS[value]


@pytest.mark.parametrize(
    ("name", "algorithm", "backbone", "environment"),
    [
        ("transformer_stock_trading", "PPO", "TransformerBackbone", "StockTradingEnv"),
        ("recurrent_portfolio", "SAC", "RecurrentBackbone", "PortfolioAllocationEnv"),
        ("autoencoder_marketmaking", "PPO", "AutoencoderBackbone", "MarketMakingEnv"),
        ("patchtst_execution", "PPO", "PatchTSTBackbone", "OptimalExecutionEnv"),
    ],
)
def test_the_shipped_specifications_are_the_four(name: str, algorithm: str, backbone: str, environment: str) -> None:
    found = spec(name)
    assert (found.algorithm.name, found.backbone.alias, found.environment.name) == (algorithm, backbone, environment)
    assert set(NAMES) >= {name}
    assert found.environment.lookback_bars > 1


def test_a_specification_ends_episodes_by_drawdown_margin_and_inventory() -> None:
    stocks, portfolio = spec("transformer_stock_trading").environment, spec("recurrent_portfolio").environment
    assert stocks.max_drawdown
    assert stocks.margin_floor > 0
    assert portfolio.max_drawdown
    assert spec("autoencoder_marketmaking").environment.inventory_limit == 10


@pytest.mark.parametrize("name", [*NAMES, "clean_rl"])
def test_every_field_changes_the_hash(name: str) -> None:
    tree = yaml.safe_load(config_text(f"rl/policies/{'patchtst_execution' if name == 'clean_rl' else name}.yaml"))
    if name == "clean_rl":
        tree |= CLEAN_RL
    base = PolicySpec.checked(dict(tree), {}, name)
    # As parsed, so that what the file leaves to a default is changed too.
    parsed, seen, tried = base.model_dump(), {base.content_hash}, 0
    one_asset = base.environment.name in ("MarketMakingEnv", "OptimalExecutionEnv")
    for place, value in leaves(parsed):
        if place.endswith(".name") or place == "universe.source" or (place == "universe.assets" and one_asset):
            continue
        changes: dict[str, Any] = {place: FIXED.get(place, 3 if value is None else None)}
        if isinstance(value, datetime):
            changes[place] = value + timedelta(seconds=1 if place.endswith("start") else -1)
        elif place in SIZES and base.algorithm.name == "PPO":
            changes[place] = value * 2
        elif changes[place] is None:
            changes[place] = another(value)
        changed = base.checked(base.model_dump(), changes, place)
        assert changed.content_hash not in seen, place
        seen.add(changed.content_hash)
        tried += 1
    assert tried >= 40
    assert base.content_hash == PolicySpec.checked(dict(tree), {}, name).content_hash


def test_environments_algorithms_and_universes_are_part_of_the_hash() -> None:
    base = spec("patchtst_execution")
    for change in CLEAN_RL:
        other = base.checked(base.model_dump(), {change: CLEAN_RL[change]}, change)
        assert other.content_hash != base.content_hash
    market = base.checked(base.model_dump(), {"environment": {"name": "MarketMakingEnv"}}, "environment")
    assert market.content_hash != base.content_hash


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_field_is_refused_in_every_section(name: str) -> None:
    for place in sections(spec(name)):
        with pytest.raises(SettingsError, match=f"{name}: .*unknowable: Extra inputs are not permitted"):
            spec(name, {f"{place}unknowable": 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"windows.train_end": "2026-01-01T00:00:00Z"}, "windows must be ordered and disjoint"),
        ({"universe.assets": 2}, "OptimalExecutionEnv trades one asset, the universe holds 2"),
        ({"algorithm.batch_size": 7}, "batch_size must divide rollout_steps times copies, got 7 for 960"),
        ({"algorithm.name": "A2C"}, "does not match any of the expected tags: 'PPO', 'SAC', 'CleanRL'"),
        ({"environment.horizon_bars": 0}, "environment.OptimalExecutionEnv.horizon_bars: Input should be greater"),
        ({"total_steps": 0}, "total_steps: Input should be greater than 0"),
    ],
)
def test_values_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        spec("patchtst_execution", changes)


def test_a_specification_is_loaded_by_name_or_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(config_text("rl/policies/recurrent_portfolio.yaml"))
    assert load_policy_spec(path) == load_policy_spec("recurrent_portfolio")
    assert load_policy_spec(path, {"seed": 3}).seed == 3
    with pytest.raises(SettingsError, match="unknown policy specification 'mine'; choose from autoencoder_market"):
        load_policy_spec("mine")
    with pytest.raises(SettingsError, match="does not exist"):
        load_policy_spec(tmp_path / "other.yaml")
