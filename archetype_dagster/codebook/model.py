"""The trained codebook: encoder, codes and decoder, frozen, with the history of their training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, Self, TypeVar

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from archetype_dagster.artifacts import read_json, read_table, write_json
from archetype_dagster.checkpoints import load_tensors, save_tensors
from archetype_dagster.codebook.decoding import decode_actions
from archetype_dagster.codebook.history import HISTORY_SCHEMA, history_frame
from archetype_dagster.codebook.modules import CodebookModules
from archetype_dagster.codebook.quantizer import CodeUsage, usage_of_counts
from archetype_dagster.errors import ArtifactError
from archetype_dagster.settings import CodebookSettings
from archetype_dagster.types import ActionArray, FloatArray, IndexArray, StateArray

WEIGHTS_FILE: Final = "weights.safetensors"
FACTS_FILE: Final = "codebook.json"
HISTORY_FILE: Final = "history.parquet"
# Sequences decoded or encoded at a time: a few tens of MB whatever the caller asks for.
_ROWS_AT_ONCE: Final = 1280

StateInput = StateArray | Tensor
Content = TypeVar("Content")


class Codebook:
    """Archetypes that turn states into actions; nothing in here trains or moves any more.

    Args:
        modules: trained encoder, quantizer and decoder; they are frozen and set to evaluation.
        settings: the settings they were trained with.
        num_features: features F of a state.
        horizon_bars: horizon h of the demonstrations.
        history: one row per epoch with the columns of `HISTORY_SCHEMA`.
    """

    def __init__(
        self,
        modules: CodebookModules,
        *,
        settings: CodebookSettings,
        num_features: int,
        horizon_bars: int,
        history: pl.DataFrame,
    ) -> None:
        self._modules = modules
        self.encoder = modules.encoder
        self.quantizer = modules.quantizer
        self.decoder = modules.decoder
        self.settings = settings
        self.num_features = num_features
        self.horizon_bars = horizon_bars
        self.history = history
        modules.train(False)
        for parameter in modules.parameters():
            parameter.requires_grad_(False)

    @classmethod
    def untrained(cls, num_features: int, horizon_bars: int, settings: CodebookSettings, *, seed: int = 0) -> Self:
        """A codebook of seeded random weights without history: what `load` fills, and a stand-in for tests."""
        return cls(
            CodebookModules.build(settings, num_features, seed=seed),
            settings=settings,
            num_features=num_features,
            horizon_bars=horizon_bars,
            history=history_frame([]),
        )

    @property
    def hindsight(self) -> bool:
        """True where actions at t depend on states after t."""
        return self.decoder.hindsight

    @property
    def num_codes(self) -> int:
        """Archetypes K."""
        return self.settings.num_codes

    @property
    def codes(self) -> StateArray:
        """Code vectors float32 (K, D)."""
        vectors: StateArray = self.quantizer.codes.detach().cpu().numpy().copy()
        return vectors

    @property
    def usage(self) -> CodeUsage:
        """How the training horizons of the last epoch spread over the codes; ValueError where none trained it."""
        if self.history.is_empty():
            raise ValueError("an untrained codebook has no usage")
        return usage_of_counts(np.array(self.history["code_counts"][-1].to_list(), dtype=np.int64))

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.quantizer.codes.device

    def to(self, device: torch.device) -> Self:
        """Move the weights to `device`; returns itself."""
        self._modules.to(device)
        return self

    def embed(self, codes: IndexArray) -> StateArray:
        """Code vectors float32 (B, D) of codes int64 (B,)."""
        return self.codes[self._checked_codes(codes)]

    def encode(self, states: StateInput, actions: ActionArray, rewards_over_notional: FloatArray) -> IndexArray:
        """Code int64 (B,) of each demonstration; hindsight, so for training only.

        Args:
            states: float32 (B, h, F).
            actions: int8 (B, h).
            rewards_over_notional: (B, h), step rewards divided by m p_0.
        """
        rows = self._checked_states(states)
        steps = torch.as_tensor(actions)
        rewards = torch.as_tensor(rewards_over_notional)
        if not rows.shape[:2] == steps.shape == rewards.shape:
            raise ValueError(
                f"states, actions and rewards must share (B, h), got {tuple(rows.shape[:2])}, {tuple(steps.shape)} "
                f"and {tuple(rewards.shape)}"
            )
        found = np.empty(len(rows), dtype=np.int64)
        with torch.no_grad():
            for chunk in _chunks(len(rows), _ROWS_AT_ONCE):
                z = self.encoder(
                    rows[chunk].to(self.device),
                    steps[chunk].to(self.device, torch.int64),
                    rewards[chunk].to(self.device, torch.float32),
                )
                found[chunk] = self.quantizer.nearest(z).cpu().numpy()
        return found

    def decode(self, states: StateInput, codes: IndexArray) -> tuple[ActionArray, NDArray[np.float32]]:
        """Run one archetype on each horizon.

        Args:
            states: float32 (B, steps, F); a causal decoder also takes horizons cut short or padded.
            codes: int64 (B,) in 0..K-1.

        Returns:
            actions int8 (B, steps) and logits float32 (B, steps, 3).
        """
        rows = self._checked_states(states)
        indices = torch.from_numpy(self._checked_codes(codes))
        if len(indices) != len(rows):
            raise ValueError(f"states and codes must have one row each, got {len(rows)} and {len(indices)}")
        actions = np.empty(rows.shape[:2], dtype=np.int8)
        logits = np.empty((*rows.shape[:2], 3), dtype=np.float32)
        for chunk in _chunks(len(rows), _ROWS_AT_ONCE):
            scores = self.decoder.decode_logits(
                rows[chunk].to(self.device), self.quantizer.codes, indices[chunk].to(self.device)
            )
            logits[chunk] = scores.cpu().numpy()
            actions[chunk] = self._actions(scores)
        return actions, logits

    def decode_all_codes(self, states: StateInput) -> ActionArray:
        """Run every archetype on each horizon: actions int8 (B, K, steps) for states float32 (B, steps, F).

        `decode_all_codes(states)[:, k]` are the actions of `decode(states, k)`. The states are projected
        once per horizon for all codes, and memory beyond states and result stays bounded.
        """
        rows = self._checked_states(states)
        actions = np.empty((len(rows), self.num_codes, rows.shape[1]), dtype=np.int8)
        for chunk in _chunks(len(rows), max(1, _ROWS_AT_ONCE // self.num_codes)):
            actions[chunk] = self._actions(
                self.decoder.decode_logits(rows[chunk].to(self.device), self.quantizer.codes)
            )
        return actions

    def save(self, directory: Path) -> None:
        """Write `weights.safetensors`, `codebook.json` and `history.parquet` into an existing folder."""
        save_tensors(directory / WEIGHTS_FILE, self._modules.tensors())
        write_json(
            directory / FACTS_FILE,
            {
                "num_features": self.num_features,
                "horizon_bars": self.horizon_bars,
                "hindsight": self.hindsight,
                "settings": self.settings.model_dump(mode="json"),
            },
        )
        self.history.write_parquet(directory / HISTORY_FILE)

    @classmethod
    def load(cls, directory: Path, *, device: torch.device | None = None) -> Self:
        """Read what `save` wrote, to the CPU unless `device` says otherwise.

        Raises:
            ArtifactError: a file is missing, damaged or does not fit the others.
        """
        facts = read_json(directory / FACTS_FILE)
        history = read_table(directory / HISTORY_FILE, HISTORY_SCHEMA)
        tensors, _ = load_tensors(directory / WEIGHTS_FILE)
        try:
            settings = CodebookSettings.model_validate(facts["settings"])
            codebook = cls.untrained(facts["num_features"], facts["horizon_bars"], settings)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ArtifactError(f"{directory / FACTS_FILE} does not describe a codebook ({error})") from error
        codebook.history = history
        found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if found != {name: tuple(tensor.shape) for name, tensor in codebook._modules.tensors().items()}:
            raise ArtifactError(f"{directory / WEIGHTS_FILE} holds other shapes than {FACTS_FILE} describes")
        codebook._modules.load_tensors(tensors)
        return codebook if device is None else codebook.to(device)

    def _actions(self, logits: Tensor) -> ActionArray:
        return decode_actions(logits, self.settings.decoding, hindsight=self.hindsight)

    def _checked_states(self, states: StateInput) -> Tensor:
        rows = torch.as_tensor(states)
        if rows.ndim != 3 or rows.shape[2] != self.num_features or rows.dtype != torch.float32:
            raise ValueError(
                f"states must be float32 (B, steps, {self.num_features}), got {rows.dtype} {tuple(rows.shape)}"
            )
        return rows

    def _checked_codes(self, codes: IndexArray) -> IndexArray:
        checked = np.asarray(codes, dtype=np.int64)
        if checked.ndim != 1 or (checked.size and not 0 <= checked.min() <= checked.max() < self.num_codes):
            raise ValueError(f"codes must be (B,) in 0..{self.num_codes - 1}, got {codes!r}")
        return checked


def _chunks(total: int, size: int) -> Iterator[slice]:
    return (slice(start, start + size) for start in range(0, total, size))
