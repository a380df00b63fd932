import torch

from archetype_dagster.refinement.network import AdaptiveLayerNorm, RefinerNetwork
from archetype_dagster.rl.stopping import masked_log_probabilities, stopping_probabilities


def test_modulation_starts_as_plain_layer_norm() -> None:
    norm = AdaptiveLayerNorm(8, 4)
    values = torch.randn(5, 8)
    expected = torch.nn.functional.layer_norm(values, (8,))
    torch.testing.assert_close(norm(values, torch.randn(5, 4)), expected)


def test_context_changes_the_output_once_the_modulation_has_moved() -> None:
    torch.manual_seed(0)
    network = RefinerNetwork(5, 9, 16)
    states, context, other = torch.randn(2, 3, 5), torch.randn(2, 3, 9), torch.randn(2, 3, 9)
    assert torch.equal(network(states, context)[1], network(states, other)[1])
    torch.nn.init.normal_(network.norm.modulation.weight)
    assert not torch.equal(network(states, context)[1], network(states, other)[1])


def test_a_patient_start_expects_about_one_override_per_horizon_and_is_greedily_idle() -> None:
    network = RefinerNetwork(5, 9, 16)
    network.start_patient(72)
    logits, values = network(torch.randn(2, 72, 5), torch.randn(2, 72, 9))
    assert values.shape == (2, 72)
    assert (logits.argmax(-1) == 1).all()
    _, never = stopping_probabilities(masked_log_probabilities(logits, torch.ones(2, 72, 2, dtype=torch.bool)))
    expected = torch.full((2,), (1 - 2 / 146) ** 72)
    torch.testing.assert_close(never, expected, rtol=1e-4, atol=0)


def test_one_bar_and_a_whole_horizon_give_the_same_logits() -> None:
    torch.manual_seed(1)
    network = RefinerNetwork(5, 9, 16)
    torch.nn.init.normal_(network.actor.weight)
    states, context = torch.randn(2, 3, 5), torch.randn(2, 3, 9)
    whole, _ = network(states, context)
    torch.testing.assert_close(network(states[:, 1], context[:, 1])[0], whole[:, 1])


def test_every_parameter_of_the_policy_gets_a_gradient_after_one_step() -> None:
    torch.manual_seed(2)
    network = RefinerNetwork(5, 9, 16)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    states, context = torch.randn(8, 3, 5), torch.randn(8, 3, 9)
    for _ in range(3):
        logits, values = network(states, context)
        loss = (logits - torch.randn_like(logits)).square().mean() + (values - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name
