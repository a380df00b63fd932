"""Hyper-parameter sweeps: search spaces, and a sweeper whose trials run in processes of their own."""

from archetype_dagster.sweeps.names import cleanrl_settings, sb3_keywords
from archetype_dagster.sweeps.result import SweepResult
from archetype_dagster.sweeps.space import DEFAULT_SPACE, SearchSpace, SearchSpaceDef
from archetype_dagster.sweeps.sweeper import RLHPOSweeper
from archetype_dagster.sweeps.tensorboard import make_tb_log_dir

__all__ = [
    "DEFAULT_SPACE",
    "RLHPOSweeper",
    "SearchSpace",
    "SearchSpaceDef",
    "SweepResult",
    "cleanrl_settings",
    "make_tb_log_dir",
    "sb3_keywords",
]
