"""Agents of Stable-Baselines3 built from a specification, and their policies as plain files."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from gymnasium import Env, spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv

from archetype_dagster.errors import ArtifactError, SettingsError
from archetype_dagster.policies.classes import ALLOWED, resolve_class
from archetype_dagster.policies.saved import read_policy, without_pretraining, write_policy
from archetype_dagster.seeding import derive_seed
from archetype_dagster.types import JsonDict

BRIDGE: Final = "sb3"
_ALGORITHMS: Final[dict[str, type[BaseAlgorithm]]] = {
    "PPO": PPO,
    "SAC": SAC,
    "TD3": TD3,
    "DQN": DQN,
    "RecurrentPPO": RecurrentPPO,
}
_ACTIONS: Final[dict[str, tuple[type[spaces.Space[Any]], ...]]] = {
    "PPO": (spaces.Box, spaces.Discrete),
    "SAC": (spaces.Box,),
    "TD3": (spaces.Box,),
    "DQN": (spaces.Discrete,),
    "RecurrentPPO": (spaces.Box, spaces.Discrete),
}
# Arguments that `build` gives, or that hold objects no specification can name.
_FIXED: Final = {
    *("policy", "env", "policy_kwargs", "seed", "device", "verbose", "tensorboard_log", "_init_setup_model"),
    *("rollout_buffer_class", "rollout_buffer_kwargs", "replay_buffer_class", "replay_buffer_kwargs"),
}
_FIXED_IN_POLICY: Final = {"observation_space", "action_space", "lr_schedule", "use_sde"}


class SB3Adapter:
    """One algorithm with its policy and arguments, checked when it is made and built on any environment.

    Args:
        algorithm: PPO, SAC, TD3, DQN or RecurrentPPO.
        policy: alias of the library, by default MlpPolicy or MlpLstmPolicy.
        policy_kwargs: the policy's arguments; `features_extractor_class`, `activation_fn` and `optimizer_class` are
            names that `classes.ALLOWED` lists.
        parameters: the algorithm's own arguments; `action_noise` is `{class: NormalActionNoise, sigma: 0.1}`.

    Raises:
        SettingsError: an unknown algorithm, policy, argument or class, with the choices.
    """

    def __init__(
        self,
        algorithm: str,
        policy: str | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
        **parameters: Any,
    ) -> None:
        if algorithm not in _ALGORITHMS:
            raise SettingsError(f"unknown algorithm {algorithm!r}; choose from {', '.join(_ALGORITHMS)}")
        self.algorithm = algorithm
        self._agent_class = _ALGORITHMS[algorithm]
        aliases = self._agent_class.policy_aliases
        self.policy = next(iter(aliases)) if policy is None else policy
        if self.policy not in aliases:
            raise SettingsError(f"unknown policy {policy!r} of {algorithm}; choose from {', '.join(aliases)}")
        self._policy_class = aliases[self.policy]
        self.policy_kwargs = dict(policy_kwargs or {})
        self.parameters = parameters
        _require_known(algorithm, parameters, self._agent_class, _FIXED)
        _require_known(self.policy, self.policy_kwargs, self._policy_class, _FIXED_IN_POLICY)
        self._resolved_policy_kwargs()
        if parameters.get("action_noise") is not None:
            _action_noise(parameters["action_noise"], 1)

    @classmethod
    def from_spec(cls, spec: Mapping[str, Any]) -> Self:
        """An adapter from a mapping such as YAML gives: `algorithm`, and the rest as the constructor takes it.

        Raises:
            SettingsError: no algorithm, or what the constructor refuses.
        """
        if "algorithm" not in spec:
            raise SettingsError(f"a specification must name its algorithm, got the keys {sorted(spec)}")
        return cls(**spec)

    @property
    def spec(self) -> JsonDict:
        """What `from_spec` takes to make the same adapter."""
        named = {"algorithm": self.algorithm, "policy": self.policy, "policy_kwargs": self.policy_kwargs}
        return {**named, **self.parameters}

    def build(
        self,
        env: Env[Any, Any] | VecEnv,
        *,
        seed: int | None,
        device: torch.device | str = "cpu",
        tensorboard_log: Path | None = None,
    ) -> BaseAlgorithm:
        """An untrained agent on `env`.

        Args:
            env: where it trains.
            seed: the library seeds the process's global streams and the environment with it; None leaves both.
            device: where it trains.
            tensorboard_log: folder of the curves.

        Raises:
            SettingsError: the algorithm cannot act in the environment's action space, or a size does not fit.
        """
        if not isinstance(env.action_space, _ACTIONS[self.algorithm]):
            kinds = " or ".join(kind.__name__ for kind in _ACTIONS[self.algorithm])
            raise SettingsError(f"{self.algorithm} needs a {kinds} action space, got {env.action_space}")
        if isinstance(env.action_space, spaces.Discrete) and env.action_space.start != 0:
            raise SettingsError(f"the library counts discrete actions from 0, got {env.action_space}")
        arguments = dict(self.parameters)
        if isinstance(arguments.get("train_freq"), list):
            arguments["train_freq"] = tuple(arguments["train_freq"])
        if arguments.get("action_noise") is not None:
            arguments["action_noise"] = _action_noise(
                arguments["action_noise"], math.prod(env.action_space.shape or ())
            )
        return self._agent_class(
            policy=self.policy,
            env=env,
            policy_kwargs=self._resolved_policy_kwargs(),
            seed=None if seed is None else derive_seed(seed, BRIDGE) % 2**32,
            device=device,
            tensorboard_log=None if tensorboard_log is None else str(tensorboard_log),
            **arguments,
        )

    def save(self, agent: BaseAlgorithm, directory: Path) -> None:
        """Write the policy of an agent of this adapter as policy.json and policy.safetensors.

        Optimisers and replay buffers stay behind: what is saved acts, it does not train on.

        Raises:
            SettingsError: the agent is of another algorithm, or its spaces are neither Box nor Discrete.
        """
        if not isinstance(agent, self._agent_class):
            raise SettingsError(f"the agent must be a {self.algorithm}, got a {type(agent).__name__}")
        self.save_policy(agent.policy, directory)

    def save_policy(self, policy: BasePolicy, directory: Path) -> None:
        """Write a policy that an agent of this adapter has; see `save`."""
        write_policy(
            directory,
            policy,
            bridge=BRIDGE,
            spec=self.spec,
            observation_space=policy.observation_space,
            action_space=policy.action_space,
        )

    @classmethod
    def load(cls, directory: Path) -> BasePolicy:
        """The policy that `save` wrote, on the CPU and in evaluation mode.

        Raises:
            ArtifactError: a file is missing, damaged or of another bridge, or names what this version does not know.
        """
        saved = read_policy(directory, bridge=BRIDGE)
        try:
            adapter = cls.from_spec(saved.spec)
            keywords = adapter._resolved_policy_kwargs()
            extractor = dict(keywords.get("features_extractor_kwargs") or {})
            if "backbone_kwargs" in extractor:
                extractor["backbone_kwargs"] = without_pretraining(extractor["backbone_kwargs"] or {})
                keywords["features_extractor_kwargs"] = extractor
            if adapter.parameters.get("use_sde"):
                keywords["use_sde"] = True
            policy = adapter._policy_class(saved.observation_space, saved.action_space, _no_learning_rate, **keywords)
        except (SettingsError, TypeError) as error:
            raise ArtifactError(f"{directory} cannot be built again: {error}") from error
        saved.restore(policy)
        policy.set_training_mode(False)
        return policy

    def _resolved_policy_kwargs(self) -> dict[str, Any]:
        return {
            name: resolve_class(name, value) if name in ALLOWED else value for name, value in self.policy_kwargs.items()
        }


def _require_known(owner: str, given: Mapping[str, Any], taker: type, fixed: set[str]) -> None:
    choices = [name for name in inspect.signature(taker).parameters if name not in fixed]
    unknown = sorted(set(given) - set(choices))
    if unknown:
        raise SettingsError(f"{owner} takes no {unknown} from a specification; choose from {', '.join(choices)}")


def _action_noise(spec: Any, actions: int) -> ActionNoise:
    """Noise of the given deviation on each of the actions."""
    if not isinstance(spec, Mapping) or set(spec) != {"class", "sigma"}:
        raise SettingsError(f"action_noise must name its class and sigma, got {spec!r}")
    noise: ActionNoise = resolve_class("action_noise", spec["class"])(
        mean=np.zeros(actions), sigma=np.full(actions, float(spec["sigma"]))
    )
    return noise


def _no_learning_rate(_remaining: float) -> float:
    return 0.0
