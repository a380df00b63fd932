"""The baselines by name: what each is called, and where it is fitted and read.

Learners import their libraries only when one is asked for.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from archetype_dagster.baselines.strategy import Fit, Load, Strategy
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.errors import SettingsError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.settings import BaselineSettings
from archetype_dagster.settings.baseline_names import BASELINES, Baseline
from archetype_dagster.types import Progress

__all__ = ["BASELINES", "Baseline", "fit_baseline", "load_baseline"]


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
