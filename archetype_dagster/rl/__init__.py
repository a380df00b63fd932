"""Objectives, sampled surrogates and the training loop that Phases II and III share."""

from archetype_dagster.rl.objectives import refinement_objective, selection_objective
from archetype_dagster.rl.ppo import ppo_objective
from archetype_dagster.rl.stopping import masked_log_probabilities, stopping_probabilities
from archetype_dagster.rl.training_loop import TrainingPlan, maximise

__all__ = [
    "TrainingPlan",
    "masked_log_probabilities",
    "maximise",
    "ppo_objective",
    "refinement_objective",
    "selection_objective",
    "stopping_probabilities",
]
