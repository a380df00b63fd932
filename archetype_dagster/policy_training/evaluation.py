"""A policy on the held-out window beside the built-in ones and random actions, on the same episodes and draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from archetype_dagster.backtest.statistics.resampling import resampled
from archetype_dagster.envs import HistoryEnv
from archetype_dagster.policy_training.play import (
    RANDOM,
    Decide,
    Played,
    built_in_decisions,
    episode_length,
    even_starts,
    play,
    random_decisions,
)
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.settings.policy_specs import HeldOutSettings, PolicySpec
from archetype_dagster.types import FloatArray, IndexArray, JsonDict

TRAINED: Final = "trained"
_FACTS: Final = ("episode", "began", "ended")


@dataclass(frozen=True)
class Evaluation:
    """How the policies fared on the held-out window.

    Attributes:
        episodes: `Played.episodes` of all policies, with the column `policy` first.
        decisions: `Played.decisions` of the trained one.
        summary: by policy the means over its episodes and `reward_interval` (low, estimate, high); of the others also
            `lead`, that of the trained policy's reward over theirs, episode by episode, and `ahead`, the share of
            resamples in which it is above zero.
    """

    episodes: pl.DataFrame
    decisions: pl.DataFrame
    summary: JsonDict


def evaluate(decide: Decide, env: HistoryEnv, spec: PolicySpec) -> Evaluation:
    """Play the specification's episodes of the held-out window with every policy.

    Args:
        decide: the trained policy.
        env: of the held-out window.
        spec: the specification.
    """
    starts = even_starts(env, spec.environment, spec.evaluation.episodes)
    deciders = {TRAINED: decide, **{name: built_in_decisions(name) for name in env.baselines}}
    deciders[RANDOM] = random_decisions(env, spec.seed)
    played = {name: play(decider, env, spec, starts) for name, decider in deciders.items()}
    episodes = pl.concat([one.episodes.select(pl.lit(name).alias("policy"), pl.all()) for name, one in played.items()])
    length = max(one.episodes["bars"].to_numpy().max() for one in played.values())
    block = _episodes_that_overlap(starts, episode_length(spec.environment) or int(length))
    return Evaluation(episodes, played[TRAINED].decisions, _summary(played, spec.evaluation, block, spec.seed))


def _episodes_that_overlap(starts: IndexArray, length: int) -> float:
    """Neighbouring episodes that share bars, the mean length of a block that is resampled; 1 where none do."""
    gap = float(np.diff(starts).mean()) if len(starts) > 1 else float(length)
    return max(1.0, length / max(gap, 1.0))


def _summary(played: dict[str, Played], settings: HeldOutSettings, block: float, seed: int) -> JsonDict:
    rewards = np.stack([one.episodes["reward"].to_numpy() for one in played.values()])
    series = np.concatenate([rewards, rewards[:1] - rewards])
    rng = numpy_generator(seed, "evaluation", "bootstrap")
    drawn = [
        chunk.mean(axis=-1) for chunk in resampled(series, samples=settings.bootstrap_samples, block=block, rng=rng)
    ]
    resamples = np.concatenate(drawn, axis=1)
    means, leads = np.split(resamples, 2)
    summary: JsonDict = {}
    for row, (name, one) in enumerate(played.items()):
        facts = one.episodes.drop(_FACTS).mean().row(0, named=True)
        facts["reward_interval"] = _interval(means[row], rewards[row], settings.confidence)
        if name != TRAINED:
            facts["lead"] = _interval(leads[row], rewards[0] - rewards[row], settings.confidence)
            facts["ahead"] = float((leads[row] > 0).mean())
        summary[name] = facts
    return summary


def _interval(resamples: FloatArray, values: FloatArray, confidence: float) -> JsonDict:
    low, high = np.quantile(resamples, [(1 - confidence) / 2, (1 + confidence) / 2])
    return {"low": float(low), "estimate": float(values.mean()), "high": float(high)}
