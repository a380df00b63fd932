"""Phase I: train encoder, codes and decoder on demonstrations so that few codes rebuild them, Eq. (4).

Each epoch's order comes from the seed and the epoch's number, so a run that goes on from a resume point
takes exactly the steps the uninterrupted one would have taken.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from archetype_dagster.checkpoints import ResumePoint, pack_training_state, unpack_training_state
from archetype_dagster.codebook.demonstrations import Demonstrations
from archetype_dagster.codebook.history import history_frame, loss_row, row_metrics
from archetype_dagster.codebook.initialisation import initial_codes
from archetype_dagster.codebook.measuring import encode_all, rebuild
from archetype_dagster.codebook.model import Codebook
from archetype_dagster.codebook.modules import CodebookModules
from archetype_dagster.codebook.quantizer import usage_of_counts
from archetype_dagster.errors import ArchetypeError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning.trajectories import Trajectories
from archetype_dagster.seeding import torch_generator
from archetype_dagster.settings import CodebookSettings
from archetype_dagster.types import IndexArray, Progress

logger = logging.getLogger(__name__)


def train_codebook(
    dataset: MarketDataset,
    trajectories: Trajectories,
    settings: CodebookSettings,
    *,
    seed: int,
    device: torch.device,
    resume: ResumePoint,
    progress: Progress,
) -> Codebook:
    """Learn K archetypes from demonstrations (Phase I).

    Minimises L_rec + |sg[z_e] - z_q|^2 + beta_0 |z_e - sg[z_q]|^2 (Eq. 4), L_rec the mean cross-entropy
    per step. The first `pretrain_epochs` hand z_e to the decoder without quantisation; then the codes
    start from those encodings. A code that no demonstration used for `dead_code_epochs` epochs is
    re-seeded from the epoch's encodings.

    Where the embedding is not `vq`, every epoch is one without quantisation. `clustered` then takes the codes
    from k-means over the encodings, leaves encoder and decoder as they are and closes the history with a row
    about these codes; `continuous` has none.

    Args:
        dataset: the training split.
        trajectories: its planned horizons.
        settings: Phase I settings.
        seed: run seed.
        device: where the networks train.
        resume: where the state is saved after each epoch.
        progress: told the epochs done and the newest metrics.

    Raises:
        ValueError: trajectories that do not fit the dataset, or too few to hold some out.
        ArchetypeError: the loss is no longer finite.
    """
    demonstrations = Demonstrations.of(
        dataset, trajectories, validation_fraction=settings.validation_fraction, device=device
    )
    trainer = _Trainer(demonstrations, settings, seed)
    state = trainer.restore(resume)
    epochs = settings.pretrain_epochs + settings.epochs
    progress.start("phase 1: codebook", epochs)
    progress.advance(state.epochs_done)
    for epoch in range(state.epochs_done, epochs):
        row = trainer.run_epoch(epoch, state, last=epoch == epochs - 1)
        state.history.append(row)
        state.epochs_done = epoch + 1
        trainer.save(resume, state)
        progress.advance(state.epochs_done, row_metrics(row))
    closing = [trainer.cluster(state)] if settings.embedding == "clustered" else []
    progress.finish()
    return Codebook(
        trainer.modules,
        settings=settings,
        num_features=dataset.num_features,
        horizon_bars=dataset.horizon_bars,
        history=history_frame(state.history + closing),
    )


def forget_moments(optimizer: torch.optim.Adam, parameter: nn.Parameter, rows: Tensor) -> None:
    """Zero Adam's moments of some rows, so that the next step does not move them by what they were before."""
    for name, moment in optimizer.state[parameter].items():
        if name != "step":
            moment[rows] = 0


@dataclass
class _State:
    """What an epoch leaves to the next besides weights and moments."""

    epochs_done: int
    unused_epochs: IndexArray
    history: list[dict[str, Any]] = field(default_factory=list)


