"""YAML of unknown origin: plain values only, each key once, no aliases, no bottom that is never reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from archetype_dagster.cli_options import overrides
from archetype_dagster.errors import SettingsError
from archetype_dagster.settings import load_settings
from archetype_dagster.settings.yaml_text import DEEPEST, LARGEST, read_yaml

BOMB = "a: &a [1, 1, 1, 1]\nb: &b [*a, *a, *a, *a]\nc: &c [*b, *b, *b, *b]\n"


def test_plain_values_are_read() -> None:
    assert read_yaml("a: 1\nb: [x, {c: null, d: true}]\ne: 1.5", "text") == {
        "a": 1,
        "b": ["x", {"c": None, "d": True}],
        "e": 1.5,
    }
    assert read_yaml("", "text") is None
    assert read_yaml("[" * DEEPEST + "]" * DEEPEST, "text") is not None


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (BOMB, "aliases are not taken"),
        ("seed: 1\nseed: 2", "'seed' is there twice"),
        ("a: {b: 1, c: 2, b: 3}", "'b' is there twice"),
        ("[" * 5_000, f"deeper than {DEEPEST} levels"),
        ("a: " * (DEEPEST + 1) + "1", "not valid YAML"),
        ("\n".join(" " * level + "a:" for level in range(DEEPEST + 1)), f"deeper than {DEEPEST} levels"),
        ("!!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("#" * (LARGEST + 1), f"shorter than {LARGEST} characters"),
        ("2024-99-99", "not valid YAML"),
        ("9" * 5_000, "not valid YAML"),
        ("[]: 1", "unhashable key"),
    ],
)
def test_what_is_refused_says_why(text: str, rule: str) -> None:
    with pytest.raises(SettingsError, match=rule):
        read_yaml(text, "text")


def test_files_and_assignments_go_through_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("planner: {horizon_bars: 36}\nplanner: {horizon_bars: 12}")
    with pytest.raises(SettingsError, match=r"mine\.yaml is not valid YAML: key 'planner' is there twice"):
        load_settings(str(file))
    with pytest.raises(SettingsError, match="aliases"):
        overrides(None, None, None, ["market.path=[&a 1, *a]"])
