"""A bundle opened with onnxruntime: the networks' logits, bar by bar, without torch weights or training code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from archetype_dagster.artifacts import file_hash, read_json
from archetype_dagster.deployment.export import BUNDLE_VERSION, CHECKSUMS_FILE, POLICY_FILE, SCALER_FILE
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.settings import Decoding, OverrideRule
from archetype_dagster.types import ActionArray, IndexArray, JsonDict, StateArray

LogitArray = NDArray[np.float32]
DecoderState = tuple[StateArray, StateArray]


@dataclass(frozen=True)
class OnnxPolicy:
    """The networks of an exported policy; every call takes a batch of any size.

    Attributes:
        manifest: policy.json, which states names, shapes and rules.
        scaler: raw features -> state.
        selector: session of selector.onnx.
        decoder: session of decoder_step.onnx.
        refiner: session of refiner_step.onnx; None where the policy has no refiner.
    """

    manifest: JsonDict
    scaler: FeatureScaler
    selector: onnxruntime.InferenceSession
    decoder: onnxruntime.InferenceSession
    refiner: onnxruntime.InferenceSession | None

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Open a bundle after comparing every file with its checksum.

        Raises:
            ArtifactError: a file is missing, changed, or of another schema version.
        """
        for name, expected in read_json(directory / CHECKSUMS_FILE).items():
            path = directory / name
            if not path.is_file():
                raise ArtifactError(f"{path} is missing although {CHECKSUMS_FILE} lists it; export the policy again")
            if file_hash(path) != expected:
                raise ArtifactError(f"{path} does not have the hash {CHECKSUMS_FILE} states; export the policy again")
        manifest = read_json(directory / POLICY_FILE)
        if manifest.get("schema_version") != BUNDLE_VERSION:
            raise ArtifactError(
                f"{directory / POLICY_FILE} has schema version {manifest.get('schema_version')}, "
                f"this version reads {BUNDLE_VERSION}; export the policy again"
            )
        sessions = {name: _open(directory / graph["file"]) for name, graph in manifest["graphs"].items()}
        scaler = FeatureScaler.load(directory / SCALER_FILE)
        return cls(manifest, scaler, sessions["selector"], sessions["decoder"], sessions.get("refiner"))

    @property
    def horizon_bars(self) -> int:
        """Horizon h in bars."""
        return int(self.manifest["horizon_bars"])

    @property
    def decoding(self) -> Decoding:
        """How action logits become base actions."""
        decoding: Decoding = self.manifest["decoding"]
        return decoding

    @property
    def override(self) -> OverrideRule:
        """How long an override lasts; `step` where there is no refiner."""
        override: OverrideRule = self.manifest["override"] or "step"
        return override

    def code_logits(self, states: StateArray) -> LogitArray:
        """Scaled states at horizons' first bars, float32 (B, F) -> float32 (B, K)."""
        return _run(self.selector, state=states)[0]

    def initial_state(self, batch: int) -> DecoderState:
        """Zero decoder state (hidden, cell), each float32 (B, H), of a horizon's first bar."""
        hidden = self.decoder.get_inputs()[2].shape[1]
        return np.zeros((batch, hidden), dtype=np.float32), np.zeros((batch, hidden), dtype=np.float32)

    def action_logits(
        self, states: StateArray, codes: IndexArray, state: DecoderState
    ) -> tuple[LogitArray, DecoderState]:
        """One bar of the decoder: float32 (B, F), int64 (B,) and its state -> float32 (B, 3) and its next state."""
        hidden, cell = state
        logits, hidden, cell = _run(self.decoder, state=states, code=codes, hidden_in=hidden, cell_in=cell)
        return logits, (hidden, cell)

    def override_logits(
        self,
        states: StateArray,
        codes: IndexArray,
        base_actions: ActionArray,
        realised_return: StateArray,
        time_left: StateArray,
    ) -> LogitArray:
        """One bar of the refiner: logits over [short, nothing, long], float32 (B, 3).

        Args:
            states: float32 (B, F), scaled.
            codes: int64 (B,).
            base_actions: int8 (B,), 0 short, 1 flat, 2 long.
            realised_return: float32 (B,), R_arche in percent of m p_0.
            time_left: float32 (B,), (h - tau) / h.

        Raises:
            ValueError: the policy has no refiner.
        """
        if self.refiner is None:
            raise ValueError("this policy was exported without a refiner")
        return _run(
            self.refiner,
            state=states,
            code=codes,
            base_action=base_actions.astype(np.int64),
            realised_return=realised_return,
            time_left=time_left,
        )[0]


def _run(session: onnxruntime.InferenceSession, **inputs: NDArray[Any]) -> list[LogitArray]:
    outputs: list[LogitArray] = session.run(None, inputs)
    return outputs


def _open(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    # Bars come one at a time: one thread is fastest, and sums keep their order.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
