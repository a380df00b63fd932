"""Which settings a run uses: a profile or a file, and single values on top."""

import os
from pathlib import Path
from typing import Any, Final

import dagster as dg
from pydantic import Field

from archetype_dagster.settings import Settings, load_settings

SETTINGS_VARIABLE: Final = "ARCHETYPE_SETTINGS"


class SettingsResource(dg.ConfigurableResource[Settings]):
    """Chooses the settings tree of a run."""

    profile: str | None = Field(
        default=None,
        description="Shipped profile: smoke, paper or extended; empty takes the profile or file that the environment "
        f"names in {SETTINGS_VARIABLE}, or else smoke.",
    )
    settings_file: str | None = Field(default=None, description="YAML file to use instead of a profile.")
    overrides: dict[str, Any] = Field(
        default={}, description="Values by dotted key on top of the profile, e.g. planner.horizon_bars: 36."
    )

    @property
    def name(self) -> str:
        """What a report calls the choice: the profile, or the file's name."""
        return Path(self._chosen).stem if self._chosen.endswith((".yaml", ".yml")) else self._chosen

    def load(self) -> Settings:
        """The settings tree; `SettingsError` names what is unknown or out of range."""
        return load_settings(self._chosen, self.overrides)

    @property
    def _chosen(self) -> str:
        return self.settings_file or self.profile or os.environ.get(SETTINGS_VARIABLE) or "smoke"
