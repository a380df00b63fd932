"""A sweep changes settings of the phases and nothing that decides what its trials are judged by."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from archetype_dagster.errors import SettingsError
from archetype_dagster.settings import Settings, load_settings, named_mapping, shipped_names

LEARNING_RATE = {"type": "log_uniform", "low": 1e-4, "high": 1e-2}


def with_space(**space: object) -> Settings:
    named = {name.replace("__", "."): values for name, values in space.items()}
    return load_settings("smoke", {"sweep": {"name": "test", "space": named}})


@pytest.mark.parametrize("name", shipped_names("sweeps"))
def test_every_shipped_sweep_loads_and_is_called_like_its_file(name: str) -> None:
    settings = load_settings("smoke", {"sweep": named_mapping(name, "sweeps", kind="sweep")})
    assert settings.sweep.name == name
    first = {field: values.samples[0] for field, values in settings.sweep.space.items()}
    assert settings.changed(settings.sweep.changes(first)).content_hash != settings.content_hash


def test_the_pages_own_sweep_loads() -> None:
    page = (Path(__file__).parents[3] / "docs" / "sweeps.md").read_text(encoding="utf-8")
    [spec] = re.findall(r"```yaml\n(name: .*?)```", page, re.DOTALL)
    settings = load_settings("smoke", {"sweep": yaml.safe_load(spec)})
    assert settings.sweep.changes({"selection.network": "recurrent"})["selection.lookback_bars"] == 8


def test_what_is_swept_is_not_what_a_run_is() -> None:
    assert with_space(selection__learning_rate=LEARNING_RATE).content_hash == load_settings("smoke").content_hash


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("splits.validation_end", "cannot be swept: trials may differ in planner, codebook, selection, refinement"),
        ("execution.commission_rate", "would change what they are judged on or by"),
        ("market.synthetic.signal_strength", "cannot be swept"),
        ("seed", "cannot be swept"),
        ("codebook.num_cods", "is no setting; CodebookSettings has embedding, num_codes"),
        ("selection.ppo", "is no setting; PpoSettings has clip_range"),
        ("selection.alpha.weight", r"selection\.alpha is a value, not a section"),
    ],
)
def test_other_sections_and_unknown_fields_are_refused_with_the_reason(field: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        load_settings("smoke", {"sweep": {"name": "test", "space": {field: LEARNING_RATE}}})
    with pytest.raises(SettingsError, match=reason):
        load_settings("smoke", {"sweep.overrides": {field: 1}})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"type": "int", "low": 1, "high": 4}, "codebook.num_codes: .* greater than or equal to 2, got 1"),
        ({"type": "uniform", "low": 2, "high": 4}, "codebook.num_codes: .* valid integer"),
        ({"type": "categorical", "choices": [4, "many"]}, "codebook.num_codes: .*, got 'many'"),
        ({"type": "int", "low": 2}, "int needs low and high"),
        ({"type": "uniform", "low": 2, "high": float("nan")}, "finite number"),
        ({"type": "categorical", "low": 2, "high": 4}, "choices are what categorical needs and no other type takes"),
    ],
)
def test_values_that_a_setting_cannot_take_are_refused_before_any_trial(values: object, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        with_space(codebook__num_codes=values)


def test_alternatives_set_together_what_only_goes_together() -> None:
    settings = load_settings("smoke", {"sweep": named_mapping("selection", "sweeps", kind="sweep")})
    changes = settings.sweep.changes({"selection.alpha": 0.5, "selection.network": "recurrent over 8 bars"})
    changed = settings.changed(changes).selection
    assert (changed.alpha, changed.backbone, changed.lookback_bars) == (0.5, "RecurrentBackbone", 8)


def test_a_setting_is_swept_once() -> None:
    twice = {"name": "test", "space": {"selection.alpha": LEARNING_RATE}, "alternatives": {"a": {"b": {}}}}
    twice["alternatives"]["a"]["b"] = {"selection.alpha": 1.0}
    with pytest.raises(SettingsError, match=r"selection\.alpha must be swept once"):
        load_settings("smoke", {"sweep": twice})


def test_a_sweep_over_nothing_is_refused() -> None:
    with pytest.raises(SettingsError, match="needs space or alternatives"):
        load_settings("smoke", {"sweep": {"name": "test"}})
    with pytest.raises(SettingsError, match=r"unknown sweep 'codebok'; choose from codebook, refinement, selection"):
        named_mapping("codebok", "sweeps", kind="sweep")
