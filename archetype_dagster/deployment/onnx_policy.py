"""A bundle as a live policy: one bar in, one decision out, features and every rule included.

Needs onnxruntime, NumPy, Polars and the standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from archetype_dagster.deployment.bundle import Bundle, read_bundle
from archetype_dagster.deployment.bundle_graphs import BundleGraphs, DecoderState
from archetype_dagster.deployment.horizon import HorizonRun
from archetype_dagster.deployment.sessions import CPU, require_providers
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.feature_formulas import FEATURE_NAMES
from archetype_dagster.market.single_bar import SingleBar, read_bar
from archetype_dagster.market.streaming import FeatureStream
from archetype_dagster.types import FLAT, JsonDict, StateArray

STATE_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy wants from one bar's end on.

    Attributes:
        timestamp: bar end, UTC.
        action: 0 short, 1 flat, 2 long.
        base_action: the archetype's action, which the refiner may have overridden.
        code: archetype of the horizon.
        tau: step in the horizon, 0..h-1.
        overridden: the action is an override's.
        mark: mark price of the bar, quote units.
    """

    timestamp: datetime
    action: int
    base_action: int
    code: int
    tau: int
    overridden: bool
    mark: float


class OnnxPolicy:
    """Decides bar by bar as `backtest.policy.decide` does for the same bars at once.

    The first horizon begins at the first bar with features; a gap ends a horizon and begins a warm-up.

    Args:
        bundle: a verified bundle.
        providers: of onnxruntime, in order of preference.

    Raises:
        ArtifactError: a graph that is not what the manifest states.
        ValueError: a provider that is not there.
    """

    def __init__(self, bundle: Bundle, providers: Sequence[str] = (CPU,)) -> None:
        self.graphs = BundleGraphs(bundle, providers)
        self.bundle = bundle
        manifest = bundle.manifest
        self._horizon_bars = int(manifest["horizon_bars"])
        self._delay = int(manifest["execution_delay_bars"])
        self._settles = manifest["horizon_boundary"] == "settle"
        self._decoding, self._override = str(manifest["decoding"]), manifest["override"]
        self._window: StateArray = np.zeros(
            (max(self.graphs.selector_bars, self.graphs.refiner_bars), len(FEATURE_NAMES)), dtype=np.float32
        )
        self._decoder: DecoderState = self.graphs.initial_state(1)
        self._start()

    @classmethod
    def load(
        cls, directory: Path | str, providers: Sequence[str] = (CPU,), *, expected_hash: str | None = None
    ) -> Self:
        """Open a bundle.

        Args:
            directory: folder written by `export_policy`.
            providers: of onnxruntime, in order of preference.
            expected_hash: the hash the whole bundle must have, where the caller knows it.

        Raises:
            ArtifactError: a damaged, foreign or newer bundle, with the reason; see `read_bundle`.
            ValueError: a provider that is not there; the message names those that are.
        """
        require_providers(providers)
        return cls(read_bundle(Path(directory), expected_hash=expected_hash), providers)

    @property
    def manifest(self) -> JsonDict:
        """policy.json."""
        return self.bundle.manifest

    @property
    def bars_missing(self) -> int:
        """Bars still to come before the first decision, the deciding one included; 0 once decisions come."""
        return self._stream.bars_missing

    def on_bar(self, bar: Mapping[str, Any]) -> Decision | None:
        """Take the next bar and decide; None while its segment has too few bars for features: be flat then.

        Args:
            bar: a row of a bars table by column name; see `market.single_bar.read_bar`.

        Raises:
            MarketDataError: an unusable bar, one that is not later than the last, or under depth policy `reject` one
                whose book cannot fill every change; the policy then stays as it was before the bar.
        """
        one = read_bar(bar)
        self.bundle.costs.check_depth(one)
        features = self._stream.advance(one)
        if features is None:
            if self._run.code >= 0:
                self._forget()
            return None
        window = self._window
        window[:-1] = window[1:]
        window[-1] = self.bundle.scaler.transform(features)
        return self._decide(one)

    def position(self, action: int) -> float:
        """Position of an action, m (a - 1), base units."""
        return float(self.bundle.costs.max_position * (action - FLAT))

    def cost(self, bar: Mapping[str, Any], action_from: int, action_to: int) -> float:
        """Execution loss O of changing from one action to another on a bar's book, quote units.

        Raises:
            MarketDataError: an unusable bar, or under depth policy `reject` a book that cannot fill the change.
        """
        return self.bundle.costs.loss(read_bar(bar), action_from, action_to)

    def reset(self) -> None:
        """Forget every bar, as if just loaded."""
        self._start()

    def state(self) -> JsonDict:
        """All that the next decisions depend on, as plain JSON values; `restore` goes on to the last bit."""
        return {
            "version": STATE_VERSION,
            "bundle": self.bundle.hash,
            "stream": self._stream.state(),
            "horizon": self._run.state(),
            "window": self._window.tolist(),
            "decoder": [part[0].tolist() for part in self._decoder],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` gave, in this or another process, in the middle of a horizon too.

        Raises:
            ArtifactError: it is not a state, or one of another bundle; the policy then stays as it was.
        """
        try:
            if state["version"] != STATE_VERSION:
                raise ValueError(f"it has version {state['version']}, this version reads {STATE_VERSION}")
            if state["bundle"] != self.bundle.hash:
                raise ValueError(f"it belongs to bundle {state['bundle'][:12]}, this is {self.bundle.hash[:12]}")
            window = _numbers(state["window"], self._window.shape)
            shape = self._decoder[0].shape
            hidden, cell = (_numbers(part, shape[1:])[np.newaxis] for part in state["decoder"])
            stream, run = state["stream"], state["horizon"]
            rules = (self.manifest["feature_scale"], self.manifest["bar_minutes"])
            if (stream["scale"], stream["bar_minutes"]) != rules:
                raise ValueError(
                    f"its features are {stream['scale']} over {stream['bar_minutes']} minutes, not {rules}"
                )
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"this is not a state of this policy ({error})") from error
        restored = FeatureStream.restore(stream), HorizonRun.restore(run)
        self._stream, self._run = restored
        self._window[:] = window
        self._decoder = hidden, cell

    def _start(self) -> None:
        self._stream = FeatureStream(
            scale=self.manifest["feature_scale"], bar_minutes=int(self.manifest["bar_minutes"])
        )
        self._forget()

    def _forget(self) -> None:
        """A gap: no horizon is open, nothing is held and no earlier row is looked back at."""
        self._run = HorizonRun()
        self._window[:] = 0.0
        self._decoder = self.graphs.initial_state(1)

    def _decide(self, bar: SingleBar) -> Decision:
        graphs, mark = self.graphs, float(bar.mid[0])
        if self._run.is_over(self._horizon_bars):
            code = int(graphs.code_logits(self._market(graphs.selector_bars))[0].argmax())
            self._run = self._run.following(code, settles=self._settles)
            self._decoder = graphs.initial_state(1)
        run = self._run
        run.realise(mark, max_position=self.bundle.costs.max_position, delay=self._delay)
        logits, self._decoder = graphs.action_logits(
            self._window[-1:], np.array([run.code], dtype=np.int64), self._decoder
        )
        base = run.decode(logits[0].tolist(), self._decoding)
        action, overridden = run.choose(base, self._override, self._override_logits if graphs.refines else None)
        change = run.executed(base, delay=self._delay) if graphs.refines else None
        tau = run.tau
        run.close(base, action, 0.0 if change is None else self.bundle.costs.loss(bar, *change))
        return Decision(bar.timestamp, action, base, run.code, tau, overridden, mark)

    def _override_logits(self, base: int) -> list[float]:
        run = self._run
        logits = self.graphs.override_logits(
            self._market(self.graphs.refiner_bars),
            np.array([run.code], dtype=np.int64),
            np.array([base], dtype=np.int64),
            np.array([run.realised_percent()], dtype=np.float32),
            np.array([(self._horizon_bars - run.tau) / self._horizon_bars], dtype=np.float32),
        )
        values: list[float] = logits[0].tolist()
        return values

    def _market(self, bars: int) -> StateArray:
        """What a graph over the last L bars reads: float32 (1, F), or (1, L, F) for more than one."""
        return self._window[-1:] if bars == 1 else self._window[np.newaxis, -bars:]


def _numbers(values: Any, shape: tuple[int, ...]) -> StateArray:
    found = np.asarray(values, dtype=np.float32)
    if found.shape != shape or not np.isfinite(found).all():
        raise ValueError(f"an array has shape {found.shape} or is not finite, expected {shape}")
    return found
