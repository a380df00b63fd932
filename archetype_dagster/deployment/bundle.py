"""A bundle on disk: which files it has, and the reading that refuses one that is damaged, foreign or too new.

policy.json (names, shapes, rules, numbers), scaler.json, the ONNX graphs and checksums.json: the SHA-256 of every
other file, and of all of them together, which names the bundle. Needs neither torch nor the settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

import numpy as np

from archetype_dagster.artifacts import MANIFEST_NAME, file_hash, json_hash, read_json, write_json
from archetype_dagster.deployment.interfaces import require_interfaces
from archetype_dagster.deployment.rules import BUNDLE_VERSION, RULES, feature_hash
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.bar_costs import BarCosts
from archetype_dagster.market.feature_formulas import FEATURE_NAMES, WARMUP_BARS
from archetype_dagster.market.impact import ImpactCurve
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.types import ACTION_NAMES, JsonDict

POLICY_FILE: Final = "policy.json"
SCALER_FILE: Final = "scaler.json"
CHECKSUMS_FILE: Final = "checksums.json"
_AGAIN: Final = "export the policy again"


@dataclass(frozen=True)
class Bundle:
    """A verified bundle.

    Attributes:
        directory: where its files lie.
        manifest: policy.json.
        hash: SHA-256 over the hashes of all its files.
        scaler: raw features -> state.
        costs: the cost model with the numbers it was judged under.
    """

    directory: Path
    manifest: JsonDict
    hash: str
    scaler: FeatureScaler
    costs: BarCosts


def seal_bundle(directory: Path, files: Sequence[str]) -> str:
    """Write checksums.json over the files of a bundle and return the hash of the whole."""
    hashes = {name: file_hash(directory / name) for name in sorted(files)}
    whole = json_hash(hashes)
    write_json(directory / CHECKSUMS_FILE, {"files": hashes, "bundle": whole})
    return whole


def read_bundle(directory: Path, *, expected_hash: str | None = None) -> Bundle:
    """Read a bundle after comparing every file with its checksum, and its manifest with what this version computes.

    Args:
        directory: the bundle's folder; beside its own files only an artifact's manifest.json may lie there.
        expected_hash: the hash that the whole bundle must have, where the caller knows it.

    Raises:
        ArtifactError: a file is missing, changed or not listed; another schema version; features, rules or actions
            that this version does not compute; another bundle than expected. The message says which.
    """
    directory = Path(directory)
    whole = verify_files(directory, required=(POLICY_FILE, SCALER_FILE))
    if expected_hash is not None and whole != expected_hash:
        raise ArtifactError(f"{directory} is the bundle {whole[:12]}, expected {expected_hash[:12]}")
    path = directory / POLICY_FILE
    manifest = read_json(path)
    version = manifest.get("schema_version") if isinstance(manifest, dict) else None
    if version != BUNDLE_VERSION:
        newer = isinstance(version, int) and version > BUNDLE_VERSION
        remedy = "upgrade archetype-dagster" if newer else _AGAIN
        raise ArtifactError(f"{path} has schema version {version}, this version reads {BUNDLE_VERSION}; {remedy}")
    scaler = FeatureScaler.load(directory / SCALER_FILE)
    try:
        _require_known(path, manifest, scaler)
        require_interfaces(manifest)
        knots = manifest["impact_curve"]
        curve = ImpactCurve(*(np.asarray(knots[name], dtype=np.float64) for name in ("notional", "distance_bps")))
        costs = BarCosts(
            float(manifest["max_position"]), float(manifest["commission_rate"]), manifest["depth_policy"], curve
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path} is not the manifest of a policy ({error!r}); {_AGAIN}") from error
    return Bundle(directory, manifest, whole, scaler, costs)


def verify_files(directory: Path, *, required: Sequence[str]) -> str:
    """Compare all files of a folder with its checksums, which must list those required; the hash of the whole.

    Raises:
        ArtifactError: a file is missing, changed or not listed.
    """
    sums = read_json(directory / CHECKSUMS_FILE)
    if not isinstance(sums, dict) or not isinstance(sums.get("files"), dict):
        raise ArtifactError(f"{directory / CHECKSUMS_FILE} lists no files; {_AGAIN}")
    hashes = sums["files"]
    if sums.get("bundle") != json_hash(hashes):
        raise ArtifactError(f"{directory / CHECKSUMS_FILE} does not have the hash it states for the bundle; {_AGAIN}")
    for name in hashes:
        if not (directory / name).is_file():
            raise ArtifactError(f"{directory / name} is missing although {CHECKSUMS_FILE} lists it; {_AGAIN}")
    for name, expected in hashes.items():
        if file_hash(directory / name) != expected:
            raise ArtifactError(f"{directory / name} does not have the hash {CHECKSUMS_FILE} states; {_AGAIN}")
    for name in required:
        if name not in hashes:
            raise ArtifactError(f"{directory / CHECKSUMS_FILE} does not list {name}; {_AGAIN}")
    known = {*hashes, CHECKSUMS_FILE, MANIFEST_NAME}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.relative_to(directory).as_posix() not in known:
            raise ArtifactError(f"{path} is not listed in {CHECKSUMS_FILE}: a bundle holds nothing else; {_AGAIN}")
    return str(sums["bundle"])


def _require_known(path: Path, manifest: JsonDict, scaler: FeatureScaler) -> None:
    """Compare the manifest with what this version computes."""
    names = manifest["feature_names"]
    if names != list(FEATURE_NAMES):
        differing = [(i, a, b) for i, (a, b) in enumerate(zip(names, FEATURE_NAMES, strict=False)) if a != b]
        where = f"feature {differing[0][0]} is {differing[0][1]!r}, here {differing[0][2]!r}" if differing else ""
        raise ArtifactError(
            f"{path} names {len(names)} features, this version computes {len(FEATURE_NAMES)}"
            f"{': ' if where else ''}{where}; {_AGAIN}"
        )
    facts: dict[str, tuple[Any, Any]] = {
        "feature_hash": (manifest["feature_hash"], feature_hash()),
        "warmup_bars": (manifest["warmup_bars"], WARMUP_BARS),
        "actions": (manifest["actions"], list(ACTION_NAMES)),
        "rules": (json_hash(manifest["rules"]), json_hash(RULES)),
        "hindsight": (manifest["hindsight"], False),
        "the scaler's features": (len(scaler.mean), len(FEATURE_NAMES)),
    }
    for name, (found, expected) in facts.items():
        if found != expected:
            raise ArtifactError(f"{path}: {name} is {found}, this version computes with {expected}; {_AGAIN}")
    choices = {
        "decoding": (manifest["decoding"], ("argmax", "single_change")),
        "override": (manifest["override"], (None, "step", "hold")),
        "horizon_boundary": (manifest["horizon_boundary"], ("carry", "settle")),
        "feature_scale": (manifest["feature_scale"], ("relative", "raw")),
        "depth_policy": (manifest["depth_policy"], ("extrapolate", "last_level", "reject")),
    }
    for name, (found, allowed) in choices.items():
        if found not in allowed:
            raise ArtifactError(f"{path}: {name} must be one of {allowed}, got {found!r}; {_AGAIN}")
    _require_numbers(path, manifest)
    if not {"selector", "decoder"} <= set(manifest["graphs"]) <= {"selector", "decoder", "refiner"}:
        raise ArtifactError(f"{path} must name the graphs selector and decoder, got {sorted(manifest['graphs'])}")
    listed = {graph["file"] for graph in manifest["graphs"].values()}
    found_graphs = {name.name for name in path.parent.glob("*.onnx")}
    if listed != found_graphs:
        raise ArtifactError(f"{path} names the graphs {sorted(listed)}, the bundle holds {sorted(found_graphs)}")
    if (manifest["override"] is None) != ("refiner" not in manifest["graphs"]):
        raise ArtifactError(f"{path} must have an override rule exactly where it has a refiner; {_AGAIN}")


def _require_numbers(path: Path, manifest: JsonDict) -> None:
    """Bars, money and names that the rules run on, which no graph vouches for."""
    for name, least in (("horizon_bars", 1), ("bar_minutes", 1), ("execution_delay_bars", 0)):
        found = manifest[name]
        if type(found) is not int or found < least:
            raise ArtifactError(f"{path}: {name} must be an integer of at least {least}, got {found!r}; {_AGAIN}")
    size, rate = float(manifest["max_position"]), float(manifest["commission_rate"])
    if not (0 < size < inf and 0 <= rate < 1):
        raise ArtifactError(f"{path}: no position or commission, max_position {size}, commission_rate {rate}; {_AGAIN}")
    for name in ("pair", "base", "quote"):
        if not isinstance(manifest[name], str):
            raise ArtifactError(f"{path}: {name} must be a name, got {manifest[name]!r}; {_AGAIN}")
