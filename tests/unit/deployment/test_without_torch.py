"""A bundle runs in an environment that holds nothing but onnxruntime, NumPy, Polars and what they need themselves."""

import json
import subprocess
import venv
from importlib.metadata import Distribution, distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from archetype_dagster.deployment import OnnxPolicy

RUNTIME = ("onnxruntime", "numpy", "polars")
PROGRAM = """
import json, sys
import polars as pl
from archetype_dagster.deployment import OnnxPolicy

folder, bars = sys.argv[1:]
policy, rows = OnnxPolicy.load(folder), list(pl.read_parquet(bars).iter_rows(named=True))
actions = []
for number, row in enumerate(rows):
    decision = policy.on_bar(row)
    actions.append(None if decision is None else decision.action)
    if number == len(rows) // 2:
        state = json.loads(json.dumps(policy.state()))
        policy.reset()
        policy.restore(state)
print(json.dumps({"actions": actions, "cost": policy.cost(rows[-1], 0, 2), "modules": sorted(sys.modules)}))
"""
NOT_LOADED = ("torch", "pydantic", "yaml", "scipy", "numba", "sklearn", "gymnasium", "dagster", "mlflow", "onnx")


def needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """The distribution and, at any depth, what it requires here."""
    if name not in found:
        found[name] = distribution(name)
        for line in found[name].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name, found)
    return found


def bare_environment(folder: Path) -> Path:
    """A virtual environment with links to the runtime's packages and to ours; its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    found: dict[str, Distribution] = {}
    for name in RUNTIME:
        needed(name, found)
    for one in found.values():
        for top in {file.parts[0] for file in one.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (packages / top).symlink_to(one.locate_file(top))
    origin = find_spec("archetype_dagster").origin
    (packages / "archetype_dagster").symlink_to(Path(origin).parent)
    return folder / "bin" / "python"


def test_a_bundle_decides_without_torch_or_anything_that_training_needs(bundle, market, rows, tmp_path):
    python = bare_environment(tmp_path / "environment")
    market.bars.write_parquet(tmp_path / "bars.parquet")

    def isolated(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-I", "-c", program, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)

    for name in ("torch", "pydantic"):
        assert "ModuleNotFoundError" in isolated(f"import {name}").stderr, "the environment must be bare"
    done = isolated(PROGRAM, str(bundle), str(tmp_path / "bars.parquet"))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    policy = OnnxPolicy.load(bundle)
    decided = [policy.on_bar(row) for row in rows]
    assert told["actions"] == [None if one is None else one.action for one in decided]
    assert told["cost"] == policy.cost(rows[-1], 0, 2)
    assert not {name.partition(".")[0] for name in told["modules"]} & set(NOT_LOADED)
