"""DQN, PPO, CLSTM-PPO and CDQNRP: trained by Stable-Baselines3, kept as the greedy network alone."""

from __future__ import annotations

import polars as pl
import torch

from archetype_dagster.baselines.networks import LearnedStrategy, PolicyNetwork, greedy_actions
from archetype_dagster.baselines.sb3_agents import make_agent
from archetype_dagster.baselines.sb3_training import VALIDATION_SCORE, MarketTask
from archetype_dagster.baselines.strategy import mean_reward
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.envs import BatchedTradingEnv, reward_table
from archetype_dagster.envs.sb3 import TradingVecEnv
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.policies.sb3_blocks import global_streams, train_in_blocks
from archetype_dagster.seeding import derive_seed, numpy_generator
from archetype_dagster.settings import BaselineSettings
from archetype_dagster.types import Progress


def fit_learner(
    name: str,
    train: MarketDataset,
    validation: MarketDataset,
    settings: BaselineSettings,
    *,
    seed: int,
    device: torch.device,
    resume: ResumePoint,
    progress: Progress,
) -> LearnedStrategy:
    """Train the learner called `name` on random episodes of the training split; see `fit_baseline`.

    The weights kept are those whose greedy roll-out over the whole validation split, position carried, has the
    highest mean reward. Returns the strategy on the CPU.
    """
    recurrent = settings.recurrent if name == "clstm_ppo" else None
    lookback = None if recurrent is None else recurrent.lookback_bars
    core = BatchedTradingEnv(
        train,
        num_envs=settings.num_envs,
        episode_bars=settings.episode_bars,
        generator=numpy_generator(seed, name, "starts"),
    )
    env = TradingVecEnv(core, lookback)
    watched = reward_table(validation)
    with global_streams(device):
        torch.manual_seed(derive_seed(seed, name, "initialisation"))
        best = PolicyNetwork(
            train.num_features, settings.hidden_sizes, lookback, None if recurrent is None else recurrent.hidden_size
        )
        best.to(device).eval()
        agent = make_agent(name, env, settings, seed=seed, device=device)
        task = MarketTask(
            name,
            env,
            best,
            lambda network: mean_reward(greedy_actions(network, validation), validation, watched),
            seed,
        )
        history = train_in_blocks(
            task,
            agent,
            total_steps=settings.total_steps,
            evaluations=settings.evaluations,
            seed=seed,
            resume=resume,
            progress=progress,
        )
    schema = {"steps": pl.Int64, VALIDATION_SCORE: pl.Float64, "loss": pl.Float64}
    return LearnedStrategy(name, best.cpu().requires_grad_(False), pl.DataFrame(history, schema=schema))
