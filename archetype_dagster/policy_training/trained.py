"""A trained policy with all that it needs and all that was found, as plain files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import numpy as np
import polars as pl
from pydantic import ValidationError
from stable_baselines3.common.policies import BasePolicy

from archetype_dagster.artifacts import read_json, read_table, write_json
from archetype_dagster.envs import HistoryEnv
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.policies import CleanRLAdapter, load_policy
from archetype_dagster.policy_training.agents import sb3_adapter
from archetype_dagster.policy_training.evaluation import Evaluation
from archetype_dagster.policy_training.tasks import scaled
from archetype_dagster.rl.network_files import HISTORY_FILE
from archetype_dagster.settings.policy_specs import PolicySpec
from archetype_dagster.types import StateArray

POLICY_FOLDER: Final = "policy"
SPEC_FILE: Final = "spec.json"
SCALER_FILE: Final = "scaler.json"
EPISODES_FILE: Final = "episodes.parquet"
DECISIONS_FILE: Final = "decisions.parquet"
EVALUATION_FILE: Final = "evaluation.json"


@dataclass(frozen=True)
class TrainedPolicy:
    """What a specification was trained to.

    Attributes:
        spec: the specification.
        policy: its best weights, on the CPU; reads scaled observations.
        scaler: of a bar's numbers; None where they are not scaled.
        history: a row for each point of the training.
        evaluation: the held-out window.
    """

    spec: PolicySpec
    policy: BasePolicy | CleanRLAdapter
    scaler: FeatureScaler | None
    history: pl.DataFrame
    evaluation: Evaluation

    def decide(self, observations: StateArray, _: Sequence[HistoryEnv] = ()) -> np.ndarray:
        """Most likely actions (N, A) for observations (N, L F) as the environment shows them."""
        return decisions(self.policy, self.scaler, observations)

    def save(self, directory: Path) -> None:
        """Write the policy's folder, its scaler, the specification, the history and the evaluation."""
        if isinstance(self.policy, CleanRLAdapter):
            self.policy.save(directory / POLICY_FOLDER)
        else:
            sb3_adapter(self.spec).save_policy(self.policy, directory / POLICY_FOLDER)
        if self.scaler is not None:
            self.scaler.save(directory / SCALER_FILE)
        write_json(directory / SPEC_FILE, self.spec.model_dump(mode="json"))
        self.history.write_parquet(directory / HISTORY_FILE)
        self.evaluation.episodes.write_parquet(directory / EPISODES_FILE)
        self.evaluation.decisions.write_parquet(directory / DECISIONS_FILE)
        write_json(directory / EVALUATION_FILE, self.evaluation.summary)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """What `save` wrote.

        Raises:
            ArtifactError: a file is missing, damaged or of another kind.
        """
        try:
            spec = PolicySpec.model_validate(read_json(directory / SPEC_FILE))
        except ValidationError as error:
            raise ArtifactError(f"{directory / SPEC_FILE} is not a specification of this version: {error}") from error
        policy = load_policy(directory / POLICY_FOLDER)
        if not isinstance(policy, BasePolicy | CleanRLAdapter):
            raise ArtifactError(
                f"{directory / POLICY_FOLDER} holds a {type(policy).__name__}, not a policy of a specification"
            )
        evaluation = Evaluation(
            read_table(directory / EPISODES_FILE),
            read_table(directory / DECISIONS_FILE),
            read_json(directory / EVALUATION_FILE),
        )
        scaler = None if spec.scaling is None else FeatureScaler.load(directory / SCALER_FILE)
        return cls(spec, policy, scaler, read_table(directory / HISTORY_FILE), evaluation)


def decisions(
    policy: BasePolicy | CleanRLAdapter, scaler: FeatureScaler | None, observations: StateArray
) -> np.ndarray:
    """Most likely actions (N, A) of a policy for observations (N, L F) that are not scaled yet."""
    actions, _ = policy.predict(scaled(scaler, observations), deterministic=True)
    return np.asarray(actions)
