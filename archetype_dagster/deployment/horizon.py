"""Where a streaming policy stands inside a horizon: the rules of `rules.RULES`, one bar at a time.

The arithmetic, and its order, is that of `backtest.policy.decide`, which works out whole horizons at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from archetype_dagster.errors import ArtifactError
from archetype_dagster.types import FLAT, LONG, SHORT, JsonDict

OverrideLogits = Callable[[int], Sequence[float]]
"""Base action -> logits over [short, nothing, long]."""

_ACTIONS: Final = (SHORT, FLAT, LONG)


@dataclass(slots=True)
class HorizonRun:
    """The open horizon, if there is one, and what is held over its end; every field is a JSON value.

    Attributes:
        code: archetype of the horizon, -1 where none is open.
        held: final action of the last bar; flat after a gap.
        initial: action held before the horizon's first bar.
        base: base actions of the horizon's bars so far.
        override: action of an override that is still in force, None without one.
        override_used: whether the horizon's one override is spent.
        notional: m p_0 in quote units, 0 before the horizon's first execution.
        realised: sum of the base actions' rewards realised so far, quote units.
        loss: execution loss of the base action that executed on the last bar, quote units.
        mark: mark price of the last bar, quote units.
    """

    code: int = -1
    held: int = FLAT
    initial: int = FLAT
    base: list[int] = field(default_factory=list)
    override: int | None = None
    override_used: bool = False
    notional: float = 0.0
    realised: float = 0.0
    loss: float = 0.0
    mark: float = 0.0

    @property
    def tau(self) -> int:
        """Step of the next bar, 0 at the horizon's first."""
        return len(self.base)

    def is_over(self, horizon_bars: int) -> bool:
        """Whether the next bar begins a horizon."""
        return self.code < 0 or len(self.base) >= horizon_bars

    def following(self, code: int, *, settles: bool) -> HorizonRun:
        """The next horizon with the archetype chosen for it; it starts flat where positions are settled."""
        return HorizonRun(code=code, held=self.held, initial=FLAT if settles else self.held)

    def decode(self, scores: Sequence[float], decoding: str) -> int:
        """Base action of this bar from its logits; ties go to the lowest action."""
        previous = self.base[-1] if self.base else FLAT
        if decoding == "single_change" and previous != FLAT:
            return previous
        return max(_ACTIONS, key=scores.__getitem__)

    def realise(self, mark: float, *, max_position: float, delay: int) -> None:
        """Book what this bar's mark says of the base action that was held into it."""
        index = self.tau - 1 - delay
        if index >= 0:
            self.realised += max_position * (self.base[index] - 1.0) * (mark - self.mark) - self.loss
        elif index == -1:
            self.notional = max_position * mark
        self.mark = mark

    def realised_percent(self) -> float:
        """R_arche in percent of m p_0; 0 before anything is realised."""
        return 100 * self.realised / self.notional if self.notional else 0.0

    def executed(self, base: int, *, delay: int) -> tuple[int, int] | None:
        """Change of base action, from and to, that executes on this bar, whose base action is `base`."""
        index = self.tau - delay
        if index < 0:
            return None
        plan = [*self.base, base]
        return (plan[index - 1] if index else self.initial), plan[index]

    def choose(self, base: int, rule: str | None, logits: OverrideLogits | None) -> tuple[int, bool]:
        """Final action of this bar and whether it is an override's (Eq. 6).

        Args:
            base: base action of this bar.
            rule: `step` or `hold`.
            logits: the refiner, asked only where an override may act; None without one.
        """
        if base != (self.base[-1] if self.base else self.initial):
            self.override = None
        elif logits is not None and not self.override_used:
            target = _preferred(base, logits(base))
            if target is not None:
                self.override_used = True
                self.override = target if rule == "hold" else None
                return target, True
        return (base, False) if self.override is None else (self.override, True)

    def close(self, base: int, action: int, loss: float) -> None:
        """End this bar: its base and final action, and the loss of the base action that executed on it."""
        self.base.append(base)
        self.held = action
        self.loss = loss

    def state(self) -> JsonDict:
        """All fields by name."""
        return asdict(self)

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Self:
        """The run that `state` describes.

        Raises:
            ArtifactError: a key is missing or superfluous, or a value is not what `state` writes.
        """
        try:
            run = cls(**state)
            actions = [run.held, run.initial, *run.base, *([] if run.override is None else [run.override])]
            numbers = [run.notional, run.realised, run.loss, run.mark]
            sound = (
                isinstance(run.code, int)
                and all(action in _ACTIONS for action in actions)
                and all(isinstance(number, float) for number in numbers)
                and isinstance(run.override_used, bool)
            )
        except TypeError as error:
            raise ArtifactError(f"this is not the state of a horizon ({error})") from error
        if not sound:
            raise ArtifactError(f"this is not the state of a horizon: {dict(state)}")
        run.base = list(run.base)
        return run


def _preferred(base: int, logits: Sequence[float]) -> int | None:
    """The other direction whose logit exceeds that of doing nothing; ties go to nothing, then to short."""
    best, best_score = None, logits[1]
    for action in (SHORT, LONG):
        if action != base and logits[action] > best_score:
            best, best_score = action, logits[action]
    return best
