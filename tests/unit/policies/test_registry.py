from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from archetype_dagster.errors import SettingsError
from archetype_dagster.policies import backbone_aliases, backbone_class, build_backbone, build_backbone_from_alias

MODULE = """
from torch import nn

class Installed(nn.Linear):
    def __init__(self, input_features, sequence_length, output_dim):
        super().__init__(input_features * sequence_length, output_dim)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, registered: Any) -> Callable[[str, str, str], None]:
    """Put a distribution with one module and one entry point on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(distribution: str, name: str, source: str) -> None:
        module = f"{distribution}_module"
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[archetype_dagster.backbones]\n{name} = {module}:Installed\n")
        importlib.invalidate_caches()

    return put


def test_an_alias_is_found_in_any_case_and_under_both_names() -> None:
    sizes = {"input_features": 2, "sequence_length": 8, "output_dim": 3}
    assert type(build_backbone("patchtstBACKBONE", **sizes)) is backbone_class("PatchTSTBackbone")
    assert build_backbone_from_alias is build_backbone


def test_an_unknown_alias_lists_the_choices() -> None:
    with pytest.raises(
        SettingsError,
        match="unknown backbone 'Mamba'; choose from AutoencoderBackbone, PatchTSTBackbone, RecurrentBackbone, Trans",
    ):
        backbone_class("Mamba")


def test_a_path_is_no_alias() -> None:
    with pytest.raises(SettingsError, match=r"unknown backbone 'torch\.nn\.Linear'"):
        backbone_class("torch.nn.Linear")


def test_a_class_registers_with_a_decorator_and_takes_its_arguments(registered: Callable[..., Any]) -> None:
    @registered("Mine")
    class Mine(nn.Module):
        def __init__(self, input_features: int, sequence_length: int, output_dim: int, *, gain: float) -> None:
            super().__init__()
            self.gain = gain

    made = build_backbone("mine", input_features=1, sequence_length=2, output_dim=3, backbone_kwargs={"gain": 2.0})
    assert made.gain == 2.0
    assert "Mine" in backbone_aliases()


def test_a_taken_alias_and_what_is_no_module_are_refused(registered: Callable[..., Any]) -> None:
    with pytest.raises(SettingsError, match=r"already registered by archetype_dagster\.policies\.transformer"):
        registered("TRANSFORMERbackbone")(nn.Linear)
    with pytest.raises(SettingsError, match=r"must be a class derived from torch\.nn\.Module"):
        registered("NoModule")(dict)
    with pytest.raises(SettingsError, match="must not be empty"):
        registered(" ")(nn.Linear)


def test_an_installed_entry_point_is_imported_when_it_is_asked_for(install: Callable[..., None]) -> None:
    install("thirdparty", "ThirdParty", MODULE)
    assert "ThirdParty" in backbone_aliases()
    assert "thirdparty_module" not in sys.modules
    built = build_backbone("thirdparty", input_features=2, sequence_length=3, output_dim=4)
    assert built(torch.zeros(5, 6)).shape == (5, 4)
    assert backbone_class("THIRDPARTY") is type(built)


def test_an_entry_point_may_also_use_the_decorator(install: Callable[..., None]) -> None:
    decorated = MODULE.replace(
        "class", "from archetype_dagster.policies import register_backbone\n@register_backbone('Both')\nclass"
    )
    install("decorated", "Both", decorated)
    assert backbone_class("both").__module__ == "decorated_module"


def test_an_alias_installed_twice_is_refused(install: Callable[..., None]) -> None:
    install("first", "Twice", MODULE)
    install("second", "twice", MODULE)
    with pytest.raises(SettingsError, match=r"is installed by .*first_module:Installed"):
        backbone_class("Twice")
