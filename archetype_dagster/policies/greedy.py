"""The deterministic half of a trained policy as one module that can be exported."""

from __future__ import annotations

from typing import Any

import torch
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.dqn.policies import DQNPolicy
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import nn

from archetype_dagster.errors import SettingsError
from archetype_dagster.policies.actor_critic import ActorCritic


class GreedyPolicy(nn.Module):
    """Observation in, action out: the most likely one, inside the action space, with nothing drawn.

    Args:
        policy: of PPO, SAC, TD3 or DQN of Stable-Baselines3, or an `ActorCritic`; it is put into evaluation mode.

    Raises:
        SettingsError: another policy, such as RecurrentPPO's, whose state would be an input of its own.
    """

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        known = (ActorCritic, ActorCriticPolicy, SACPolicy, TD3Policy, DQNPolicy)
        if not isinstance(policy, known) or isinstance(policy, RecurrentActorCriticPolicy):
            raise SettingsError(f"a {type(policy).__name__} cannot be exported; put the memory into a backbone")
        self.policy = policy
        space: spaces.Space[Any] = policy.action_space
        self.discrete = isinstance(space, spaces.Discrete)
        self.first = int(space.start) if isinstance(space, spaces.Discrete) else 0
        # The library squashes into -1..1 and then stretches; elsewhere actions are clipped.
        self.squashed = bool(getattr(policy, "squash_output", False))
        if isinstance(space, spaces.Box):
            self.register_buffer("low", torch.as_tensor(space.low))
            self.register_buffer("high", torch.as_tensor(space.high))
        self.low: torch.Tensor
        self.high: torch.Tensor
        self.eval()

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """float32 (B, ...) -> int64 (B,) of a Discrete space, or float32 (B, ...) of a Box."""
        scores = self._scores(observation.float())
        if self.discrete:
            return scores.argmax(dim=1) + self.first
        actions = scores.reshape(-1, *self.low.shape)
        if self.squashed:
            return self.low + 0.5 * (actions + 1.0) * (self.high - self.low)
        return actions.clamp(self.low, self.high)

    def _scores(self, observation: torch.Tensor) -> torch.Tensor:
        policy: Any = self.policy
        if isinstance(policy, ActorCritic):
            return policy.scores(observation)
        scores: torch.Tensor
        if isinstance(policy, ActorCriticPolicy):
            extractor = policy.features_extractor if policy.share_features_extractor else policy.pi_features_extractor
            scores = policy.action_net(policy.mlp_extractor.forward_actor(extractor(observation)))
        elif isinstance(policy, DQNPolicy):
            scores = policy.q_net.q_net(policy.q_net.features_extractor(observation))
        else:
            features = policy.actor.features_extractor(observation)
            is_sac = isinstance(policy, SACPolicy)
            scores = policy.actor.mu(policy.actor.latent_pi(features) if is_sac else features)
        # TD3's last layer squashes by itself.
        return torch.tanh(scores) if self.squashed and not isinstance(policy, TD3Policy) else scores
