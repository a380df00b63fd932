"""Teaching an autoencoder to reconstruct windows before a policy reads its bottleneck."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch.nn import functional

from archetype_dagster.policies.autoencoder import AutoencoderBackbone
from archetype_dagster.seeding import torch_generator
from archetype_dagster.settings.policies import PretrainingSettings
from archetype_dagster.types import NoProgress, Progress

_EVALUATION_ROWS = 4096


def pretrain_autoencoder(
    backbone: AutoencoderBackbone,
    windows: NDArray[np.float32],
    settings: PretrainingSettings,
    *,
    seed: int,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """Train encoder and decoder on windows of the training split and leave the best weights in `backbone`.

    The newest windows are held out; the weights kept are those of the lowest error on them, the untrained included.

    Args:
        backbone: on the device where it is to train.
        windows: float32 (T, L, F) or (T, L F), in order of time.
        settings: budget and step size.
        seed: seed of the run.
        progress: told each epoch.

    Returns:
        a row for each epoch, the first before any step: `epoch` and the mean squared errors per number
        `training_error` (over the epoch, as it went; null in the first row) and `held_out_error`.

    Raises:
        ValueError: fewer than two windows, another shape, or numbers that are not finite.
    """
    if len(windows) < 2:
        raise ValueError(f"pretraining needs at least two windows, got {len(windows)}")
    if not np.isfinite(windows).all():
        raise ValueError("windows must be finite")
    data = backbone.windows(torch.as_tensor(windows))
    split = len(data) - max(1, min(len(data) - 1, round(len(data) * settings.held_out_fraction)))
    training, held_out = data[:split], data[split:]
    progress = progress or NoProgress()
    progress.start("autoencoder", settings.epochs)
    halves = torch.nn.ModuleList((backbone.encoder, backbone.decoder)).requires_grad_(True)
    optimizer = torch.optim.Adam(halves.parameters(), lr=settings.learning_rate)
    best_error, best = reconstruction_error(backbone, held_out), deepcopy(halves.state_dict())
    history: list[dict[str, float | int | None]] = [{"epoch": 0, "training_error": None, "held_out_error": best_error}]
    for epoch in range(1, settings.epochs + 1):
        error = _epoch(backbone, training, optimizer, settings, torch_generator(seed, "autoencoder", epoch))
        reached = reconstruction_error(backbone, held_out)
        if reached < best_error:
            best_error, best = reached, deepcopy(halves.state_dict())
        history.append({"epoch": epoch, "training_error": error, "held_out_error": reached})
        progress.advance(epoch, {"training_error": error, "held_out_error": reached})
    halves.load_state_dict(best)
    optimizer.zero_grad()
    backbone.decoder.requires_grad_(False)
    progress.finish()
    return pl.DataFrame(history, schema={"epoch": pl.Int64, "training_error": pl.Float64, "held_out_error": pl.Float64})


def reconstruction_error(backbone: AutoencoderBackbone, windows: torch.Tensor) -> float:
    """Mean squared error per number over windows (T, L, F) or (T, L F)."""
    device = next(backbone.parameters()).device
    total = 0.0
    with torch.no_grad():
        for part in torch.split(backbone.windows(windows), _EVALUATION_ROWS):
            chunk = part.to(device)
            total += functional.mse_loss(backbone.reconstruct(chunk), chunk, reduction="sum").item()
    return total / windows.numel()


def _epoch(
    backbone: AutoencoderBackbone,
    windows: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    settings: PretrainingSettings,
    generator: torch.Generator,
) -> float:
    device = next(backbone.parameters()).device
    total = torch.zeros((), device=device)
    for rows in torch.split(torch.randperm(len(windows), generator=generator), settings.batch_size):
        batch = windows[rows].to(device)
        loss = functional.mse_loss(backbone.reconstruct(batch), batch)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        total += loss.detach() * len(rows)
    return float(total) / len(windows)
