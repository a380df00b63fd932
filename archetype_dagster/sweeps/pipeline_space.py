"""A sweep of the settings as a search space, and the settings that a trial's values stand for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from archetype_dagster.errors import SettingsError
from archetype_dagster.settings import Settings, SweepSettings, SweptRange
from archetype_dagster.sweeps.space import SearchSpaceDef


def search_space(sweep: SweepSettings) -> dict[str, SearchSpaceDef]:
    """What is drawn for each trial: swept settings by their dotted names, and one of each group of alternatives.

    Raises:
        SettingsError: values that no trial can draw, e.g. a range that ends before it begins.
    """
    space = {name: _definition(name, values) for name, values in sweep.space.items()}
    return space | {
        name: SearchSpaceDef("categorical", choices=tuple(named)) for name, named in sweep.alternatives.items()
    }


def trial_settings(settings: Settings, params: Mapping[str, Any]) -> Settings:
    """The settings that a trial trains and is judged under.

    Args:
        settings: those of the sweep; `settings.sweep.overrides` holds for every trial, the untuned one included.
        params: a value for each name of `search_space`; none for the untuned settings.

    Raises:
        SettingsError: settings that do not go together, or a decoder that reads the horizon's future, which would
            win by what it cannot know.
    """
    sweep = settings.sweep
    changed = settings.changed({**sweep.overrides, **sweep.changes(params)})
    if changed.codebook.hindsight:
        raise SettingsError(
            f"codebook.decoder {changed.codebook.decoder!r} reads the horizon's future, so a sweep would choose it for "
            "what it cannot know"
        )
    return changed


def _definition(name: str, values: SweptRange) -> SearchSpaceDef:
    try:
        return SearchSpaceDef(values.type, values.low, values.high, values.step, values.choices, values.log)
    except ValueError as error:
        raise SettingsError(f"sweep.space: {name}: {error}") from error
