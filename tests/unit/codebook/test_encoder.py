import pytest
import torch

from archetype_dagster.codebook import TrajectoryEncoder
from archetype_dagster.seeding import seeded_initialisation


def inputs(batch: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(batch, 9, 5, generator=generator),
        torch.randint(0, 3, (batch, 9), generator=generator),
        0.01 * torch.randn(batch, 9, generator=generator),
    )


def encoder(pooling: str) -> TrajectoryEncoder:
    with seeded_initialisation(0, pooling):
        return TrajectoryEncoder(5, 16, 3, pooling)


@pytest.mark.parametrize("pooling", ["last", "attention"])
def test_a_horizon_is_encoded_alike_whatever_was_encoded_before_or_beside_it(pooling: str) -> None:
    model = encoder(pooling)
    states, actions, rewards = inputs(4)
    together = model(states, actions, rewards)
    assert together.shape == (4, 3)
    model(*inputs(4, seed=1))
    alone = model(states[2:3], actions[2:3], rewards[2:3])
    torch.testing.assert_close(together[2:3], alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("pooling", ["last", "attention"])
@pytest.mark.parametrize("changed", [0, 1, 2])
def test_states_actions_and_rewards_each_change_the_encoding(pooling: str, changed: int) -> None:
    model = encoder(pooling)
    original = list(inputs(1))
    other = list(original)
    other[changed] = (original[changed] + 1) % 3 if changed == 1 else original[changed] + 0.01
    assert (model(*original) - model(*other)).abs().max() > 1e-4


def test_attention_reads_the_first_step_as_directly_as_the_last() -> None:
    model = encoder("attention")
    assert model.attention is not None
    with torch.no_grad():
        model.attention.weight.zero_()
    states, actions, rewards = inputs(3)
    one_hot = torch.nn.functional.one_hot(actions, 3).float()
    hidden, _ = model.lstm(torch.cat([states, one_hot, 100 * rewards[..., None]], dim=-1))
    torch.testing.assert_close(model(states, actions, rewards), model.head(hidden.mean(dim=1)), rtol=0, atol=1e-6)


def test_unknown_pooling_is_refused() -> None:
    with pytest.raises(ValueError, match="pooling must be 'last' or 'attention', got pooling='mean'"):
        TrajectoryEncoder(5, 16, 3, "mean")
