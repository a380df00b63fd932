"""Which settings a run uses: a profile or a file, and single values on top."""

from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import Field

from archetype_dagster.settings import Settings, load_settings


class SettingsResource(dg.ConfigurableResource[Settings]):
    """Chooses the settings tree of a run."""

    profile: str = Field(default="smoke", description="Shipped profile: smoke, paper or extended.")
    settings_file: str | None = Field(default=None, description="YAML file to use instead of a profile.")
    overrides: dict[str, Any] = Field(
        default={}, description="Values by dotted key on top of the profile, e.g. planner.horizon_bars: 36."
    )

    @property
    def name(self) -> str:
        """What a report calls the choice: the profile, or the file's name."""
        return Path(self.settings_file).stem if self.settings_file else self.profile

    def load(self) -> Settings:
        """The settings tree; `SettingsError` names what is unknown or out of range."""
        return load_settings(self.settings_file or self.profile, self.overrides)
