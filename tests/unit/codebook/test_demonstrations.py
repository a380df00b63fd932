from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from archetype_dagster.codebook.demonstrations import Demonstrations, hold_out_latest
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.planning.trajectories import Trajectories

CPU = torch.device("cpu")


@pytest.mark.parametrize("delay", [0, 2])
def test_a_batch_holds_the_horizons_and_their_rewards_over_the_first_notional(
    market: Callable[..., MarketDataset], plan: Callable[..., Trajectories], delay: int
) -> None:
    dataset = market(delay=delay)
    trajectories = plan(dataset, count=20)
    data = Demonstrations.of(dataset, trajectories, validation_fraction=0.0, device=CPU)
    batch = data.batch(np.array([3, 7]))
    for row, number in enumerate((3, 7)):
        start = trajectories.starts[number]
        np.testing.assert_array_equal(batch.states[row], dataset.states[start : start + dataset.horizon_bars])
        np.testing.assert_array_equal(batch.actions[row], trajectories.actions[number])
        notional = dataset.max_position * dataset.mark[start + delay]
        np.testing.assert_allclose(batch.rewards[row], trajectories.rewards[number] / notional, rtol=1e-6)
    assert batch.actions.dtype == torch.int64
    assert batch.rewards.dtype == torch.float32


@given(
    starts=st.lists(st.integers(0, 400), min_size=1, max_size=60).map(sorted),
    fraction=st.floats(0.0, 0.9),
    reach=st.integers(1, 20),
)
def test_held_out_horizons_share_no_row_with_those_learnt_from(starts: list[int], fraction: float, reach: int) -> None:
    rows = np.array(starts, dtype=np.int64)
    count = int(fraction * len(rows))
    if count and rows[0] + reach >= rows[-count]:
        with pytest.raises(ValueError, match="lower it, 0 holds out nothing"):
            hold_out_latest(rows, fraction, reach=reach)
        return
    training, held = hold_out_latest(rows, fraction, reach=reach)
    assert len(held) == int(fraction * len(rows))
    if len(held):
        assert (rows[training] + reach).max() < rows[held].min()
        assert rows[held].min() >= np.sort(rows)[-len(held)]
    else:
        assert len(training) == len(rows)


def test_demonstrations_of_another_horizon_are_refused(
    market: Callable[..., MarketDataset], plan: Callable[..., Trajectories]
) -> None:
    dataset = market()
    trajectories = plan(dataset, count=20)
    cut = Trajectories(
        trajectories.starts, trajectories.actions[:, :-1], trajectories.rewards[:, :-1], trajectories.timestamps
    )
    with pytest.raises(ValueError, match="trajectories have horizon 7, the dataset has 8"):
        Demonstrations.of(dataset, cut, validation_fraction=0.0, device=CPU)
    none = Trajectories(*(column[:0] for column in vars(trajectories).values()))
    with pytest.raises(ValueError, match="at least one trajectory, got 0"):
        Demonstrations.of(dataset, none, validation_fraction=0.0, device=CPU)
