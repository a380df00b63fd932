from __future__ import annotations

import pytest
import torch

from archetype_dagster.compute import compute_session, select_device
from archetype_dagster.errors import SettingsError


def test_auto_takes_a_device_that_exists():
    device = select_device("auto")
    assert torch.zeros(1, device=device).device.type == device.type


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_an_absent_device_is_named_with_what_there_is():
    with pytest.raises(SettingsError, match=r"'cuda' is not available on this machine, which has .*cpu"):
        select_device("cuda")


def test_numerics_hold_inside_and_are_put_back_after_an_error():
    before = (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )
    with (
        pytest.raises(RuntimeError, match="inside"),
        compute_session("cpu", threads=before[0] + 1, deterministic=not before[1], precision="tf32") as device,
    ):
        assert device.type == "cpu"
        assert torch.get_num_threads() == before[0] + 1
        assert torch.are_deterministic_algorithms_enabled() is not before[1]
        assert torch.get_float32_matmul_precision() == "high"
        raise RuntimeError("inside")
    assert before == (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_float32_matmul_precision(),
    )
