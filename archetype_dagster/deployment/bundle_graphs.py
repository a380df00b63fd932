"""A bundle's networks in batches of any size: what parity and the vectorised replay run, one bar of it live."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from archetype_dagster.deployment.bundle import Bundle, read_bundle
from archetype_dagster.deployment.sessions import CPU, open_session, require_providers
from archetype_dagster.types import ActionArray, IndexArray, JsonDict, StateArray

if TYPE_CHECKING:
    import onnxruntime

    from archetype_dagster.settings import Decoding, OverrideRule

LogitArray = NDArray[np.float32]
DecoderState = tuple[StateArray, StateArray]
Inputs = dict[str, NDArray[Any]]


class BundleGraphs:
    """The networks of an exported policy; every call takes a batch of any size.

    Args:
        bundle: a verified bundle.
        providers: of onnxruntime, in order of preference.

    Attributes:
        bundle: as given.
        selector_bars: bars L that the selector reads, 1 for the current one alone.
        refiner_bars: bars that the refiner reads, 1 without one.

    Raises:
        ArtifactError: a graph that is not what the manifest states.
        ValueError: a provider that is not there.
    """

    def __init__(self, bundle: Bundle, providers: Sequence[str] = (CPU,)) -> None:
        require_providers(providers)
        self.bundle = bundle
        graphs: JsonDict = bundle.manifest["graphs"]
        sessions = {
            name: open_session(bundle.directory / graph["file"], graph, providers) for name, graph in graphs.items()
        }
        self._selector: onnxruntime.InferenceSession = sessions["selector"]
        self._decoder: onnxruntime.InferenceSession = sessions["decoder"]
        self._refiner: onnxruntime.InferenceSession | None = sessions.get("refiner")
        self._outputs = {name: [value["name"] for value in graph["outputs"]] for name, graph in graphs.items()}
        self.selector_bars = int(bundle.manifest["selector_lookback_bars"])
        self.refiner_bars = int(bundle.manifest["refiner_lookback_bars"])
        self._hidden = int(graphs["decoder"]["inputs"][2]["shape"][1])

    @classmethod
    def load(cls, directory: Path, providers: Sequence[str] = (CPU,)) -> Self:
        """Read and open a bundle; `ArtifactError` and `ValueError` as `read_bundle` and the class raise them."""
        require_providers(providers)
        return cls(read_bundle(directory), providers)

    @property
    def manifest(self) -> JsonDict:
        """policy.json."""
        return self.bundle.manifest

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

    @property
    def refines(self) -> bool:
        """Whether the policy has a refiner."""
        return self._refiner is not None

    def code_logits(self, market: StateArray) -> LogitArray:
        """Code logits at horizons' first bars: float32 (B, F), or (B, L, F) for `selector_bars` L > 1 -> (B, K)."""
        return self._run(self._selector, "selector", {_market_input(self.selector_bars): market})[0]

    def initial_state(self, batch: int) -> DecoderState:
        """Zero decoder state (hidden, cell), each float32 (B, H), of a horizon's first bar."""
        return np.zeros((batch, self._hidden), dtype=np.float32), np.zeros((batch, self._hidden), dtype=np.float32)

    def action_logits(
        self, states: StateArray, codes: IndexArray, state: DecoderState
    ) -> tuple[LogitArray, DecoderState]:
        """One bar of the decoder: float32 (B, F), int64 (B,) and its state -> float32 (B, 3) and its next state."""
        hidden, cell = state
        inputs: Inputs = {"state": states, "code": codes, "hidden_in": hidden, "cell_in": cell}
        logits, hidden, cell = self._run(self._decoder, "decoder", inputs)
        return logits, (hidden, cell)

    def override_logits(
        self,
        market: StateArray,
        codes: IndexArray,
        base_actions: ActionArray | IndexArray,
        realised_return: StateArray,
        time_left: StateArray,
    ) -> LogitArray:
        """One bar of the refiner: logits over [short, nothing, long], float32 (B, 3).

        Args:
            market: float32 (B, F), scaled, or (B, L, F) for `refiner_bars` L > 1.
            codes: int64 (B,).
            base_actions: integers (B,), 0 short, 1 flat, 2 long.
            realised_return: float32 (B,), R_arche in percent of m p_0.
            time_left: float32 (B,), (h - tau) / h.

        Raises:
            ValueError: the policy has no refiner.
        """
        if self._refiner is None:
            raise ValueError("this policy was exported without a refiner")
        inputs: Inputs = {
            _market_input(self.refiner_bars): market,
            "code": codes,
            "base_action": base_actions.astype(np.int64, copy=False),
            "realised_return": realised_return,
            "time_left": time_left,
        }
        return self._run(self._refiner, "refiner", inputs)[0]

    def _run(self, session: onnxruntime.InferenceSession, name: str, inputs: Inputs) -> list[LogitArray]:
        outputs: list[LogitArray] = session.run(self._outputs[name], inputs)
        return outputs


def _market_input(bars: int) -> str:
    return "state" if bars == 1 else "window"
