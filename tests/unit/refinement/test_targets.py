import numpy as np
import pytest

from archetype_dagster.planning import adaptation_returns, apply_override, horizon_rewards, rank_adaptations
from archetype_dagster.planning.adaptations import Adaptations, AdaptationTable
from archetype_dagster.refinement.targets import adaptation_gains, hindsight_targets, refinement_rewards
from archetype_dagster.settings import OverrideRule

POSITION = 2.0


def market(seed: int, batch: int = 6, horizon: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 3, (batch, 3)).repeat([3, 2, 3], axis=1)[:, :horizon].astype(np.int8)
    mark = 100 + rng.normal(size=(batch, horizon + 1)).cumsum(axis=1)
    costs = rng.uniform(0, 0.5, (batch, horizon, 3, 3)) * (1 - np.eye(3))
    return base, mark, costs


def hand_table() -> AdaptationTable:
    """One horizon of two steps, R_base = 1; short at 0 is illegal."""
    returns = np.array([[[-np.inf, 3.0], [0.5, 1.0]]])
    return AdaptationTable(returns, np.isfinite(returns), np.array([1.0]), np.array([[0.4, 0.6]]))


def test_reward_equals_eq_8_by_hand() -> None:
    rewards = refinement_rewards(hand_table(), np.array([50.0]), beta_1=0.5)
    by_hand = np.array([[[0.0, 2.0], [-0.5 + 0.5 * -2.5, 0.0 + 0.5 * -2.0]]])
    np.testing.assert_allclose(rewards, 2 * by_hand, rtol=1e-14)


def test_doing_nothing_is_the_best_adaptation_where_every_override_loses() -> None:
    returns = np.array([[[0.5, 0.25]]])
    table = AdaptationTable(returns, np.isfinite(returns), np.array([1.0]), np.array([[1.0]]))
    rewards = refinement_rewards(table, np.array([100.0]), beta_1=0.5)
    np.testing.assert_allclose(rewards, [[[-0.5 * 1.5, -0.75 * 1.5]]])


@pytest.mark.parametrize("override", ["step", "hold"])
def test_rewards_equal_replaying_every_override(override: OverrideRule) -> None:
    base, mark, costs = market(0)
    table = adaptation_returns(base, mark, costs, max_position=POSITION, override=override)
    notional = POSITION * mark[:, 0]
    rewards = refinement_rewards(table, notional, beta_1=0.7)
    batch, horizon = base.shape

    def replayed(final: np.ndarray) -> np.ndarray:
        earned = horizon_rewards(final, mark, costs, max_position=POSITION).sum(axis=1)
        return 100 * earned / notional

    base_return = replayed(base)
    adapted = np.full((batch, horizon, 2), -np.inf)
    for tau in range(horizon):
        for column, direction in enumerate((-1, 1)):
            final = apply_override(base, np.full(batch, tau), np.full(batch, direction), override)
            before = base[:, tau - 1] if tau else np.ones(batch)
            legal = (base[:, tau] == before) & (base[:, tau] != 1 + direction)
            adapted[:, tau, column] = np.where(legal, replayed(final), -np.inf)
    optimum = np.maximum(adapted.max(axis=(1, 2)), base_return)[:, None, None]
    expected = (adapted - base_return[:, None, None]) + 0.7 * (adapted - optimum)
    assert np.isfinite(expected).any()
    np.testing.assert_allclose(rewards, np.where(np.isfinite(expected), expected, 0.0), rtol=0, atol=1e-10)
    gains = adaptation_gains(table, notional)
    np.testing.assert_allclose(
        gains, np.where(np.isfinite(adapted), adapted - base_return[:, None, None], 0.0), rtol=0, atol=1e-10
    )


def test_targets_are_the_mean_of_the_improving_sequences() -> None:
    best = Adaptations(
        steps=np.array([[2, 0, 2, 1]]),
        directions=np.array([[1, -1, -1, 1]], dtype=np.int8),
        returns=np.array([[5.0, 4.0, 3.0, 0.5]]),
        base_return=np.array([1.0]),
    )
    targets = hindsight_targets(best, 4)
    third = 1 / 3
    expected = [[third, 2 * third, 0], [0, 2 * third, 0], [third, 0, third], [0, 0, 0]]
    np.testing.assert_allclose(targets[0], expected, rtol=1e-6)
    assert targets[0, 2:, 1].tolist() == [0, 0]


def test_target_is_doing_nothing_where_no_adaptation_improves() -> None:
    best = Adaptations(
        steps=np.array([[1, -1]]),
        directions=np.array([[1, 0]], dtype=np.int8),
        returns=np.array([[1.0, -np.inf]]),
        base_return=np.array([1.0]),
    )
    np.testing.assert_array_equal(hindsight_targets(best, 3)[0], [[0, 1, 0]] * 3)


def test_targets_never_ask_for_an_illegal_override() -> None:
    base, mark, costs = market(3, batch=50)
    table = adaptation_returns(base, mark, costs, max_position=POSITION)
    best = rank_adaptations(base, mark, costs, max_position=POSITION)
    targets = hindsight_targets(best, base.shape[1])
    assert targets[..., ::2].any()
    assert not targets[..., ::2][~table.legal].any()
