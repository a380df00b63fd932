from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from archetype_dagster.errors import SettingsError
from archetype_dagster.policies import (
    AutoencoderBackbone,
    PatchTSTBackbone,
    RecurrentBackbone,
    TransformerBackbone,
    build_backbone,
)
from archetype_dagster.policies.attention import sinusoidal_positions

LENGTH, WIDTH = 12, 3
FORMS: list[tuple[str, dict[str, Any]]] = [
    ("TransformerBackbone", {}),
    ("TransformerBackbone", {"d_model": 33, "n_layers": 3}),
    ("RecurrentBackbone", {"hidden_size": 9}),
    ("RecurrentBackbone", {"hidden_size": 9, "cell": "gru", "num_layers": 2, "dropout": 0.2}),
    ("RecurrentBackbone", {"hidden_size": 9, "cell": "rnn", "bidirectional": True}),
    ("AutoencoderBackbone", {}),
    ("AutoencoderBackbone", {"hidden_sizes": [16], "bottleneck": 5}),
    ("PatchTSTBackbone", {}),
    ("PatchTSTBackbone", {"patch_length": 5, "stride": 3, "d_model": 21, "instance_norm": True}),
    ("PatchTSTBackbone", {"channel_independent": True, "instance_norm": True}),
]


def built(alias: str, arguments: dict[str, Any], output_dim: int = 8) -> nn.Module:
    torch.manual_seed(0)
    return build_backbone(
        alias,
        input_features=WIDTH,
        sequence_length=LENGTH,
        output_dim=output_dim,
        backbone_kwargs=arguments,
    )


def random_windows(count: int = 5) -> torch.Tensor:
    return torch.randn(count, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("alias", "arguments"), FORMS)
def test_every_backbone_reads_both_forms_alike_and_every_weight_learns(alias: str, arguments: dict[str, Any]) -> None:
    backbone, windows = built(alias, arguments), random_windows()
    backbone.train()(windows).square().sum().backward()
    idle = [
        name
        for name, weight in backbone.named_parameters()
        if weight.requires_grad and (weight.grad is None or not weight.grad.any())
    ]
    assert idle == []
    backbone.eval()
    with torch.no_grad():
        features = backbone(windows)
        assert features.shape == (5, 8)
        assert features.dtype == torch.float32
        torch.testing.assert_close(backbone(windows.flatten(1)), features, rtol=0, atol=0)
        torch.testing.assert_close(backbone(windows[:1]), features[:1])


@pytest.mark.parametrize(("alias", "arguments"), FORMS)
def test_every_row_of_the_window_counts(alias: str, arguments: dict[str, Any]) -> None:
    backbone, windows = built(alias, arguments).eval(), random_windows(1)
    changed = windows.repeat(LENGTH, 1, 1)
    changed[torch.arange(LENGTH), torch.arange(LENGTH)] += 1.0
    with torch.no_grad():
        assert ((backbone(changed) - backbone(windows)).abs().amax(dim=1) > 1e-9).all()


@pytest.mark.parametrize(
    "alias", ["TransformerBackbone", "RecurrentBackbone", "AutoencoderBackbone", "PatchTSTBackbone"]
)
@pytest.mark.parametrize("shape", [(2, LENGTH - 1, WIDTH), (2, LENGTH, WIDTH + 1), (2, WIDTH, LENGTH), (2, 35), (36,)])
def test_observations_of_another_shape_are_refused(alias: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"must be \(B, 12, 3\) or \(B, 36\), got"):
        built(alias, {})(torch.zeros(shape))


def test_a_recurrent_backbone_is_the_plain_recurrence_read_at_the_current_bar() -> None:
    backbone, windows = built("RecurrentBackbone", {}), random_windows()
    plain = nn.LSTM(WIDTH, 128, batch_first=True)
    plain.load_state_dict(backbone.recurrence.state_dict())
    torch.testing.assert_close(backbone(windows), backbone.head(plain(windows)[1][0][-1]))


def test_a_permutation_of_past_bars_changes_what_attention_reads() -> None:
    backbone, windows = built("TransformerBackbone", {}).eval(), random_windows(1)
    with torch.no_grad():
        swapped = backbone(windows[:, [1, 0, *range(2, LENGTH)]])
        assert (swapped - backbone(windows)).abs().max() > 1e-4


def test_positions_differ_and_fit_an_odd_width() -> None:
    positions = sinusoidal_positions(300, 7)
    assert positions.shape == (300, 7)
    torch.testing.assert_close(positions[:, :2], torch.stack((torch.arange(300.0).sin(), torch.arange(300.0).cos()), 1))
    assert torch.pdist(positions).min() > 1e-3


def test_defaults_are_those_documented() -> None:
    def defaults(network: type[nn.Module]) -> dict[str, Any]:
        parameters = inspect.signature(network).parameters.values()
        return {
            parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty
        }

    assert (
        defaults(TransformerBackbone).items()
        >= {
            **{"sequence_length": 30, "output_dim": 128, "n_heads": 4, "n_layers": 2, "d_ff": 256, "dropout": 0.1}
        }.items()
    )
    assert (
        defaults(RecurrentBackbone).items()
        >= {**{"cell": "lstm", "hidden_size": 128, "num_layers": 1, "bidirectional": False}}.items()
    )
    assert defaults(AutoencoderBackbone)["hidden_sizes"] == (256, 128)
    assert (
        defaults(PatchTSTBackbone).items()
        >= {
            **{"sequence_length": 32, "patch_length": 4, "stride": None, "d_model": 64, "n_heads": 4, "n_layers": 2},
            **{"d_ff": 128, "instance_norm": False},
        }.items()
    )


@pytest.mark.parametrize(
    ("alias", "arguments", "message"),
    [
        ("TransformerBackbone", {"n_heads": 0}, "n_heads must be a positive whole number, got n_heads=0"),
        ("TransformerBackbone", {"dropout": 1.0}, "dropout must be at least 0 and below 1"),
        ("TransformerBackbone", {"heads": 4}, "takes no backbone_kwargs .'heads'.; choose from n_heads"),
        ("TransformerBackbone", {"output_dim": 4}, "takes no backbone_kwargs"),
        ("RecurrentBackbone", {"cell": "mamba"}, "unknown cell 'mamba'; choose from lstm, gru, rnn"),
        ("RecurrentBackbone", {"dropout": 0.1}, "needs num_layers above 1"),
        ("RecurrentBackbone", {"hidden_size": 2.5}, "hidden_size must be a positive whole number"),
        ("AutoencoderBackbone", {"hidden_sizes": []}, "at least one layer"),
        ("PatchTSTBackbone", {"patch_length": 13}, "must not exceed sequence_length, got 13 and 12"),
        ("PatchTSTBackbone", {"stride": 5}, "must not exceed patch_length, got 5 and 4"),
    ],
)
def test_arguments_out_of_range_are_refused(alias: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        built(alias, arguments)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("alias", "arguments"), FORMS)
def test_the_graphics_card_gives_what_the_processor_gives(alias: str, arguments: dict[str, Any]) -> None:
    backbone, windows = built(alias, arguments).eval(), random_windows()
    with torch.no_grad():
        expected = backbone(windows)
        torch.testing.assert_close(backbone.cuda()(windows.cuda()).cpu(), expected, rtol=1e-4, atol=1e-4)
