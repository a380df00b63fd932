"""Backbones that read windows of bars, and the bridges that train policies over them.

The bridge to Stable-Baselines3 is loaded when it is first asked for: importing that library takes seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from archetype_dagster.policies.autoencoder import AutoencoderBackbone
from archetype_dagster.policies.backbone import Backbone
from archetype_dagster.policies.patches import PatchTSTBackbone
from archetype_dagster.policies.pretraining import pretrain_autoencoder
from archetype_dagster.policies.recurrent import RecurrentBackbone
from archetype_dagster.policies.registry import (
    backbone_aliases,
    backbone_class,
    build_backbone,
    build_backbone_from_alias,
    register_backbone,
)
from archetype_dagster.policies.transformer import TransformerBackbone

if TYPE_CHECKING:
    from archetype_dagster.policies.actor_critic import ActorCritic
    from archetype_dagster.policies.cleanrl import CleanRLAdapter
    from archetype_dagster.policies.features import BackboneFeaturesExtractor
    from archetype_dagster.policies.greedy import GreedyPolicy
    from archetype_dagster.policies.loading import load_policy
    from archetype_dagster.policies.saved import Policy
    from archetype_dagster.policies.sb3 import SB3Adapter

__all__ = [
    "ActorCritic",
    "AutoencoderBackbone",
    "Backbone",
    "BackboneFeaturesExtractor",
    "CleanRLAdapter",
    "GreedyPolicy",
    "PatchTSTBackbone",
    "Policy",
    "RecurrentBackbone",
    "SB3Adapter",
    "TransformerBackbone",
    "backbone_aliases",
    "backbone_class",
    "build_backbone",
    "build_backbone_from_alias",
    "load_policy",
    "pretrain_autoencoder",
    "register_backbone",
]

_BRIDGES = {
    "ActorCritic": "actor_critic",
    "BackboneFeaturesExtractor": "features",
    "CleanRLAdapter": "cleanrl",
    "GreedyPolicy": "greedy",
    "Policy": "saved",
    "SB3Adapter": "sb3",
    "load_policy": "loading",
}


def __getattr__(name: str) -> Any:
    if name in _BRIDGES:
        return getattr(import_module(f"archetype_dagster.policies.{_BRIDGES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
