"""How far a training has come, and the score of the best weights it has found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class TrainingRecord:
    """What a training has found so far.

    Attributes:
        validations: validations done, or passed by.
        best_score: score of the weights kept.
        history: a row for each validation, or each rollout.
    """

    validations: int = 0
    best_score: float = -math.inf
    history: list[dict[str, Any]] = field(default_factory=list)

    def improves(self, score: float) -> bool:
        """Whether the score is the best so far, and from now on the one to beat; equal ones are not."""
        if not score > self.best_score:
            return False
        self.best_score = score
        return True
