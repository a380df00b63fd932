"""A saved policy from its folder, whichever adapter wrote it."""

from __future__ import annotations

from pathlib import Path

from archetype_dagster.artifacts import read_json
from archetype_dagster.errors import ArtifactError
from archetype_dagster.policies import cleanrl, sb3
from archetype_dagster.policies.saved import POLICY_FILE, Policy


def load_policy(directory: Path) -> Policy:
    """The policy in `directory`, on the CPU and in evaluation mode.

    Raises:
        ArtifactError: a file is missing, damaged or of an unknown bridge.
    """
    facts = read_json(directory / POLICY_FILE)
    bridge = facts.get("bridge") if isinstance(facts, dict) else None
    if bridge == cleanrl.BRIDGE:
        return cleanrl.CleanRLAdapter.load(directory)
    if bridge == sb3.BRIDGE:
        return sb3.SB3Adapter.load(directory)
    raise ArtifactError(f"{directory / POLICY_FILE} is of an unknown bridge {bridge!r}")
