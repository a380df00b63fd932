"""The classes that a specification may name, by field: nothing else is ever looked up or imported."""

from __future__ import annotations

from typing import Final

import torch
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from archetype_dagster.errors import SettingsError
from archetype_dagster.policies.features import BackboneFeaturesExtractor

ALLOWED: Final[dict[str, dict[str, type]]] = {
    "features_extractor_class": {
        "archetype_dagster.policies.BackboneFeaturesExtractor": BackboneFeaturesExtractor,
        "stable_baselines3.common.torch_layers.FlattenExtractor": FlattenExtractor,
    },
    "activation_fn": {
        "torch.nn.ELU": nn.ELU,
        "torch.nn.GELU": nn.GELU,
        "torch.nn.LeakyReLU": nn.LeakyReLU,
        "torch.nn.ReLU": nn.ReLU,
        "torch.nn.SiLU": nn.SiLU,
        "torch.nn.Tanh": nn.Tanh,
    },
    "optimizer_class": {
        "torch.optim.Adam": torch.optim.Adam,
        "torch.optim.AdamW": torch.optim.AdamW,
        "torch.optim.RMSprop": torch.optim.RMSprop,
        "torch.optim.SGD": torch.optim.SGD,
    },
    "action_noise": {
        "stable_baselines3.common.noise.NormalActionNoise": NormalActionNoise,
        "stable_baselines3.common.noise.OrnsteinUhlenbeckActionNoise": OrnsteinUhlenbeckActionNoise,
    },
}


def resolve_class(field: str, name: object) -> type:
    """The class that `field` may hold under `name`, its full path or the last part of it.

    Raises:
        SettingsError: the name is not on the field's list.
    """
    for path, found in ALLOWED[field].items():
        if name in (path, path.rpartition(".")[2]):
            return found
    choices = ", ".join(path.rpartition(".")[2] for path in ALLOWED[field])
    raise SettingsError(f"{field} must be one of {choices}, got {name!r}")
