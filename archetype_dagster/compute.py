"""The device that networks run on and the numerics it is held to while a stage works."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from archetype_dagster.errors import SettingsError

DeviceName = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["float32", "tf32"]


def select_device(name: DeviceName) -> torch.device:
    """The device called `name`; `auto` takes cuda, then mps, then cpu.

    Raises:
        SettingsError: the machine does not have that device.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, present in available.items() if present))
    if not available[name]:
        present = ", ".join(kind for kind, there in available.items() if there)
        raise SettingsError(f"compute device {name!r} is not available on this machine, which has {present}")
    return torch.device(name)


def has_accelerator() -> bool:
    """True where `auto` takes something that runs have to share: anything but the CPU."""
    return select_device("auto").type != "cpu"


@contextmanager
def compute_session(
    name: DeviceName, *, threads: int | None, deterministic: bool, precision: Precision
) -> Iterator[torch.device]:
    """Yield the device with torch's process-wide numerics set; they are put back afterwards.

    Args:
        name: device to use.
        threads: CPU threads of one operation; None leaves torch's own choice.
        deterministic: refuse operations whose result depends on scheduling.
        precision: `float32` keeps full products, `tf32` allows shortened ones on CUDA.
    """
    device = select_device(name)
    before = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )
    if threads is not None:
        torch.set_num_threads(threads)
    if deterministic and device.type == "cuda":
        # cuBLAS is only deterministic with a fixed workspace, read when its first handle is made.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield device
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])
        torch.set_float32_matmul_precision(before[2])
