"""The baselines by name: what each is called, and where it is fitted and read.

Learners import their libraries only when one is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch

from archetype_dagster.baselines.strategy import Fit, Load, Strategy
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.errors import SettingsError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.settings import BaselineSettings
from archetype_dagster.types import Progress


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


def fit_baseline(
    name: str,
    train: MarketDataset,
    validation: MarketDataset,
    settings: BaselineSettings,
    *,
    seed: int,
    device: torch.device,
    resume: ResumePoint,
    progress: Progress,
) -> Strategy:
    """Fit one baseline: train it, or choose a rule's constants; the test split is never seen.

    Args:
        name: key of `BASELINES`.
        train: training split.
        validation: validation split, on which the best weights or constants are chosen.
        settings: budgets, networks and constants.
        seed: seed of the run.
        device: where to train.
        resume: where a learner's state is saved after each validation; after a kill the same call ends with the
            same weights, bit for bit. Rules leave it alone.
        progress: told the steps done, with metrics.

    Raises:
        SettingsError: unknown name.
        MarketDataError: a split that cannot be traded, or lacks the features a rule reads.
        ArchetypeError: the training diverged.
    """
    fit, _ = _implementation(name)
    return fit(train, validation, settings, seed=seed, device=device, resume=resume, progress=progress)


def load_baseline(name: str, directory: Path) -> Strategy:
    """The baseline that `Strategy.save` wrote.

    Raises:
        SettingsError: unknown name.
        ArtifactError: a file is missing, damaged or of another baseline.
    """
    _, load = _implementation(name)
    return load(directory)


def _implementation(name: str) -> tuple[Fit, Load]:
    match name:
        case "clstm_ppo" | "ppo" | "cdqnrp" | "dqn":
            from archetype_dagster.baselines.networks import LearnedStrategy
            from archetype_dagster.baselines.sb3_learners import fit_learner

            return partial(fit_learner, name), partial(LearnedStrategy.load, name)
        case "earnhft":
            from archetype_dagster.baselines.earnhft import EarnHft, fit_earnhft

            return fit_earnhft, EarnHft.load
        case "macrohft":
            from archetype_dagster.baselines.macrohft import MacroHft, fit_macrohft

            return fit_macrohft, MacroHft.load
        case "macd" | "imbalance_volume" | "buy_and_hold" | "random" | "always_flat":
            from archetype_dagster.baselines.rules import RULES, fit_rule

            return partial(fit_rule, name), RULES[name].load
    raise SettingsError(f"unknown baseline {name!r}; choose from {', '.join(BASELINES)}")
