"""Choosing an embedding instead of a code: the policy, its objective and what it learns."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.codebook import Codebook, train_codebook
from archetype_dagster.errors import ArtifactError, SettingsError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning.trajectories import build_trajectories
from archetype_dagster.selection import (
    ContinuousSelector,
    Selector,
    build_archetype_returns,
    train_continuous_selector,
    train_selector,
)
from archetype_dagster.selection.continuous_training import _score_gain
from archetype_dagster.selection.gaussian import GaussianSelectorNetwork
from archetype_dagster.selection.returns_table import demonstration_embeddings, plan_returns
from archetype_dagster.settings import CodebookSettings, PlannerSettings, SelectionSettings
from archetype_dagster.types import NoProgress

CPU = torch.device("cpu")
NO_RESUME = ResumePoint(None, "")
PLANNER = PlannerSettings(horizon_bars=6, num_trajectories=300)
SMALL = SelectionSettings(
    alpha=0.1,
    total_steps=6 * 32 * 120,
    batch_size=32,
    learning_rate=5e-3,
    hidden_sizes=(16,),
    evaluations=4,
    stride_bars=3,
)
Split = Callable[..., MarketDataset]


@pytest.fixture(scope="module")
def codebooks() -> dict[str, Codebook]:
    return {}


@pytest.fixture
def trained(learnable_split: Split, codebooks: dict[str, Codebook]) -> Callable[[str], Codebook]:
    def make(embedding: str) -> Codebook:
        if embedding not in codebooks:
            training = learnable_split()
            settings = CodebookSettings(
                embedding=embedding,
                num_codes=4,
                code_dim=3,
                hidden_size=16,
                epochs=8,
                batch_size=32,
                learning_rate=0.01,
            )
            codebooks[embedding] = train_codebook(
                training,
                build_trajectories(training, PLANNER, seed=0, progress=NoProgress()),
                settings,
                seed=0,
                device=CPU,
                resume=NO_RESUME,
                progress=NoProgress(),
            )
        return codebooks[embedding]

    return make


def train(
    split: Split,
    codebook: Codebook,
    settings: SelectionSettings = SMALL,
    *,
    seed: int = 0,
    resume: ResumePoint = NO_RESUME,
    progress: NoProgress | None = None,
) -> ContinuousSelector:
    return train_continuous_selector(
        split(),
        split(seed=1),
        codebook,
        PLANNER,
        settings,
        seed=seed,
        device=CPU,
        resume=resume,
        progress=progress or NoProgress(),
    )


def content(module: torch.nn.Module) -> dict[str, bytes]:
    return {name: tensor.numpy().tobytes() for name, tensor in module.state_dict().items()}


def earned(dataset: MarketDataset, codebook: Codebook, selector: ContinuousSelector) -> float:
    batch = dataset.horizons(dataset.horizon_starts(6))
    actions, _ = codebook.decode_embeddings(batch.states, selector.choose(batch.states[:, 0])[:, np.newaxis])
    return float(plan_returns(actions, batch, max_position=dataset.max_position).mean())


def drift_taken(dataset: MarketDataset) -> float:
    """Mean percent of holding, for whole horizons, the direction that the first feature points to at their start."""
    batch = dataset.horizons(dataset.horizon_starts(6))
    side = np.where(batch.states[:, 0, 0] > 0, 2, 0).astype(np.int8)
    plans = np.repeat(side[:, np.newaxis, np.newaxis], 6, axis=2)
    return float(plan_returns(plans, batch, max_position=dataset.max_position).mean())


@pytest.mark.parametrize("objective", ["expected", "ppo"])
def test_a_continuous_policy_learns_to_earn(
    learnable_split: Split, trained: Callable[[str], Codebook], objective: str
) -> None:
    codebook = trained("continuous")
    selector = train(learnable_split, codebook, SMALL.model_copy(update={"objective": objective}))
    unseen = learnable_split(seed=2)
    assert earned(unseen, codebook, selector) > 0.8 * drift_taken(unseen) > 0.8
    history = selector.history
    assert history["validation_return"].max() > history["validation_return"][0] + 0.5
    assert history["validation_nll"].min() < history["validation_nll"][0]


def test_clustered_codes_learn_to_earn_as_codes_of_vq_do(
    learnable_split: Split, trained: Callable[[str], Codebook]
) -> None:
    codebook, training, validation = trained("clustered"), learnable_split(), learnable_split(seed=1)
    table = build_archetype_returns(training, validation, codebook, PLANNER, SMALL, device=CPU, progress=NoProgress())
    selector = train_selector(
        training,
        validation,
        table,
        SMALL,
        horizon_bars=6,
        seed=0,
        device=CPU,
        resume=NO_RESUME,
        progress=NoProgress(),
    )
    unseen = learnable_split(seed=2)
    batch = unseen.horizons(unseen.horizon_starts(6))
    actions, _ = codebook.decode(batch.states, selector.choose(batch.states[:, 0]))
    returns = plan_returns(actions[:, np.newaxis], batch, max_position=unseen.max_position)
    assert returns.mean() > 0.8 * drift_taken(unseen)


def test_the_demonstrations_alone_teach_where_returns_are_outweighed(
    learnable_split: Split, trained: Callable[[str], Codebook]
) -> None:
    settings = SMALL.model_copy(update={"alpha": 1e4, "total_steps": 6 * 32 * 60})
    selector, validation = train(learnable_split, trained("continuous"), settings), learnable_split(seed=1)
    nll = selector.history["validation_nll"]
    assert nll[-1] < nll[0] - 0.3
    batch = validation.horizons(validation.horizon_starts(6))
    labels = demonstration_embeddings(batch, trained("continuous"), PLANNER, max_position=validation.max_position)
    distance = ((selector.choose(batch.states[:, 0]) - labels) ** 2).sum(axis=1).mean()
    assert distance < 0.8 * ((labels - labels.mean(axis=0)) ** 2).sum(axis=1).mean()


class StopAtSecondValidation(NoProgress):
    count = 0

    def advance(self, completed: int, metrics: Mapping[str, float] | None = None) -> None:
        self.count += 1
        if self.count == 2:
            raise KeyboardInterrupt


@pytest.mark.parametrize("objective", ["expected", "ppo"])
def test_an_interrupted_training_goes_on_to_the_same_bytes(
    learnable_split: Split, trained: Callable[[str], Codebook], tmp_path: Path, objective: str
) -> None:
    settings = SMALL.model_copy(update={"objective": objective, "total_steps": 6 * 32 * 32})
    resume, codebook = ResumePoint(tmp_path / "resume.safetensors", "key"), trained("continuous")
    before = [content(module) for module in (codebook.encoder, codebook.decoder)]
    with pytest.raises(KeyboardInterrupt):
        train(learnable_split, codebook, settings, resume=resume, progress=StopAtSecondValidation())
    resumed = train(learnable_split, codebook, settings, resume=resume)
    whole = train(learnable_split, codebook, settings)
    assert content(resumed.network) == content(whole.network)
    assert resumed.history.equals(whole.history)
    assert content(train(learnable_split, codebook, settings, seed=1).network) != content(whole.network)
    assert [content(module) for module in (codebook.encoder, codebook.decoder)] == before


def test_a_saved_selector_chooses_the_same_and_is_no_selector_of_codes(
    learnable_split: Split, trained: Callable[[str], Codebook], tmp_path: Path
) -> None:
    selector = train(learnable_split, trained("continuous"), SMALL.model_copy(update={"total_steps": 6 * 32 * 4}))
    selector.save(tmp_path)
    loaded, states = ContinuousSelector.load(tmp_path), learnable_split(seed=2).states
    chosen = selector.choose(states)
    assert chosen.dtype == np.float32
    assert chosen.shape == (len(states), 3)
    np.testing.assert_array_equal(loaded.choose(states), chosen)
    assert loaded.history.equals(selector.history)
    with pytest.raises(ArtifactError, match=r"selector\.safetensors does not exist"):
        Selector.load(tmp_path)


def test_each_kind_of_selector_refuses_the_other_kinds_codebook(
    learnable_split: Split, random_codebook: Callable[..., Codebook], trained: Callable[[str], Codebook]
) -> None:
    with pytest.raises(SettingsError, match="'continuous', got 'vq'"):
        train(learnable_split, random_codebook())
    with pytest.raises(ArtifactError, match="'continuous' has no codes"):
        build_archetype_returns(
            learnable_split(),
            learnable_split(seed=1),
            trained("continuous"),
            PLANNER,
            SMALL,
            device=CPU,
            progress=NoProgress(),
        )


def test_the_score_gain_has_the_value_of_the_returns_and_the_gradient_of_their_expectation() -> None:
    """For R(u) = -(u - 1)^2 and u ~ N(mu, sigma^2): E[R] = -(mu - 1)^2 - sigma^2."""
    mean = torch.tensor([[0.3], [0.3]], dtype=torch.float64, requires_grad=True)
    log_std = torch.tensor(-0.5, dtype=torch.float64, requires_grad=True)
    noise = torch.randn(2, 400_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    units = (mean + log_std.exp() * noise).detach()
    returns = -((units - 1) ** 2)
    log_density = torch.distributions.Normal(mean, log_std.exp()).log_prob(units)
    gain, _ = _score_gain(log_density, returns)
    assert gain.item() == pytest.approx(returns.mean().item(), rel=1e-12)
    gain.backward()
    sigma_2 = np.exp(-1.0)
    assert gain.item() == pytest.approx(-(0.7**2) - sigma_2, abs=0.01)
    np.testing.assert_allclose(mean.grad.numpy(), -2 * (0.3 - 1) / 2, atol=0.02)
    assert log_std.grad.item() == pytest.approx(-2 * sigma_2, abs=0.02)


def test_the_gaussian_is_the_one_of_torch_and_speaks_in_units_of_the_demonstrations() -> None:
    network = GaussianSelectorNetwork(4, 3, (8,))
    generator = torch.Generator().manual_seed(0)
    network.log_std.data.normal_(generator=generator)
    embeddings = torch.randn(50, 3, generator=generator) * torch.tensor([2.0, 0.0, 0.1]) + 5
    network.measure(embeddings)
    units = network.units(embeddings)
    np.testing.assert_allclose(units.mean(dim=0), 0, atol=1e-5)
    np.testing.assert_allclose(units.std(dim=0, correction=0), [1, 0, 1], atol=1e-5)
    np.testing.assert_allclose(network.embeddings(units), embeddings, atol=1e-5)
    means, _ = network(torch.randn(50, 4, generator=generator))
    reference = torch.distributions.Independent(torch.distributions.Normal(means, network.log_std.exp()), 1)
    np.testing.assert_allclose(
        network.log_density(means, units).detach(), reference.log_prob(units).detach(), rtol=1e-5
    )
    np.testing.assert_allclose(network.entropy().item(), reference.entropy()[0].item(), rtol=1e-5)
    drawn = network.sample(means, 4000, generator)
    noise = (drawn - means.unsqueeze(1)).detach()
    np.testing.assert_allclose(noise.mean(dim=(0, 1)), 0, atol=0.02)
    np.testing.assert_allclose(noise.std(dim=(0, 1)), network.log_std.exp().detach(), rtol=0.02)
