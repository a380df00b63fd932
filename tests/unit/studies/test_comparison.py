"""Every method is judged on the same test bars at the same costs, and holders hold through bars without features."""

from __future__ import annotations

import numpy as np
import pytest

from archetype_dagster.errors import SettingsError
from archetype_dagster.studies.comparison import POLICY, compare_methods
from archetype_dagster.types import FLAT, LONG


class Fixed:
    """Holds one action on every bar with features."""

    def __init__(self, action):
        self.action = action

    def actions(self, dataset):
        return np.full(len(dataset), self.action, dtype=np.int8)


def compare(strategies, policy, market):
    return compare_methods(market.bars, market.table, strategies, policy, market.settings, "ETH", hindsight=False)


def test_all_accounts_are_of_the_same_bars_and_a_holder_never_lets_go(market, accounts):
    policy = accounts.trade(Fixed(LONG).actions(market.test))
    names = ("macd", "buy_and_hold", "always_flat")
    found = compare({name: Fixed(FLAT) for name in names}, policy, market)
    assert set(found.methods) == {*names, POLICY}
    for method in found.methods.values():
        np.testing.assert_array_equal(method.ledger.timestamps, accounts.priced.timestamps)
        assert method.ledger.initial_capital == policy.initial_capital
    held = found.methods["buy_and_hold"].ledger.position
    assert (held == accounts.priced.max_position).all()
    assert not found.methods["macd"].ledger.position.any()
    # Rows to decide on begin behind the purge.
    first = accounts.bar_rows[0]
    assert first > 0
    assert not policy.position[:first].any()
    assert (policy.position[accounts.bar_rows] == accounts.priced.max_position).all()
    assert found.methods[POLICY].performance == policy.performance(market.settings.market.bars_per_year)
    assert (found.facts["bars"], found.facts["seed"]) == (len(policy), 0)


def test_an_unknown_baseline_is_refused(market, accounts):
    with pytest.raises(SettingsError, match="unknown baseline hodl; choose from"):
        compare({"hodl": Fixed(LONG)}, accounts.hold(FLAT), market)
