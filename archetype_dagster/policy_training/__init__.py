"""Policies trained from specifications: prices, environments, training, evaluation and what is kept of them."""

from archetype_dagster.policy_training.evaluation import TRAINED, Evaluation, evaluate
from archetype_dagster.policy_training.prices import load_prices, price_files
from archetype_dagster.policy_training.tasks import Tasks
from archetype_dagster.policy_training.trained import TrainedPolicy
from archetype_dagster.policy_training.training import train_policy

__all__ = ["TRAINED", "Evaluation", "Tasks", "TrainedPolicy", "evaluate", "load_prices", "price_files", "train_policy"]
