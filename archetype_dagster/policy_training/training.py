"""From a specification to a trained and judged policy."""

from __future__ import annotations

from pathlib import Path

import torch
from stable_baselines3.common.policies import BasePolicy

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.policies import CleanRLAdapter
from archetype_dagster.policy_training.agents import train_agent
from archetype_dagster.policy_training.evaluation import evaluate
from archetype_dagster.policy_training.play import even_starts, play
from archetype_dagster.policy_training.tasks import Tasks, fit_scaler, training_copies
from archetype_dagster.policy_training.tensorboard import TensorboardProgress
from archetype_dagster.policy_training.trained import TrainedPolicy, decisions
from archetype_dagster.settings.policy_specs import PolicySpec
from archetype_dagster.types import NoProgress, Progress


def train_policy(
    spec: PolicySpec,
    *,
    device: torch.device | str = "cpu",
    resume: ResumePoint | None = None,
    progress: Progress | None = None,
    tensorboard: Path | None = None,
) -> TrainedPolicy:
    """Train on the first window, keep the weights that are best on the second, judge them on the third.

    Killed and called again with the same `resume`, it ends with the same weights to the bit.

    Args:
        spec: the specification.
        device: where networks train.
        resume: where the state is saved after each validation.
        progress: told the steps done and the newest metrics.
        tensorboard: folder of event files with the same metrics.

    Raises:
        SettingsError: what algorithm, backbone or network refuse.
        MarketDataError: prices that cannot be read, or a window without an episode.
        ArchetypeError: the weights are no longer finite.
    """
    tasks = Tasks.of(spec)
    scaler = fit_scaler(tasks.train, spec.scaling, seed=spec.seed)
    starts = even_starts(tasks.validation, spec.environment, spec.validation.episodes)
    even_starts(tasks.evaluation, spec.environment, spec.evaluation.episodes)

    def judge(policy: BasePolicy | CleanRLAdapter) -> float:
        return play(lambda seen, _: decisions(policy, scaler, seen), tasks.validation, spec, starts).mean_reward

    told: Progress = progress or NoProgress()
    if tensorboard is not None:
        told = TensorboardProgress(told, tensorboard)
    policy, history = train_agent(
        spec,
        training_copies(tasks.train, spec, scaler),
        judge,
        device=torch.device(device),
        resume=resume or ResumePoint(None, ""),
        progress=told,
    )
    evaluation = evaluate(lambda seen, _: decisions(policy, scaler, seen), tasks.evaluation, spec)
    return TrainedPolicy(spec, policy, scaler, history, evaluation)
