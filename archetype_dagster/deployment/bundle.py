"""A bundle on disk: which files it has, and the reading that refuses one that is damaged, foreign or too new.

policy.json (names, shapes, rules, numbers), scaler.json, the ONNX graphs and checksums.json: the SHA-256 of every
other file, and of all of them together, which names the bundle. Needs neither torch nor the settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from archetype_dagster.artifacts import MANIFEST_NAME, file_hash, json_hash, read_json, write_json
from archetype_dagster.deployment.interfaces import require_interfaces
from archetype_dagster.deployment.manifest_fields import ManifestFields
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
            that this version does not compute; a field that is missing or of another kind; another bundle than
            expected. The message says which.
    """
    directory = Path(directory)
    whole = verify_files(directory, required=(POLICY_FILE, SCALER_FILE))
    if expected_hash is not None and whole != expected_hash:
        raise ArtifactError(f"{directory} is the bundle {whole[:12]}, expected {expected_hash[:12]}")
    manifest = ManifestFields.read(directory / POLICY_FILE, remedy=_AGAIN)
    manifest.version(BUNDLE_VERSION)
    _require_known(manifest)
    scaler = _read_scaler(directory / SCALER_FILE)
    costs = _read_costs(manifest)
    require_interfaces(manifest.values, file=manifest.path)
    return Bundle(directory, manifest.values, whole, scaler, costs)


def verify_files(directory: Path, *, required: Sequence[str], remedy: str = _AGAIN) -> str:
    """Compare all files of a folder with its checksums, which must list those required; the hash of the whole.

    Args:
        directory: the folder.
        required: names of files.
        remedy: what to do where one is wrong.

    Raises:
        ArtifactError: a file is missing, changed or not listed.
    """
    sums = read_json(directory / CHECKSUMS_FILE)
    if not isinstance(sums, dict) or not isinstance(sums.get("files"), dict):
        raise ArtifactError(f"{directory / CHECKSUMS_FILE} lists no files; {remedy}")
    hashes = sums["files"]
    if sums.get("bundle") != json_hash(hashes):
        raise ArtifactError(f"{directory / CHECKSUMS_FILE} does not have the hash it states for the bundle; {remedy}")
    for name in hashes:
        if not (directory / name).is_file():
            raise ArtifactError(f"{directory / name} is missing although {CHECKSUMS_FILE} lists it; {remedy}")
    for name, expected in hashes.items():
        if file_hash(directory / name) != expected:
            raise ArtifactError(f"{directory / name} does not have the hash {CHECKSUMS_FILE} states; {remedy}")
    for name in required:
        if name not in hashes:
            raise ArtifactError(f"{directory / CHECKSUMS_FILE} does not list {name}; {remedy}")
    known = {*hashes, CHECKSUMS_FILE, MANIFEST_NAME}
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.relative_to(directory).as_posix() not in known:
            raise ArtifactError(f"{path} is not listed in {CHECKSUMS_FILE}: a bundle holds nothing else; {remedy}")
    return str(sums["bundle"])


def _require_known(manifest: ManifestFields) -> None:
    """Compare the manifest with what this version computes, and all that the rules run on with what they can run on."""
    names = manifest.items("feature_names")
    if names != list(FEATURE_NAMES):
        differing = [(i, a, b) for i, (a, b) in enumerate(zip(names, FEATURE_NAMES, strict=False)) if a != b]
        where = f"feature {differing[0][0]} is {differing[0][1]!r}, here {differing[0][2]!r}" if differing else ""
        raise ArtifactError(
            f"{manifest.path} names {len(names)} features, this version computes {len(FEATURE_NAMES)}"
            f"{': ' if where else ''}{where}; {_AGAIN}"
        )
    manifest.equal("feature_hash", feature_hash())
    manifest.equal("warmup_bars", WARMUP_BARS)
    manifest.equal("actions", list(ACTION_NAMES))
    manifest.equal("rules", RULES)
    manifest.equal("hindsight", False)
    manifest.choice("decoding", ("argmax", "single_change"))
    override = manifest.choice("override", (None, "step", "hold"))
    manifest.choice("horizon_boundary", ("carry", "settle"))
    manifest.choice("feature_scale", ("relative", "raw"))
    manifest.choice("depth_policy", ("extrapolate", "last_level", "reject"))
    for name in ("horizon_bars", "bar_minutes", "num_codes", "selector_lookback_bars", "refiner_lookback_bars"):
        manifest.integer(name, least=1)
    manifest.integer("execution_delay_bars", least=0)
    for name in ("pair", "base", "quote"):
        manifest.text(name)
    graphs = manifest.table("graphs")
    if not {"selector", "decoder"} <= set(graphs.values) <= {"selector", "decoder", "refiner"}:
        raise ArtifactError(f"{manifest.path} must name the graphs selector and decoder, got {sorted(graphs.values)}")
    listed = {graphs.table(name).text("file") for name in graphs.values}
    found = {graph.name for graph in manifest.path.parent.glob("*.onnx")}
    if listed != found:
        raise ArtifactError(f"{manifest.path} names the graphs {sorted(listed)}, the bundle holds {sorted(found)}")
    if (override is None) != ("refiner" not in graphs.values):
        raise ArtifactError(f"{manifest.path} must have an override rule exactly where it has a refiner; {_AGAIN}")


def _read_scaler(path: Path) -> FeatureScaler:
    """The scaler, whose numbers must be as many as the features are."""
    fields = ManifestFields.read(path, remedy=_AGAIN)
    fields.number("clip_sigma")
    for name in ("mean", "std"):
        count = len(fields.numbers(name))
        if count != len(FEATURE_NAMES):
            raise fields.refusal(name, f"must have {len(FEATURE_NAMES)} numbers, one a feature, got {count}")
    return FeatureScaler.load(path)


def _read_costs(manifest: ManifestFields) -> BarCosts:
    size, rate = manifest.number("max_position"), manifest.number("commission_rate")
    if size <= 0:
        raise manifest.refusal("max_position", f"must be a number above 0, got {size}")
    if not 0 <= rate < 1:
        raise manifest.refusal("commission_rate", f"must be a number from 0 to below 1, got {rate}")
    knots = manifest.table("impact_curve")
    notional, distance = (np.array(knots.numbers(name)) for name in ("notional", "distance_bps"))
    try:
        curve = ImpactCurve(notional, distance)
    except ValueError as error:
        raise manifest.refusal("impact_curve", f"is not a curve ({error})") from error
    return BarCosts(size, rate, manifest.value("depth_policy"), curve)
