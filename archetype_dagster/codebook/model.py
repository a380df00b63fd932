"""The trained codebook: encoder, codes and decoder, frozen, with the history of their training."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from archetype_dagster.artifacts import read_json, read_table, write_json
from archetype_dagster.checkpoints import load_tensors, save_tensors
from archetype_dagster.codebook.decoding import decode_actions
from archetype_dagster.codebook.history import HISTORY_SCHEMA, history_frame
from archetype_dagster.codebook.inputs import (
    ROWS_AT_ONCE,
    StateInput,
    checked_codes,
    checked_embeddings,
    checked_states,
    checked_steps,
    chunks,
)
from archetype_dagster.codebook.modules import CodebookModules
from archetype_dagster.codebook.quantizer import CodeUsage, VectorQuantizer, usage_of_counts
from archetype_dagster.errors import ArtifactError
from archetype_dagster.settings import CodebookSettings
from archetype_dagster.types import ActionArray, FloatArray, IndexArray, StateArray

WEIGHTS_FILE: Final = "weights.safetensors"
FACTS_FILE: Final = "codebook.json"
HISTORY_FILE: Final = "history.parquet"


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
    def quantizer(self) -> VectorQuantizer:
        """The codes; ArtifactError where the embedding is continuous, and so for all that needs codes."""
        return self._modules.quantizer

    @property
    def num_codes(self) -> int:
        """Archetypes K."""
        return len(self.quantizer.codes)

    @property
    def codes(self) -> StateArray:
        """Code vectors float32 (K, D)."""
        vectors: StateArray = self.quantizer.codes.detach().cpu().numpy().copy()
        return vectors

    @property
    def usage(self) -> CodeUsage:
        """How the training horizons of the last epoch spread over the codes; ValueError without training."""
        counts = self.history["code_counts"].drop_nulls()
        if counts.is_empty():
            raise ValueError(f"an untrained codebook has no usage of its {self.num_codes} codes")
        return usage_of_counts(np.array(counts[-1].to_list(), dtype=np.int64))

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.decoder.head.weight.device

    def to(self, device: torch.device) -> Self:
        """Move the weights to `device`; returns itself."""
        self._modules.to(device)
        return self

    def embed(self, codes: IndexArray) -> StateArray:
        """Code vectors float32 (B, D) of codes int64 (B,)."""
        return self.codes[checked_codes(codes, self.num_codes)]

    def encode(self, states: StateInput, actions: ActionArray, rewards_over_notional: FloatArray) -> IndexArray:
        """Code int64 (B,) of each demonstration: the nearest to `encodings`, whose arguments it takes."""
        z = torch.from_numpy(self.encodings(states, actions, rewards_over_notional)).to(self.device)
        found: IndexArray = self.quantizer.nearest(z).cpu().numpy()
        return found

    def encodings(self, states: StateInput, actions: ActionArray, rewards_over_notional: FloatArray) -> StateArray:
        """Encoding z_e float32 (B, D) of each demonstration; hindsight, so for training only.

        Args:
            states: float32 (B, h, F).
            actions: int8 (B, h).
            rewards_over_notional: (B, h), step rewards divided by m p_0.
        """
        rows = checked_states(states, self.num_features)
        steps, rewards = checked_steps(rows, actions, rewards_over_notional)
        found = np.empty((len(rows), self.settings.code_dim), dtype=np.float32)
        with torch.no_grad():
            for chunk in chunks(len(rows), ROWS_AT_ONCE):
                z = self.encoder(
                    rows[chunk].to(self.device),
                    steps[chunk].to(self.device, torch.int64),
                    rewards[chunk].to(self.device, torch.float32),
                )
                found[chunk] = z.cpu().numpy()
        return found

    def decode(self, states: StateInput, codes: IndexArray) -> tuple[ActionArray, NDArray[np.float32]]:
        """Run one archetype on each horizon.

        Args:
            states: float32 (B, steps, F); a causal decoder also takes horizons cut short or padded.
            codes: int64 (B,) in 0..K-1.

        Returns:
            actions int8 (B, steps) and logits float32 (B, steps, 3).
        """
        rows = checked_states(states, self.num_features)
        indices = torch.from_numpy(checked_codes(codes, self.num_codes))
        if len(indices) != len(rows):
            raise ValueError(f"states and codes must have one row each, got {len(rows)} and {len(indices)}")
        actions = np.empty(rows.shape[:2], dtype=np.int8)
        logits = np.empty((*rows.shape[:2], 3), dtype=np.float32)
        for chunk in chunks(len(rows), ROWS_AT_ONCE):
            scores = self.decoder.decode_logits(
                rows[chunk].to(self.device), self.quantizer.codes, indices[chunk].to(self.device)
            )
            logits[chunk] = scores.cpu().numpy()
            actions[chunk] = self._actions(scores)
        return actions, logits

    def decode_embeddings(self, states: StateInput, embeddings: StateInput) -> tuple[ActionArray, NDArray[np.float32]]:
        """Run S vectors of the embedding space, which need not be codes, on each horizon.

        Args:
            states: as in `decode`.
            embeddings: float32 (B, S, D).

        Returns:
            actions int8 (B, S, steps) and logits float32 (B, S, steps, 3).
        """
        rows = checked_states(states, self.num_features)
        vectors = checked_embeddings(embeddings, len(rows), self.settings.code_dim)
        shape = (*vectors.shape[:2], rows.shape[1])
        actions = np.empty(shape, dtype=np.int8)
        logits = np.empty((*shape, 3), dtype=np.float32)
        for chunk in chunks(len(rows), max(1, ROWS_AT_ONCE // shape[1])):
            scores = self.decoder.decode_logits(rows[chunk].to(self.device), vectors[chunk].to(self.device))
            logits[chunk] = scores.cpu().numpy()
            actions[chunk] = self._actions(scores)
        return actions, logits

    def decode_all_codes(self, states: StateInput) -> ActionArray:
        """Run every archetype on each horizon: actions int8 (B, K, steps) for states float32 (B, steps, F).

        `decode_all_codes(states)[:, k]` are the actions of `decode(states, k)`. The states are projected
        once per horizon for all codes, and memory beyond states and result stays bounded.
        """
        rows = checked_states(states, self.num_features)
        actions = np.empty((len(rows), self.num_codes, rows.shape[1]), dtype=np.int8)
        for chunk in chunks(len(rows), max(1, ROWS_AT_ONCE // self.num_codes)):
            actions[chunk] = self._actions(
                self.decoder.decode_logits(rows[chunk].to(self.device), self.quantizer.codes)
            )
        return actions

    def save(self, directory: Path) -> None:
        """Write `weights.safetensors`, `codebook.json` and `history.parquet` into an existing folder."""
        save_tensors(directory / WEIGHTS_FILE, self._modules.tensors())
        # Codebooks made before there was a choice name no embedding; the same codes keep the same bytes.
        left_out = {"embedding"} if self.settings.embedding == "vq" else None
        write_json(
            directory / FACTS_FILE,
            {
                "num_features": self.num_features,
                "horizon_bars": self.horizon_bars,
                "hindsight": self.hindsight,
                "settings": self.settings.model_dump(mode="json", exclude=left_out),
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
