"""What the trainers call the parameters of the default space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_SB3: Final = {"lr": "learning_rate", "clip_param": "clip_range", "entropy_coeff": "ent_coef"}
_CLEANRL: Final = {"lr": "learning_rate", "clip_param": "clip_range", "entropy_coeff": "entropy_weight"}


def sb3_keywords(params: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of Stable-Baselines3's PPO for `params`; a name that is no default one stays as it is.

    Raises:
        ValueError: two parameters that mean the same argument.
    """
    return _renamed(params, _SB3)


def cleanrl_settings(params: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `CleanRlSettings` for `params`; a name that is no default one stays as it is.

    Raises:
        ValueError: two parameters that mean the same field.
    """
    return _renamed(params, _CLEANRL)


def _renamed(params: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    found = {names.get(name, name): value for name, value in params.items()}
    if len(found) != len(params):
        raise ValueError(f"each argument must be given once, got {sorted(params)}")
    return found
