"""PPO in one file over any backbone, in the style of CleanRL: collect, advantages, minibatches, once more.

Observations are whole windows and a backbone starts each from nothing, so no state of one episode reaches the next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from torch import nn

from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.errors import ArtifactError, SettingsError
from archetype_dagster.policies.actor_critic import ActorCritic
from archetype_dagster.policies.course import Course
from archetype_dagster.policies.saved import read_policy, without_pretraining, write_policy
from archetype_dagster.rl.ppo import clipped_surrogate, generalised_advantages, value_loss
from archetype_dagster.seeding import derive_seed, seeded_initialisation, torch_generator
from archetype_dagster.settings.policies import CleanRlSettings
from archetype_dagster.types import NoProgress, Progress

BRIDGE: Final = "cleanrl"


class CleanRLAdapter:
    """Trains an `ActorCritic` on a Gymnasium vector environment and decides with it.

    Args:
        observation_space: of one copy: Box (L, F) or flat (L F,), oldest row first.
        action_space: of one copy: Discrete or a Box (A,).
        settings: `CleanRlSettings`, or a mapping of them.
        seed: seed from which weights, draws and dropout are derived.
        device: where it trains.

    Raises:
        SettingsError: an unknown setting, a value out of range, or what the network refuses.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        settings: CleanRlSettings | Mapping[str, Any],
        *,
        seed: int,
        device: torch.device | str = "cpu",
    ) -> None:
        given = settings if isinstance(settings, Mapping) else settings.model_dump()
        self.settings = CleanRlSettings.checked(dict(given), {}, "CleanRL settings")
        self.observation_space, self.action_space = observation_space, action_space
        self.seed, self.device = seed, torch.device(device)
        with seeded_initialisation(seed, BRIDGE, "initialisation"):
            self.network = ActorCritic(observation_space, action_space, self.settings).to(self.device)

    def learn(
        self,
        envs: VectorEnv[Any, Any, Any],
        progress: Progress | None = None,
        *,
        judge: Callable[[], float] | None = None,
        evaluations: int = 1,
        resume: ResumePoint | None = None,
    ) -> list[dict[str, Any]]:
        """Train for `total_steps`, rounded up to whole rollouts; call it once.

        A truncated episode goes on in truth, so its last step, like the last of a rollout, is also paid the discounted
        value of the observation that follows; a terminated one is not.

        Args:
            envs: copies that restart in the step that ends an episode (`AutoresetMode.SAME_STEP`).
            progress: told the steps done after each rollout.
            judge: score of the weights as they are; the best of them, the untrained included, are those left at the
                end. New episodes begin after each judgement.
            evaluations: judgements spread over the training, besides the one before it.
            resume: where the state is saved after each judgement.

        Returns:
            a row for each rollout: `steps`, `reward` (mean per step), `surrogate`, `value_loss`, `entropy`, `clipped`;
            with `judge` one for the untrained weights too, and `score` where the weights were judged.

        Raises:
            SettingsError: copies of other spaces, or that restart in another way.
            ArchetypeError: the weights are no longer finite.
        """
        self._require_fitting(envs)
        settings = self.settings
        rollout = settings.rollout_steps * envs.num_envs
        updates = -(-settings.total_steps // rollout)
        progress = progress or NoProgress()
        progress.start(BRIDGE, updates * rollout)
        optimizer = torch.optim.Adam(self.network.parameters(), lr=settings.learning_rate, eps=1e-5)
        course = Course(self.network, optimizer, judge, {round(updates * n / evaluations) for n in range(evaluations)})
        first = course.begin(resume or ResumePoint(None, ""), progress)
        observations: np.ndarray = np.zeros(0)
        for update in range(first, updates):
            if update == first or course.closes(update):
                names = ("starts",) if update == 0 else ("starts", update)
                observations = envs.reset(seed=derive_seed(self.seed, BRIDGE, *names) % 2**31)[0]
            if settings.anneal_learning_rate:
                optimizer.param_groups[0]["lr"] = settings.learning_rate * (1 - update / updates)
            batch, observations, reward = self._collect(envs, observations, update)
            with seeded_initialisation(self.seed, BRIDGE, "dropout", update):
                metrics = {"reward": reward, **self._improve(batch, optimizer, update)}
            course.close(update + 1, {"steps": (update + 1) * rollout, **metrics}, progress, last=update + 1 == updates)
        course.finish()
        progress.finish()
        return course.record.history

    def predict(
        self,
        observation: Any,
        state: tuple[np.ndarray, ...] | None = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...] | None]:
        """See `Policy.predict`; there is no state, and drawn actions come from torch's global stream."""
        one = np.ndim(observation) == len(self.observation_space.shape or ())
        with torch.no_grad():
            scores = self.network.eval().scores(self._tensor(observation[np.newaxis] if one else observation))
        if not deterministic:
            actions = self.network.sample(scores, torch.default_generator)
        else:
            actions = scores.argmax(-1) if self.network.log_deviation is None else scores
        played = self.network.played(actions)
        return (played[0] if one else played), None

    def to(self, device: torch.device | str) -> Self:
        """Move the network, e.g. back to the CPU after training."""
        self.device = torch.device(device)
        self.network.to(self.device)
        return self

    def save(self, directory: Path) -> None:
        """Write policy.json and policy.safetensors; SettingsError for observations that are no Box."""
        write_policy(
            directory,
            self.network,
            bridge=BRIDGE,
            spec={"seed": self.seed, "settings": self.settings.model_dump(mode="json")},
            observation_space=self.observation_space,
            action_space=self.action_space,
        )

    @classmethod
    def load(cls, directory: Path) -> Self:
        """What `save` wrote, on the CPU; ArtifactError where a file is missing, damaged or of another bridge."""
        saved = read_policy(directory, bridge=BRIDGE)
        try:
            settings = dict(saved.spec["settings"])
            settings["backbone_kwargs"] = without_pretraining(settings["backbone_kwargs"])
            adapter = cls(saved.observation_space, saved.action_space, settings, seed=saved.spec["seed"])
        except (KeyError, SettingsError, TypeError) as error:
            raise ArtifactError(f"{directory} cannot be built again: {error}") from error
        saved.restore(adapter.network)
        adapter.network.eval()
        return adapter

    def _require_fitting(self, envs: VectorEnv[Any, Any, Any]) -> None:
        if envs.metadata.get("autoreset_mode") != AutoresetMode.SAME_STEP:
            raise SettingsError(
                "the environment must restart episodes in the step that ends them (AutoresetMode.SAME_STEP), got "
                f"autoreset_mode={envs.metadata.get('autoreset_mode')}"
            )
        spaces_given = (envs.single_observation_space, envs.single_action_space)
        if spaces_given != (self.observation_space, self.action_space):
            raise SettingsError(f"the environment's spaces must be the policy's, got {spaces_given}")

    def _collect(
        self, envs: VectorEnv[Any, Any, Any], observations: np.ndarray, update: int
    ) -> tuple[tuple[torch.Tensor, ...], np.ndarray, float]:
        """One rollout: (observations, actions, log-probabilities, advantages, value targets), each (N T, ...)."""
        settings = self.settings
        generator = torch_generator(self.seed, BRIDGE, "actions", update)
        taken: list[tuple[torch.Tensor, ...]] = []
        shape = (envs.num_envs, settings.rollout_steps)
        rewards, ends, earned = np.zeros(shape, np.float32), np.zeros(shape, np.bool_), 0.0
        self.network.eval()
        for step in range(settings.rollout_steps):
            tensor = self._tensor(observations)
            with torch.no_grad():
                scores, value = self.network(tensor)
                action = self.network.sample(scores, generator).to(self.device)
                log_prob = self.network.judge(scores, action)[0]
            taken.append((tensor, action, log_prob, value))
            observations, reward, terminated, truncated, infos = envs.step(self.network.played(action))
            earned += float(reward.mean())
            rewards[:, step], ends[:, step] = reward, terminated | truncated
            cut = np.flatnonzero(truncated & ~terminated)
            if len(cut):
                rewards[cut, step] += settings.gamma * self._values(np.stack([infos["final_obs"][row] for row in cut]))
        rewards[:, -1] += settings.gamma * self._values(observations) * ~ends[:, -1]
        ends[:, -1] = True
        seen, actions, log_probs, values = (torch.stack(column, dim=1) for column in zip(*taken, strict=True))
        advantages = generalised_advantages(
            torch.as_tensor(rewards, device=self.device),
            values,
            torch.as_tensor(ends, device=self.device),
            gamma=settings.gamma,
            gae_lambda=settings.gae_lambda,
        )
        columns = (seen, actions, log_probs, advantages, advantages + values)
        return tuple(column.flatten(0, 1) for column in columns), observations, earned / settings.rollout_steps

    def _improve(
        self, batch: tuple[torch.Tensor, ...], optimizer: torch.optim.Optimizer, update: int
    ) -> dict[str, float]:
        """Passes over the rollout in minibatches; the mean of each part of the loss."""
        settings = self.settings
        generator = torch_generator(self.seed, BRIDGE, "minibatches", update)
        totals: dict[str, torch.Tensor] = {}
        self.network.train()
        for _ in range(settings.epochs):
            # Chunks could be fewer, and the last of them a single step, whose advantages have no deviation.
            for rows in torch.randperm(len(batch[0]), generator=generator).tensor_split(settings.minibatches):
                observations, actions, old_log_probs, advantages, targets = (column[rows] for column in batch)
                if settings.normalise_advantages:
                    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
                scores, values = self.network(observations)
                log_probs, uncertainty = self.network.judge(scores, actions)
                gains = clipped_surrogate(log_probs, old_log_probs, advantages, clip_range=settings.clip_range)
                parts = {
                    "surrogate": gains.mean(),
                    "value_loss": value_loss(values, targets, torch.ones_like(values)),
                    "entropy": uncertainty.mean(),
                    "clipped": (((log_probs - old_log_probs).exp() - 1).abs() > settings.clip_range).float().mean(),
                }
                objective = parts["surrogate"] + settings.entropy_weight * parts["entropy"]
                loss = settings.value_weight * parts["value_loss"] - objective
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                nn.utils.clip_grad_norm_(self.network.parameters(), settings.max_gradient_norm)
                optimizer.step()
                for name, part in parts.items():
                    totals[name] = totals.get(name, torch.zeros_like(part)) + part.detach()
        return {name: float(total) / (settings.epochs * settings.minibatches) for name, total in totals.items()}

    def _values(self, observations: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            values: np.ndarray = self.network(self._tensor(observations))[1].cpu().numpy()
        return values

    def _tensor(self, observations: Any) -> torch.Tensor:
        # A copy: vector environments may write the next observations into the same array.
        return torch.tensor(np.asarray(observations), dtype=torch.float32, device=self.device)
