"""The baselines by name, and what each is called: what the graph is drawn from before anything is fitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Baseline:
    """A strategy to compare with.

    Attributes:
        label: name in tables.
        is_learner: it is trained, so its seed and its budget matter.
        in_paper: a row of the paper's Table 1.
    """

    label: str
    is_learner: bool
    in_paper: bool = True


# In the order of the paper's table, what it lacks after it.
BASELINES: Final[Mapping[str, Baseline]] = {
    "clstm_ppo": Baseline("CLSTM-PPO", is_learner=True),
    "ppo": Baseline("PPO", is_learner=True),
    "cdqnrp": Baseline("CDQNRP", is_learner=True),
    "dqn": Baseline("DQN", is_learner=True),
    "macd": Baseline("MACD", is_learner=False),
    "imbalance_volume": Baseline("IV", is_learner=False),
    "earnhft": Baseline("EarnHFT", is_learner=True),
    "macrohft": Baseline("MacroHFT", is_learner=True),
    "buy_and_hold": Baseline("Buy and hold", is_learner=False, in_paper=False),
    "random": Baseline("Random", is_learner=False, in_paper=False),
    "always_flat": Baseline("Always flat", is_learner=False, in_paper=False),
}
