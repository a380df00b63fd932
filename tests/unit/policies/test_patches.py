from __future__ import annotations

import torch

from archetype_dagster.policies import PatchTSTBackbone
from archetype_dagster.policies.patches import ReversibleInstanceNorm


def test_permuting_patches_changes_the_output() -> None:
    torch.manual_seed(0)
    backbone = PatchTSTBackbone(3, 32).eval()
    windows = torch.randn(4, 32, 3)
    order = torch.tensor([1, 0, 2, 5, 4, 3, 6, 7])
    permuted = windows.reshape(4, 8, 4, 3)[:, order].reshape(4, 32, 3)
    with torch.no_grad():
        assert ((backbone(permuted) - backbone(windows)).abs().amax(dim=1) > 1e-4).all()
        # Without positions the older patches would be a set.
        backbone.encoder.positions.zero_()
        torch.testing.assert_close(backbone(permuted), backbone(windows), rtol=1e-4, atol=1e-5)


def test_patches_end_with_the_current_bar_and_hold_every_bar() -> None:
    for length, patch, stride in ((32, 4, 4), (30, 4, 4), (31, 5, 3), (5, 5, 5), (6, 5, 1)):
        backbone = PatchTSTBackbone(1, length, patch_length=patch, stride=stride)
        bars = torch.arange(float(length)).reshape(1, length, 1)
        patches = backbone.patches(bars)[0, ..., 0]
        assert patches.shape == (backbone.num_patches, patch)
        assert patches[-1].tolist() == list(range(length - patch, length))
        assert set(patches.flatten().tolist()) == set(range(length))
        assert (patches[1:, -1] - patches[:-1, -1] == stride).all()


def test_a_patch_that_begins_before_the_window_repeats_the_oldest_bar() -> None:
    backbone = PatchTSTBackbone(1, 6, patch_length=4)
    assert backbone.patches(torch.arange(6.0).reshape(1, 6, 1))[0, 0, :, 0].tolist() == [0, 0, 0, 1]


def test_the_stride_is_the_patch_unless_given() -> None:
    assert PatchTSTBackbone(1, 32, patch_length=4).num_patches == 8
    assert PatchTSTBackbone(1, 256).num_patches == 64


def test_instance_norm_is_reversible_and_takes_a_constant_feature() -> None:
    torch.manual_seed(0)
    norm = ReversibleInstanceNorm(3)
    torch.nn.init.normal_(norm.scale)
    torch.nn.init.normal_(norm.shift)
    windows = 5 + 3 * torch.randn(4, 10, 3)
    windows[..., 2] = 7.0
    scaled, mean, deviation = norm(windows)
    torch.testing.assert_close(norm.reverse(scaled, mean, deviation), windows, rtol=1e-4, atol=1e-4)
    plain, _, _ = ReversibleInstanceNorm(3)(windows)
    torch.testing.assert_close(plain[..., :2].mean(1), torch.zeros(4, 2), rtol=0, atol=1e-5)
    torch.testing.assert_close(plain[..., :2].var(1, correction=0), torch.ones(4, 2), rtol=1e-4, atol=0)
    assert not plain[..., 2].any()


def test_instance_norm_gives_level_and_scale_to_the_head() -> None:
    torch.manual_seed(0)
    backbone = PatchTSTBackbone(2, 16, instance_norm=True).eval()
    windows = torch.randn(3, 16, 2)
    with torch.no_grad():
        assert ((backbone(2 * windows + 1) - backbone(windows)).abs().amax(dim=1) > 1e-3).all()
