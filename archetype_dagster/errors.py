"""Errors that a user can cause and mend; each names the place and the rule that was broken."""

from __future__ import annotations

from pathlib import Path


class ArchetypeError(Exception):
    """Base of every error this library raises on purpose."""


class SettingsError(ArchetypeError, ValueError):
    """A setting, profile or pair is unknown or out of range."""


class ArtifactError(ArchetypeError):
    """An artifact is missing, damaged, foreign or built from other parents than expected."""


class SealedSplitError(ArchetypeError):
    """Something asked for the test split where only training and validation may be seen."""


class MarketDataError(ArchetypeError, ValueError):
    """Market data breaks a rule; the message names file, row, field and rule.

    Args:
        rule: the rule that was broken, in words, with the offending value.
        file: file the row came from, if any.
        row: zero-based row number in that file or frame.
        field: column name.
    """

    def __init__(
        self,
        rule: str,
        *,
        file: str | Path | None = None,
        row: int | None = None,
        field: str | None = None,
    ) -> None:
        self.rule = rule
        self.file = None if file is None else str(file)
        self.row = row
        self.field = field
        place = [
            f"{label} {value}"
            for label, value in (("file", self.file), ("row", row), ("field", field))
            if value is not None
        ]
        super().__init__(f"{', '.join(place)}: {rule}" if place else rule)


class FetchError(ArchetypeError):
    """An archive cannot be reached, or files of it could not be fetched."""


class SweepError(ArchetypeError):
    """A sweep cannot begin or go on: its study is held by another, is of other settings, or no trial succeeded."""
