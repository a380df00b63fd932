"""The README keeps its word: every code block in it runs.

`make` blocks are left to the continuous-integration script, which runs them itself.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def readme_blocks() -> list[tuple[str, str]]:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [(language, code) for language, code in BLOCK.findall(text) if not code.startswith("make ")]


BLOCKS = readme_blocks()


def run(command: list[str], folder: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "DAGSTER_HOME": str(folder / ".dagster")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"


def test_the_readme_shows_commands_and_the_library() -> None:
    assert {language for language, _ in BLOCKS} == {"python", "bash"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "number", range(len(BLOCKS)), ids=[f"{language}-{i}" for i, (language, _) in enumerate(BLOCKS)]
)
def test_block_runs(number: int, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    language, code = BLOCKS[number]
    if "../shared/data" in code:
        data = request.getfixturevalue("shared_data")
        code = code.replace("../shared/data", str(data))
    (tmp_path / ".dagster").mkdir()
    command = [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]
    run(command, tmp_path)
