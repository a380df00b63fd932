"""An autoencoder's narrow middle, for observations of a thousand numbers and more."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from archetype_dagster.checkpoints import load_tensors, save_tensors
from archetype_dagster.errors import ArtifactError, SettingsError
from archetype_dagster.policies.backbone import Backbone, require_positive
from archetype_dagster.policies.registry import register_backbone
from archetype_dagster.types import JsonDict


@register_backbone("AutoencoderBackbone")
class AutoencoderBackbone(Backbone):
    """An MLP from the whole window to a bottleneck, which is what the policy reads, and one back.

    The decoder only matters to `pretrain_autoencoder`, which trains both halves on windows alone. Elsewhere its
    weights are frozen: a policy's loss does not depend on them.

    Args:
        input_features: numbers F of a row.
        sequence_length: rows L of a window.
        output_dim: features that come out.
        hidden_sizes: units of the encoder's layers; the decoder has them in reverse.
        bottleneck: numbers in the middle; None for output_dim, else a linear layer leads from them to output_dim.
        pretrained_path: file of `save_pretrained` to start from.

    Raises:
        SettingsError: a size below 1 or no hidden layer.
        ArtifactError: the pretrained file is missing, damaged or of other sizes.
    """

    def __init__(
        self,
        input_features: int,
        sequence_length: int = 30,
        output_dim: int = 128,
        *,
        hidden_sizes: Sequence[int] = (256, 128),
        bottleneck: int | None = None,
        pretrained_path: str | Path | None = None,
    ) -> None:
        super().__init__(input_features, sequence_length, output_dim)
        width = output_dim if bottleneck is None else bottleneck
        if not hidden_sizes:
            raise SettingsError("hidden_sizes must name at least one layer, got hidden_sizes=()")
        require_positive(
            bottleneck=width, **{f"hidden_sizes[{index}]": size for index, size in enumerate(hidden_sizes)}
        )
        sizes = [sequence_length * input_features, *hidden_sizes, width]
        self.shape: JsonDict = {
            "input_features": input_features,
            "sequence_length": sequence_length,
            "hidden_sizes": list(hidden_sizes),
            "bottleneck": width,
        }
        self.encoder = _mlp(sizes)
        self.decoder = _mlp(sizes[::-1]).requires_grad_(False)
        self.head: nn.Module = nn.Identity() if bottleneck is None else nn.Linear(bottleneck, output_dim)
        if pretrained_path is not None:
            self._load_pretrained(Path(pretrained_path))

    def encode(self, windows: torch.Tensor) -> torch.Tensor:
        """See `Backbone.encode`."""
        features: torch.Tensor = self.head(self.encoder(windows.flatten(1)))
        return features

    def reconstruct(self, observations: torch.Tensor) -> torch.Tensor:
        """What the decoder makes of the bottleneck: float32 (B, L, F) or (B, L F) -> (B, L, F)."""
        windows = self.windows(observations)
        decoded: torch.Tensor = self.decoder(self.encoder(windows.flatten(1)))
        return decoded.reshape(windows.shape)

    def save_pretrained(self, path: Path) -> None:
        """Write encoder and decoder to one safetensors file."""
        save_tensors(path, self._halves(self.state_dict()), self.shape)

    def _load_pretrained(self, path: Path) -> None:
        tensors, facts = load_tensors(path)
        if facts != self.shape:
            raise ArtifactError(f"{path} holds an autoencoder of {facts}, expected {self.shape}")
        own = self.state_dict()
        if {name: value.shape for name, value in tensors.items()} != {
            name: value.shape for name, value in self._halves(own).items()
        }:
            raise ArtifactError(f"{path} does not hold the weights that its header states")
        self.load_state_dict({**own, **tensors})

    @staticmethod
    def _halves(tensors: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in tensors.items() if name.startswith(("encoder.", "decoder."))}


def _mlp(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for size_in, size_out in itertools.pairwise(sizes):
        layers += [nn.Linear(size_in, size_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
