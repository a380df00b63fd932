import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from archetype_dagster.codebook import Codebook
from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning import horizon_rewards, plan_single_trade
from archetype_dagster.selection.returns_table import ArchetypeReturns, build_archetype_returns
from archetype_dagster.settings import PlannerSettings, SelectionSettings
from archetype_dagster.types import NoProgress

CPU = torch.device("cpu")
PLANNER = PlannerSettings(horizon_bars=6)
Split = Callable[..., MarketDataset]
MakeCodebook = Callable[..., Codebook]


def build(train: MarketDataset, validation: MarketDataset, codebook: Codebook, stride: int = 5) -> ArchetypeReturns:
    settings = SelectionSettings(stride_bars=stride)
    return build_archetype_returns(train, validation, codebook, PLANNER, settings, device=CPU, progress=NoProgress())


@pytest.mark.parametrize("delay", [0, 2])
def test_every_return_equals_replaying_that_code_alone(
    learnable_split: Split, random_codebook: MakeCodebook, delay: int
) -> None:
    train, codebook = learnable_split(delay=delay), random_codebook()
    table = build(train, learnable_split(seed=1, delay=delay), codebook).train
    assert np.array_equal(table.starts, train.horizon_starts(5))
    assert len(np.unique(table.returns.round(9), axis=1)) > 1
    for row in (0, 7, len(table) - 1):
        batch = train.horizons(table.starts[row : row + 1])
        for code in range(codebook.num_codes):
            actions, _ = codebook.decode(batch.states, np.array([code]))
            earned = horizon_rewards(actions, batch.mark, batch.costs, max_position=train.max_position).sum()
            expected = 100 * earned / (train.max_position * batch.mark[0, 0])
            assert table.returns[row, code] == pytest.approx(expected, abs=1e-10)


def test_label_is_the_encoders_code_of_the_planned_demonstration(
    learnable_split: Split, random_codebook: MakeCodebook
) -> None:
    train, codebook = learnable_split(), random_codebook()
    for parameter in codebook.encoder.parameters():
        parameter.mul_(5)  # encodings as far apart as the codes
    table = build(train, learnable_split(seed=1), codebook).train
    batch = train.horizons(table.starts)
    plan = plan_single_trade(batch.mark, batch.costs, max_position=train.max_position)
    rewards = horizon_rewards(plan, batch.mark, batch.costs, max_position=train.max_position)
    notional = train.max_position * batch.mark[:, :1]
    np.testing.assert_array_equal(table.labels, codebook.encode(batch.states, plan, rewards / notional))
    assert len(np.unique(table.labels)) > 1


def test_returns_do_not_depend_on_the_chunks_they_are_computed_in(
    learnable_split: Split, random_codebook: MakeCodebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, validation, codebook = learnable_split(), learnable_split(seed=1), random_codebook()
    whole = build(train, validation, codebook)
    monkeypatch.setattr("archetype_dagster.selection.returns_table.CHUNK_STARTS", 7)
    chunked = build(train, validation, codebook)
    np.testing.assert_allclose(chunked.train.returns, whole.train.returns, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(chunked.train.labels, whole.train.labels)


def test_validation_starts_are_consecutive_horizons(learnable_split: Split, random_codebook: MakeCodebook) -> None:
    validation = learnable_split(seed=1)
    table = build(learnable_split(), validation, random_codebook()).validation
    assert np.array_equal(table.starts, validation.horizon_starts(6))


def test_saved_table_reads_back_equal_and_writes_the_same_bytes(
    learnable_split: Split, random_codebook: MakeCodebook, tmp_path: Path
) -> None:
    table = build(learnable_split(), learnable_split(seed=1), random_codebook())
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        table.save(tmp_path / name)
    assert (tmp_path / "a/train.parquet").read_bytes() == (tmp_path / "b/train.parquet").read_bytes()
    loaded = ArchetypeReturns.load(tmp_path / "a")
    for part in ("train", "validation"):
        for field in ("starts", "timestamps", "returns", "labels"):
            before, after = getattr(getattr(table, part), field), getattr(getattr(loaded, part), field)
            assert before.dtype == after.dtype
            np.testing.assert_array_equal(before, after)


def test_a_foreign_or_missing_table_is_refused(tmp_path: Path, learnable_split: Split) -> None:
    with pytest.raises(ArtifactError, match=r"train\.parquet does not exist"):
        ArchetypeReturns.load(tmp_path)
    (tmp_path / "train.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(ArtifactError, match=r"train\.parquet is truncated"):
        ArchetypeReturns.load(tmp_path)


def test_a_table_of_another_dataset_is_refused(learnable_split: Split, random_codebook: MakeCodebook) -> None:
    train = learnable_split()
    table = build(train, learnable_split(seed=1), random_codebook())
    shifted = dataclasses.replace(train, timestamps=train.timestamps + np.timedelta64(10, "m"))
    with pytest.raises(ArtifactError, match="built from another dataset"):
        table.train.check_made_from(shifted)
    with pytest.raises(ArtifactError, match="built from another dataset"):
        table.train.check_made_from(train.rows(slice(0, 50)))


def test_a_split_without_a_whole_horizon_says_what_is_there(
    learnable_split: Split, random_codebook: MakeCodebook
) -> None:
    with pytest.raises(MarketDataError, match="validation split of ETH holds no whole horizon: 5 rows, but 7"):
        build(learnable_split(), learnable_split().rows(slice(0, 5)), random_codebook())
