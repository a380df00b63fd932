"""The networks of Phase I together, and the loss of Eq. (4) on a batch of demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from archetype_dagster.codebook.decoder import ArchetypeDecoder
from archetype_dagster.codebook.demonstrations import DemonstrationBatch
from archetype_dagster.codebook.encoder import TrajectoryEncoder
from archetype_dagster.codebook.quantizer import VectorQuantizer
from archetype_dagster.errors import ArtifactError
from archetype_dagster.seeding import seeded_initialisation
from archetype_dagster.settings import CodebookSettings


@dataclass(frozen=True)
class CodebookLosses:
    """Loss terms of one batch and what they were computed from.

    Attributes:
        reconstruction: L_rec, the mean cross-entropy per step, scalar.
        quantisation: |sg[z_e] - z_q|^2 + beta_0 |z_e - sg[z_q]|^2, scalar; 0 without quantisation.
        encodings: z_e (B, D).
        logits: (B, h, 3).
        indices: int64 (B,), nearest codes; None without quantisation.
    """

    reconstruction: Tensor
    quantisation: Tensor
    encodings: Tensor
    logits: Tensor
    indices: Tensor | None

    @property
    def total(self) -> Tensor:
        """The loss of Eq. (4)."""
        return self.reconstruction + self.quantisation


@dataclass(frozen=True)
class CodebookModules:
    """Encoder, quantizer and decoder of one codebook.

    Attributes:
        encoder: Eq. (1).
        optional_quantizer: Eq. (2); None where the embedding is continuous.
        decoder: Eq. (3).
    """

    encoder: TrajectoryEncoder
    optional_quantizer: VectorQuantizer | None
    decoder: ArchetypeDecoder

    @classmethod
    def build(cls, settings: CodebookSettings, num_features: int, *, seed: int) -> Self:
        """Untrained modules of the shapes that `settings` and `num_features` ask for."""
        with seeded_initialisation(seed, "codebook", "weights"):
            encoder = TrajectoryEncoder(num_features, settings.hidden_size, settings.code_dim, settings.pooling)
            # Made for every embedding, so that the decoder starts from the same weights whatever the embedding.
            quantizer = VectorQuantizer(settings.num_codes, settings.code_dim, commitment=settings.commitment)
            decoder = ArchetypeDecoder(num_features, settings.code_dim, settings.hidden_size, settings.decoder)
        return cls(encoder, None if settings.embedding == "continuous" else quantizer, decoder)

    @property
    def quantizer(self) -> VectorQuantizer:
        """The codes; `ArtifactError` where there are none, which refuses whatever is built on archetypes."""
        if self.optional_quantizer is None:
            raise ArtifactError(
                "codebook.embedding 'continuous' has no codes, so no returns table, refinement, export, report or "
                "leaderboard can be made from it; use 'vq' or 'clustered', or train_continuous_selector"
            )
        return self.optional_quantizer

    def named(self) -> dict[str, nn.Module]:
        """The modules by name, in a fixed order."""
        quantizer = {} if self.optional_quantizer is None else {"quantizer": self.optional_quantizer}
        return {"encoder": self.encoder, **quantizer, "decoder": self.decoder}

    def parameters(self) -> list[nn.Parameter]:
        """All parameters, in a fixed order."""
        return [parameter for module in self.named().values() for parameter in module.parameters()]

    def train(self, mode: bool = True) -> None:
        """Switch every module to training, or to evaluation."""
        for module in self.named().values():
            module.train(mode)

    def to(self, device: torch.device) -> Self:
        """Move every module to `device`; returns itself."""
        for module in self.named().values():
            module.to(device)
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Weights by `module.parameter`."""
        return {
            f"{name}.{key}": tensor
            for name, module in self.named().items()
            for key, tensor in module.state_dict().items()
        }

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` gave."""
        for name, module in self.named().items():
            prefix = f"{name}."
            module.load_state_dict(
                {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}
            )

    def losses(self, batch: DemonstrationBatch, *, quantised: bool) -> CodebookLosses:
        """The terms of Eq. (4); without quantisation z_e goes to the decoder as it is."""
        encodings = self.encoder(batch.states, batch.actions, batch.rewards)
        if quantised:
            z_q, indices, quantisation = self.quantizer(encodings)
        else:
            z_q, indices, quantisation = encodings, None, encodings.new_zeros(())
        logits = self.decoder(batch.states, z_q)
        reconstruction = nn.functional.cross_entropy(logits.flatten(0, 1), batch.actions.flatten())
        return CodebookLosses(reconstruction, quantisation, encodings, logits, indices)
