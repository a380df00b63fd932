"""Weights and resume points: they repeat, they go on bit for bit, and they are never executable."""

import pickle
from pathlib import Path

import pytest
import torch

from archetype_dagster.checkpoints import (
    ResumePoint,
    load_tensors,
    pack_training_state,
    save_tensors,
    unpack_training_state,
)
from archetype_dagster.errors import ArtifactError


class _Exploit:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_a_pickle_is_refused_and_not_executed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    for name, payload in (("plain.pt", pickle.dumps(_Exploit(made))), ("torch.pt", None)):
        if payload is None:
            torch.save({"x": _Exploit(made)}, tmp_path / name)
        else:
            (tmp_path / name).write_bytes(payload)
        with pytest.raises(ArtifactError, match=name):
            load_tensors(tmp_path / name)
    assert not made.exists()


def test_a_truncated_checkpoint_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "weights.safetensors"
    save_tensors(file, {"w": torch.arange(6.0)}, {"epoch": 3})
    tensors, facts = load_tensors(file)
    assert facts == {"epoch": 3}
    assert torch.equal(tensors["w"], torch.arange(6.0))
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ArtifactError, match="truncated"):
        load_tensors(file)


def test_training_goes_on_bit_for_bit_from_a_packed_state(tmp_path: Path) -> None:
    def make() -> tuple[torch.nn.Linear, torch.optim.Adam]:
        module = torch.nn.Linear(4, 2)
        torch.nn.init.constant_(module.weight, 0.1)
        torch.nn.init.zeros_(module.bias)
        return module, torch.optim.Adam(module.parameters(), lr=0.01)

    def step(module: torch.nn.Linear, optimizer: torch.optim.Adam, seed: int) -> None:
        x = torch.rand(8, 4, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        module(x).square().sum().backward()
        optimizer.step()

    module, optimizer = make()
    point = ResumePoint(tmp_path / "resume.safetensors", key="k")
    assert point.load() is None
    for seed in range(3):
        step(module, optimizer, seed)
    point.save(pack_training_state({"net": module}, optimizer), {"epoch": 3})
    step(module, optimizer, 3)

    resumed, resumed_optimizer = make()
    state = point.load()
    assert state is not None
    unpack_training_state(state[0], {"net": resumed}, resumed_optimizer)
    step(resumed, resumed_optimizer, state[1]["epoch"])
    assert torch.equal(resumed.weight, module.weight)

    assert ResumePoint(point.path, key="other settings").load() is None
    point.clear()
    assert point.load() is None
