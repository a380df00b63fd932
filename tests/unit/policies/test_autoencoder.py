from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO

from archetype_dagster.errors import ArtifactError
from archetype_dagster.policies import AutoencoderBackbone, BackboneFeaturesExtractor, pretrain_autoencoder
from archetype_dagster.settings.policies import PretrainingSettings

SETTINGS = PretrainingSettings(epochs=8, batch_size=64, learning_rate=5e-3)


def factor_windows(count: int = 600) -> np.ndarray:
    """Windows of 6 rows of 2 numbers that 3 hidden factors make."""
    rng = np.random.default_rng(0)
    return (rng.normal(size=(count, 3)) @ rng.normal(size=(3, 12))).reshape(count, 6, 2).astype(np.float32)


def fresh(**arguments: object) -> AutoencoderBackbone:
    torch.manual_seed(0)
    return AutoencoderBackbone(2, 6, 4, hidden_sizes=(32,), **arguments)


@pytest.fixture(scope="module")
def pretrained() -> tuple[AutoencoderBackbone, pl.DataFrame]:
    backbone = fresh()
    return backbone, pretrain_autoencoder(backbone, factor_windows(), SETTINGS, seed=1)


def test_pretraining_lowers_the_reconstruction_error(pretrained: tuple[AutoencoderBackbone, pl.DataFrame]) -> None:
    backbone, history = pretrained
    errors = history["held_out_error"]
    assert history["epoch"].to_list() == list(range(9))
    assert errors.min() < 0.3 * errors[0]
    windows = torch.as_tensor(factor_windows())[-60:]
    with torch.no_grad():
        reached = (backbone.reconstruct(windows) - windows).square().mean().item()
    assert reached == pytest.approx(errors.min(), rel=1e-5)


def test_pretraining_repeats_itself_to_the_bit(pretrained: tuple[AutoencoderBackbone, pl.DataFrame]) -> None:
    backbone, history = pretrained
    again = fresh()
    assert pretrain_autoencoder(again, factor_windows().reshape(600, 12), SETTINGS, seed=1).equals(history)
    for name, tensor in again.state_dict().items():
        assert torch.equal(tensor, backbone.state_dict()[name])


def test_the_decoder_learns_in_pretraining_alone(pretrained: tuple[AutoencoderBackbone, pl.DataFrame]) -> None:
    backbone, _ = pretrained
    assert all(not weight.requires_grad for weight in backbone.decoder.parameters())
    assert all(weight.requires_grad and weight.grad is None for weight in backbone.encoder.parameters())
    assert not torch.equal(backbone.decoder[0].weight, fresh().decoder[0].weight)


def test_a_pretrained_file_starts_a_backbone_with_another_head(
    pretrained: tuple[AutoencoderBackbone, pl.DataFrame], tmp_path: Path
) -> None:
    pretrained[0].save_pretrained(tmp_path / "pretrained.safetensors")
    loaded = AutoencoderBackbone(
        2, 6, 9, hidden_sizes=[32], bottleneck=4, pretrained_path=tmp_path / "pretrained.safetensors"
    )
    windows = torch.as_tensor(factor_windows()[:5])
    assert torch.equal(loaded.reconstruct(windows), pretrained[0].reconstruct(windows))
    assert loaded(windows).shape == (5, 9)


def test_a_policy_keeps_the_pretrained_weights_it_starts_from(
    pretrained: tuple[AutoencoderBackbone, pl.DataFrame], tmp_path: Path, windows_env: type
) -> None:
    path = tmp_path / "pretrained.safetensors"
    pretrained[0].save_pretrained(path)
    arguments = {
        "backbone_alias": "AutoencoderBackbone",
        "sequence_length": 6,
        "features_dim": 4,
        "backbone_kwargs": {"hidden_sizes": [32], "pretrained_path": str(path)},
    }
    policy = {"features_extractor_class": BackboneFeaturesExtractor, "features_extractor_kwargs": arguments}
    agent = PPO("MlpPolicy", windows_env(spaces.Discrete(2)), policy_kwargs=policy, device="cpu")
    for name, tensor in agent.policy.features_extractor.backbone.state_dict().items():
        assert torch.equal(tensor, pretrained[0].state_dict()[name])


def test_a_missing_damaged_or_foreign_file_is_refused(
    pretrained: tuple[AutoencoderBackbone, pl.DataFrame], tmp_path: Path
) -> None:
    path = tmp_path / "pretrained.safetensors"
    with pytest.raises(ArtifactError, match="does not exist"):
        fresh(pretrained_path=path)
    pretrained[0].save_pretrained(path)
    with pytest.raises(ArtifactError, match=r"holds an autoencoder of .* expected"):
        AutoencoderBackbone(2, 6, 4, hidden_sizes=(16,), pretrained_path=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ArtifactError, match="truncated"):
        fresh(pretrained_path=path)


def test_windows_that_cannot_be_learnt_from_are_refused() -> None:
    with pytest.raises(ValueError, match="at least two windows, got 1"):
        pretrain_autoencoder(fresh(), factor_windows(1), SETTINGS, seed=0)
    with pytest.raises(ValueError, match="must be finite"):
        pretrain_autoencoder(fresh(), np.full((4, 6, 2), np.nan, np.float32), SETTINGS, seed=0)
