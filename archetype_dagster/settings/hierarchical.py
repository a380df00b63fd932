"""EarnHFT and MacroHFT: several agents and something that chooses among or blends them."""

from __future__ import annotations

from archetype_dagster.settings.section import Section


class EarnHftSettings(Section):
    """Trend-labelled low-level agents and a router."""


class MacroHftSettings(Section):
    """Context sub-policies fused by a hyper-agent with a memory."""
