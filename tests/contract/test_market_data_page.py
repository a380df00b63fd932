"""The page on market data keeps its word: its tables are what its commands print, and its code runs."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from archetype_dagster.calibrate_cli import app

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "market-data.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^```bash\n(archetype calibrate .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CODE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def _printed(command: str, shared_data: Path) -> str:
    arguments = shlex.split(command.replace("\\\n", " ").replace("../shared/data", str(shared_data)))
    done = CliRunner().invoke(app, arguments[2:], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout.strip()


def test_the_page_shows_every_command() -> None:
    assert {command.split()[2] for command in COMMANDS} == {"impact", "book", "judge", "compare"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=range(len(COMMANDS)))
def test_a_table_is_what_its_command_prints(command: str, shared_data: Path) -> None:
    printed = _printed(command, shared_data)
    if command.split()[2] in ("judge", "compare"):
        assert f"```bash\n{command}```\n\n{printed}\n" in PAGE
    else:
        assert printed.startswith(f"# Made by `archetype calibrate {command.split()[2]}` from ")


@pytest.mark.parametrize("code", CODE, ids=range(len(CODE)))
def test_the_code_runs(code: str) -> None:
    exec(compile(code, "docs/market-data.md", "exec"), {})