class _Trainer:
    """The modules, their optimiser and the demonstrations of one training run."""

    def __init__(self, demonstrations: Demonstrations, settings: CodebookSettings, seed: int) -> None:
        self.data = demonstrations
        self.settings = settings
        self.seed = seed
        self.modules = CodebookModules.build(settings, demonstrations.dataset.num_features, seed=seed)
        self.modules.to(demonstrations.device)
        self.optimizer = torch.optim.Adam(self.modules.parameters(), lr=settings.learning_rate)

    def restore(self, resume: ResumePoint) -> _State:
        """The saved state, its weights and moments put back; a fresh one where none is saved."""
        saved = resume.load()
        if saved is None:
            return _State(0, np.zeros(self.settings.num_codes, dtype=np.int64))
        tensors, facts = saved
        unpack_training_state(tensors, self.modules.named(), self.optimizer)
        return _State(facts["epochs_done"], np.array(facts["unused_epochs"], dtype=np.int64), facts["history"])

    def save(self, resume: ResumePoint, state: _State) -> None:
        """Replace the resume point."""
        facts = {
            "epochs_done": state.epochs_done,
            "unused_epochs": state.unused_epochs.tolist(),
            "history": state.history,
        }
        resume.save(pack_training_state(self.modules.named(), self.optimizer), facts)

    def cluster(self, state: _State) -> dict[str, Any]:
        """Put codes where the encodings cluster, and see what they rebuild; returns the history row.

        Nothing else moves, so a run that goes on from its last epoch finds the same codes.
        """
        self._start_codes()
        rebuilt = rebuild(self.modules, self.data, self.data.training, self.settings, quantised=True)
        row = loss_row(rebuilt.reconstruction, rebuilt.quantisation, self.settings.commitment)
        row |= {"epoch": state.epochs_done, "quantised": True} | self._validate(quantised=True)
        return row | _usage_row(rebuilt.counts, state.epochs_done)

    def run_epoch(self, epoch: int, state: _State, *, last: bool) -> dict[str, Any]:
        """One pass over the training demonstrations and a look at the held-out ones; returns the history row."""
        quantised = self.settings.embedding == "vq" and epoch >= self.settings.pretrain_epochs
        if quantised and epoch == self.settings.pretrain_epochs:
            self._start_codes()
        encodings, counts, row = self._train(epoch, quantised=quantised)
        row |= {"epoch": epoch + 1, "quantised": quantised} | self._validate(quantised=quantised)
        if not quantised:
            return row
        state.unused_epochs = np.where(counts == 0, state.unused_epochs + 1, 0)
        # After the last epoch a new code would be one that the decoder has never seen.
        dead = np.flatnonzero(state.unused_epochs >= self.settings.dead_code_epochs)
        reseeded = 0 if last else self._reseed(dead, encodings, epoch)
        state.unused_epochs[dead[:reseeded]] = 0
        return row | _usage_row(counts, epoch + 1) | {"reseeded": reseeded}

    def _train(self, epoch: int, *, quantised: bool) -> tuple[Tensor, IndexArray, dict[str, Any]]:
        self.modules.train()
        numbers = self.data.training
        order = torch.randperm(len(numbers), generator=torch_generator(self.seed, "codebook", "order", epoch)).numpy()
        sums = torch.zeros(2, dtype=torch.float64, device=self.data.device)
        encodings: list[Tensor] = []
        counts = torch.zeros(self.settings.num_codes, dtype=torch.int64, device=self.data.device)
        for first in range(0, len(order), self.settings.batch_size):
            batch = self.data.batch(numbers[order[first : first + self.settings.batch_size]])
            losses = self.modules.losses(batch, quantised=quantised)
            self.optimizer.zero_grad(set_to_none=True)
            torch.autograd.backward(losses.total)
            self.optimizer.step()
            terms = torch.stack([losses.reconstruction.detach(), losses.quantisation.detach()])
            sums += terms.double() * len(batch.states)
            encodings.append(losses.encodings.detach())
            if losses.indices is not None:
                counts += torch.bincount(losses.indices, minlength=len(counts))
        reconstruction, quantisation = (sums / len(order)).tolist()
        if not math.isfinite(reconstruction + quantisation):
            raise ArchetypeError(
                f"the loss of Phase I is not finite in epoch {epoch + 1}; lower codebook.learning_rate "
                f"(now {self.settings.learning_rate}) or check the states"
            )
        row = loss_row(reconstruction, quantisation, self.settings.commitment if quantised else None)
        return torch.cat(encodings), counts.cpu().numpy(), row

    def _validate(self, *, quantised: bool) -> dict[str, float | None]:
        numbers = self.data.validation
        if not len(numbers):
            return {"validation_reconstruction": None, "validation_accuracy": None}
        rebuilt = rebuild(self.modules, self.data, numbers, self.settings, quantised=quantised)
        return {"validation_reconstruction": rebuilt.reconstruction, "validation_accuracy": rebuilt.accuracy}

    def _start_codes(self) -> None:
        numbers = self.data.training
        encodings = encode_all(self.modules, self.data, numbers, batch_size=self.settings.batch_size)
        codes = initial_codes(
            encodings.cpu().numpy(),
            self.data.trajectories.actions[numbers],
            self.settings.num_codes,
            method=self.settings.initialisation,
            seed=self.seed,
        )
        self.modules.quantizer.reseed(torch.arange(len(codes)), torch.from_numpy(codes))

    def _reseed(self, dead: IndexArray, encodings: Tensor, epoch: int) -> int:
        count = min(len(dead), len(encodings))
        if count:
            generator = torch_generator(self.seed, "codebook", "reseed", epoch)
            chosen = torch.randperm(len(encodings), generator=generator)[:count].to(encodings.device)
            rows = torch.from_numpy(dead[:count]).to(encodings.device)
            self.modules.quantizer.reseed(rows, encodings[chosen])
            forget_moments(self.optimizer, self.modules.quantizer.codes, rows)
        return count


def _usage_row(counts: IndexArray, epoch: int) -> dict[str, Any]:
    usage = usage_of_counts(counts)
    if usage.alarm:
        logger.warning(
            "epoch %d uses %d of %d codes (perplexity %.2f): the codebook is collapsing",
            epoch,
            usage.used,
            len(counts),
            usage.perplexity,
        )
    return {
        "code_counts": usage.counts.tolist(),
        "used_codes": usage.used,
        "perplexity": usage.perplexity,
        "alarm": usage.alarm,
    }
