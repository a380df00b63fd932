"""How well encoder, codes and decoder rebuild demonstrations as they are: nothing in here learns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from archetype_dagster.codebook.decoding import decode_actions
from archetype_dagster.codebook.demonstrations import Demonstrations
from archetype_dagster.codebook.modules import CodebookModules
from archetype_dagster.settings import CodebookSettings
from archetype_dagster.types import IndexArray


@dataclass(frozen=True)
class Rebuilt:
    """Some demonstrations rebuilt, each a mean over them.

    Attributes:
        reconstruction: L_rec, the mean cross-entropy per step.
        quantisation: the other two terms of Eq. (4); 0 without quantisation.
        accuracy: share of steps whose decoded action is the demonstrated one.
        counts: int64 (K,), demonstrations per code; zeros without quantisation.
    """

    reconstruction: float
    quantisation: float
    accuracy: float
    counts: IndexArray


@torch.no_grad()
def rebuild(
    modules: CodebookModules,
    demonstrations: Demonstrations,
    numbers: IndexArray,
    settings: CodebookSettings,
    *,
    quantised: bool,
) -> Rebuilt:
    """Encode and decode the demonstrations `numbers` (n,), n >= 1, with the weights as they are."""
    modules.train(False)
    reconstruction = quantisation = correct = 0.0
    counts = np.zeros(settings.num_codes, dtype=np.int64)
    for first in range(0, len(numbers), settings.batch_size):
        batch = demonstrations.batch(numbers[first : first + settings.batch_size])
        losses = modules.losses(batch, quantised=quantised)
        actions = decode_actions(losses.logits, settings.decoding, hindsight=modules.decoder.hindsight)
        reconstruction += losses.reconstruction.item() * len(actions)
        quantisation += losses.quantisation.item() * len(actions)
        correct += float((actions == batch.actions.cpu().numpy()).mean(axis=1).sum())
        if losses.indices is not None:
            counts += np.bincount(losses.indices.cpu().numpy(), minlength=len(counts))
    total = len(numbers)
    return Rebuilt(reconstruction / total, quantisation / total, correct / total, counts)


@torch.no_grad()
def encode_all(
    modules: CodebookModules, demonstrations: Demonstrations, numbers: IndexArray, *, batch_size: int
) -> Tensor:
    """Encodings z_e float32 (n, D) of the demonstrations `numbers` (n,), on their device."""
    batches = (
        demonstrations.batch(numbers[first : first + batch_size]) for first in range(0, len(numbers), batch_size)
    )
    return torch.cat([modules.encoder(batch.states, batch.actions, batch.rewards) for batch in batches])
