"""Phase III over a window of bars: what the network takes, and one seed's bytes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.codebook import Codebook
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.refinement import Refiner, RefinerNetwork, context_size, train_refiner
from archetype_dagster.rl.market_windows import MarketWindows
from archetype_dagster.seeding import seeded_initialisation
from archetype_dagster.selection import Selector, SelectorNetwork
from archetype_dagster.settings import RefinementSettings
from archetype_dagster.types import NoProgress

Split = Callable[..., MarketDataset]
LOOKBACK = 5
SMALL: dict[str, dict[str, Any]] = {
    "TransformerBackbone": {"n_heads": 2, "n_layers": 1, "d_ff": 16},
    "RecurrentBackbone": {"hidden_size": 8, "cell": "gru"},
    "AutoencoderBackbone": {"hidden_sizes": [16]},
    "PatchTSTBackbone": {"patch_length": 2, "d_model": 8, "n_heads": 2, "n_layers": 1, "d_ff": 16},
}


def with_backbone(alias: str, **changes: Any) -> RefinementSettings:
    return RefinementSettings(
        **{
            "override": "hold",
            "beta_2": 0.1,
            "total_steps": 6 * 16 * 6,
            "batch_size": 16,
            "learning_rate": 5e-3,
            "hidden_size": 8,
            "evaluations": 3,
            "backbone": alias,
            "lookback_bars": LOOKBACK,
            "backbone_kwargs": SMALL[alias],
            **changes,
        }
    )


def window_selector() -> Selector:
    with seeded_initialisation(0, "selector"):
        network = SelectorNetwork(4, 4, (8,), backbone="RecurrentBackbone", lookback_bars=7)
    return Selector(network.eval().requires_grad_(False), pl.DataFrame())


def train(
    settings: RefinementSettings,
    split: Split,
    codebook: Codebook,
    *,
    seed: int = 0,
    resume: ResumePoint | None = None,
    progress: NoProgress | None = None,
) -> Refiner:
    return train_refiner(
        split(),
        split(seed=1),
        codebook,
        window_selector(),
        settings,
        beta_1=0.5,
        seed=seed,
        device=torch.device("cpu"),
        resume=resume or ResumePoint(None, ""),
        progress=progress or NoProgress(),
    )


def content(network: nn.Module) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in network.state_dict().items()}


class StopAtSecondValidation(NoProgress):
    validations = 0

    def start(self, description: str, total: int) -> None:
        self.trains = description == "refinement"

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        self.validations += self.trains
        if self.validations == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("alias", SMALL)
def test_every_backbone_takes_windows_and_learns_in_all_its_weights(alias: str) -> None:
    torch.manual_seed(0)
    network = RefinerNetwork(4, 9, 8, backbone=alias, lookback_bars=LOOKBACK, backbone_kwargs=SMALL[alias])
    for module in (network.actor, *(block.norm.modulation for block in network.blocks), network.norm.modulation):
        nn.init.normal_(module.weight)
    logits, values = network(torch.randn(6, 7, LOOKBACK, 4), torch.randn(6, 7, 9))
    assert (logits.shape, values.shape) == ((6, 7, 3), (6, 7))
    (logits.square().sum() + values.square().sum()).backward()
    learnt = {name: weight.grad for name, weight in network.named_parameters() if weight.requires_grad}
    assert not [name for name, gradient in learnt.items() if gradient is None or not gradient.any()]
    assert network.lookback_bars == LOOKBACK


@pytest.mark.parametrize("objective", ["expected", "ppo"])
def test_dropout_is_drawn_from_the_seed_and_goes_on_after_an_interruption(
    learnable_split: Split, random_codebook: Callable[..., Codebook], tmp_path: Path, objective: str
) -> None:
    settings = with_backbone("TransformerBackbone", objective=objective)
    resume, codebook = ResumePoint(tmp_path / "resume.safetensors", "key"), random_codebook()
    with pytest.raises(KeyboardInterrupt):
        train(settings, learnable_split, codebook, resume=resume, progress=StopAtSecondValidation())
    saved = resume.load()
    assert saved is not None
    assert saved[1]["updates_done"] > 0
    torch.rand(7)
    resumed, whole = (train(settings, learnable_split, codebook, resume=point) for point in (resume, None))
    assert content(resumed.network) == content(whole.network)
    assert resumed.history.equals(whole.history)
    kwargs = {**SMALL["TransformerBackbone"], "dropout": 0.0}
    steady = train(settings.model_copy(update={"backbone_kwargs": kwargs}), learnable_split, codebook)
    assert steady.history["objective"].to_list()[1:] != whole.history["objective"].to_list()[1:]


def test_a_saved_refiner_reads_the_same_windows_and_encodes_them_as_it_judges_them(
    learnable_split: Split, random_codebook: Callable[..., Codebook], tmp_path: Path
) -> None:
    refiner = train(with_backbone("PatchTSTBackbone", total_steps=6 * 16 * 9), learnable_split, random_codebook())
    refiner.save(tmp_path)
    loaded, dataset = Refiner.load(tmp_path), learnable_split(seed=2)
    encoded = refiner.encoded(dataset)
    assert encoded.shape == (len(dataset), 8)
    np.testing.assert_array_equal(loaded.encoded(dataset), encoded)
    rng = np.random.default_rng(0)
    context = rng.normal(size=(len(dataset), context_size(3))).astype(np.float32)
    windows = MarketWindows(dataset, LOOKBACK).at(torch.arange(len(dataset)))
    np.testing.assert_allclose(refiner.logits(windows, context), refiner.judge(encoded, context), atol=1e-5)


def test_a_refiner_without_a_backbone_is_saved_as_before() -> None:
    network = RefinerNetwork(4, 9, 8)
    assert network.shape == {"num_features": 4, "context_dim": 9, "hidden_size": 8}
    assert not [name for name in network.state_dict() if "market" in name]
