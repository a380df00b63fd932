"""Phase II over a window of bars: what the networks take, what only memory can learn, and one seed's bytes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.codebook import Codebook
from archetype_dagster.errors import ArtifactError, SettingsError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.policies import AutoencoderBackbone
from archetype_dagster.selection import (
    ArchetypeReturns,
    ContinuousSelector,
    ReturnsTable,
    Selector,
    SelectorNetwork,
    train_continuous_selector,
    train_selector,
)
from archetype_dagster.selection.gaussian import GaussianSelectorNetwork
from archetype_dagster.settings import CodebookSettings, PlannerSettings, SelectionSettings
from archetype_dagster.types import NoProgress

Split = Callable[..., MarketDataset]
LOOKBACK = 5
SMALL: dict[str, dict[str, Any]] = {
    "TransformerBackbone": {"n_heads": 2, "n_layers": 1, "d_ff": 16, "d_model": 8},
    "RecurrentBackbone": {"hidden_size": 16, "cell": "rnn"},
    "AutoencoderBackbone": {"hidden_sizes": [16], "bottleneck": 8},
    "PatchTSTBackbone": {"patch_length": 2, "d_model": 8, "n_heads": 2, "n_layers": 1, "d_ff": 16},
}
SETTINGS = SelectionSettings(
    alpha=0.1, total_steps=6 * 32 * 9, batch_size=32, learning_rate=1e-2, hidden_sizes=(16,), evaluations=3
)


def with_backbone(alias: str, base: SelectionSettings = SETTINGS, **changes: Any) -> SelectionSettings:
    window = {"backbone": alias, "lookback_bars": LOOKBACK, "backbone_kwargs": SMALL[alias]}
    return SelectionSettings.model_validate({**base.model_dump(), **window, **changes})


def remembered(split: Split, seed: int) -> tuple[MarketDataset, ReturnsTable]:
    """Noise of which the first feature of two bars ago says whether code 0 or code 1 earns; code 2 never does."""
    dataset = split(segments=(900,))
    states = np.random.default_rng(seed).normal(size=dataset.states.shape)
    dataset = replace(dataset, states=states.astype(np.float32))
    starts = dataset.horizon_starts()[2:]
    edge = np.sign(dataset.states[starts - 2, 0]).astype(np.float64)
    returns = np.stack([-edge, edge, np.zeros(len(edge))], axis=1)
    return dataset, ReturnsTable(starts, dataset.timestamps[starts], returns, (edge > 0).astype(np.int64))


def train(
    settings: SelectionSettings,
    split: Split,
    *,
    seed: int = 0,
    resume: ResumePoint | None = None,
    progress: NoProgress | None = None,
) -> Selector:
    (training, table), (validation, watched) = (remembered(split, number) for number in (0, 1))
    return train_selector(
        training,
        validation,
        ArchetypeReturns(table, watched),
        settings,
        horizon_bars=6,
        seed=seed,
        device=torch.device("cpu"),
        resume=resume or ResumePoint(None, ""),
        progress=progress or NoProgress(),
    )


def content(network: nn.Module) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in network.state_dict().items()}


class StopAtSecondValidation(NoProgress):
    count = 0

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        self.count += 1
        if self.count == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("network", [SelectorNetwork, GaussianSelectorNetwork])
@pytest.mark.parametrize("alias", SMALL)
def test_every_backbone_takes_windows_and_learns_in_all_its_weights(alias: str, network: type[nn.Module]) -> None:
    torch.manual_seed(0)
    made = network(4, 3, (16, 8), backbone=alias, lookback_bars=LOOKBACK, backbone_kwargs=SMALL[alias])
    assert made.lookback_bars == LOOKBACK
    scores, values = made(torch.randn(64, LOOKBACK, 4))
    assert (scores.shape, values.shape) == ((64, 3), (64,))
    (scores.square().sum() + values.square().sum()).backward()
    learnt = {name: weight.grad for name, weight in made.named_parameters() if weight.requires_grad}
    still = [name for name, gradient in learnt.items() if gradient is None or not gradient.any()]
    assert still == (["log_std"] if network is GaussianSelectorNetwork else [])
    with pytest.raises(ValueError, match="observations must be"):
        made(torch.randn(64, LOOKBACK + 1, 4))


@pytest.mark.parametrize("objective", ["expected", "ppo"])
def test_a_backbone_learns_what_only_memory_tells(learnable_split: Split, objective: str) -> None:
    budget = {"objective": objective, "total_steps": 6 * 32 * 100, "learning_rate": 2e-2}
    blind = train(SETTINGS.model_copy(update=budget), learnable_split)
    seeing = train(with_backbone("RecurrentBackbone", **budget), learnable_split)
    unseen, table = remembered(learnable_split, 2)
    rows = np.arange(len(table))
    earned = [table.returns[rows, made.choose_at(unseen, table.starts)].mean() for made in (blind, seeing)]
    assert earned[0] < 0.3 < 0.7 < earned[1]


@pytest.mark.parametrize("objective", ["expected", "ppo"])
def test_dropout_is_drawn_from_the_seed_and_goes_on_after_an_interruption(
    learnable_split: Split, tmp_path: Path, objective: str
) -> None:
    settings = with_backbone("TransformerBackbone", objective=objective)
    resume, before = ResumePoint(tmp_path / "resume.safetensors", "key"), torch.random.get_rng_state()
    with pytest.raises(KeyboardInterrupt):
        train(settings, learnable_split, resume=resume, progress=StopAtSecondValidation())
    saved = resume.load()
    assert saved is not None
    assert saved[1]["updates_done"] > 0
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(7)
    resumed, whole = (train(settings, learnable_split, resume=point) for point in (resume, None))
    assert content(resumed.network) == content(whole.network)
    assert resumed.history.equals(whole.history)
    assert content(train(settings, learnable_split, seed=1).network) != content(whole.network)
    kwargs = {**SMALL["TransformerBackbone"], "dropout": 0.0}
    steady = train(with_backbone("TransformerBackbone", objective=objective, backbone_kwargs=kwargs), learnable_split)
    assert content(steady.network) != content(whole.network)


def test_a_saved_selector_reads_the_same_windows(learnable_split: Split, tmp_path: Path) -> None:
    weights = tmp_path / "pretrained.safetensors"
    AutoencoderBackbone(4, LOOKBACK, 16, **SMALL["AutoencoderBackbone"]).save_pretrained(weights)
    kwargs = {**SMALL["AutoencoderBackbone"], "pretrained_path": str(weights)}
    selector = train(with_backbone("AutoencoderBackbone", backbone_kwargs=kwargs), learnable_split)
    weights.unlink()
    selector.save(tmp_path)
    loaded, dataset = Selector.load(tmp_path), learnable_split(seed=2)
    rows = np.arange(len(dataset))
    np.testing.assert_array_equal(loaded.logits_at(dataset, rows), selector.logits_at(dataset, rows))
    assert loaded.network.lookback_bars == LOOKBACK
    assert loaded.network.shape["backbone"] == "AutoencoderBackbone"


def test_a_selector_without_a_backbone_is_saved_as_before_and_the_unknown_is_refused(
    learnable_split: Split, tmp_path: Path
) -> None:
    plain = train(SETTINGS, learnable_split)
    assert plain.network.shape == {"num_features": 4, "num_codes": 3, "hidden_sizes": [16]}
    assert not [name for name in plain.network.state_dict() if "market" in name]
    plain.network.shape["backbone"] = "Unheard"
    plain.save(tmp_path)
    with pytest.raises(ArtifactError, match="lookback_bars must be at least 2"):
        Selector.load(tmp_path)
    with pytest.raises(SettingsError, match="unknown backbone 'Unheard'; choose from AutoencoderBackbone"):
        SelectorNetwork(4, 3, (8,), backbone="Unheard", lookback_bars=2)


def test_embeddings_too_are_chosen_by_a_window(learnable_split: Split, tmp_path: Path) -> None:
    codebook = Codebook.untrained(4, 6, CodebookSettings(embedding="continuous", code_dim=3, hidden_size=8), seed=0)
    selector = train_continuous_selector(
        learnable_split(),
        learnable_split(seed=1),
        codebook,
        PlannerSettings(horizon_bars=6),
        with_backbone("PatchTSTBackbone"),
        seed=0,
        device=torch.device("cpu"),
        resume=ResumePoint(None, ""),
        progress=NoProgress(),
    )
    selector.save(tmp_path)
    dataset = learnable_split(seed=2)
    chosen = selector.choose_at(dataset, np.array([0, 7, 250]))
    assert chosen.shape == (3, 3)
    np.testing.assert_array_equal(ContinuousSelector.load(tmp_path).choose_at(dataset, np.array([0, 7, 250])), chosen)
