import pytest
import torch

from archetype_dagster.selection.network import SelectorNetwork


def test_maps_states_to_a_logit_per_code_and_one_value() -> None:
    logits, values = SelectorNetwork(5, 7, (16, 8))(torch.randn(3, 5))
    assert logits.shape == (3, 7)
    assert values.shape == (3,)


def test_has_one_relu_layer_per_hidden_size() -> None:
    network = SelectorNetwork(5, 7, (16, 8))
    linear = [layer for layer in network.trunk if isinstance(layer, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(5, 16), (16, 8)]
    assert sum(isinstance(layer, torch.nn.ReLU) for layer in network.trunk) == 2


def test_refuses_an_empty_trunk() -> None:
    with pytest.raises(ValueError, match="hidden_sizes"):
        SelectorNetwork(5, 7, ())
