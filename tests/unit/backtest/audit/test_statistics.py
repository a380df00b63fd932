"""Trade statistics of hand-made accounts."""

from __future__ import annotations

import json

import numpy as np
import pytest

from archetype_dagster.backtest.audit import trade_statistics
from archetype_dagster.backtest.replay import replay_priced
from archetype_dagster.settings import ExecutionSettings

PAPER = ExecutionSettings()


def statistics(priced, actions, mark, **kwargs):
    return trade_statistics(replay_priced(actions, priced(mark, **kwargs), settings=PAPER), periods_per_year=52_560)


def test_wins_losses_and_holding_are_counted_over_closed_trips(priced):
    # Long +10, long -4, short -6, short +2, and a long that is still open.
    mark = [100, 110, 110, 106, 100, 106, 106, 104, 100, 90]
    found = statistics(priced, [2, 1, 2, 1, 0, 1, 0, 1, 2, 2], mark)
    assert (found.trips, found.open_trips) == (5, 1)
    assert found.win_rate == 0.5
    assert found.profit_factor == pytest.approx(12 / 10)
    assert found.longest_losing_run == 2
    assert found.average_holding_bars == 1.0
    assert (found.exposure_long, found.exposure_short, found.exposure_flat) == (0.4, 0.2, 0.4)
    assert found.net_pnl == found.gross_pnl == pytest.approx(10 - 4 - 6 + 2 - 10)


def test_costs_and_turnover_are_stated_in_quote_units_and_basis_points(priced):
    found = statistics(priced, [2, 0, 1, 1], [100, 100, 100, 100], rate=0.0002, half_spread=0.05)
    # Four units at 100: 0.08 of commission and 0.2 of slippage; capital 100, four bars of 52,560.
    assert found.traded_notional == 400
    assert (found.fees, found.fees_bps) == (pytest.approx(0.08), pytest.approx(2.0))
    assert (found.slippage, found.slippage_bps) == (pytest.approx(0.2), pytest.approx(5.0))
    assert found.turnover_per_year == pytest.approx(4 * 52_560 / 4)


def test_what_is_undefined_is_none(priced):
    idle = statistics(priced, [1, 1], [100, 110], rate=0.01)
    undefined = ("win_rate", "profit_factor", "average_holding_bars", "fees_bps", "slippage_bps")
    assert [getattr(idle, name) for name in undefined] == [None] * 5
    assert (idle.longest_losing_run, idle.turnover_per_year, idle.exposure_flat) == (0, 0.0, 1.0)
    lossless = statistics(priced, [2, 1], [100, 110])
    assert (lossless.win_rate, lossless.profit_factor) == (1.0, None)
    assert json.loads(json.dumps(lossless.as_dict(), allow_nan=False))["profit_factor"] is None


def test_losses_in_a_row_end_at_a_win(priced):
    # Each odd bar closes a long: lost, lost, won, lost, lost, lost.
    mark = np.array([100, 99, 100, 99, 100, 101, 100, 99, 100, 99, 100, 99])
    assert statistics(priced, [2, 1] * 6, mark).longest_losing_run == 3


@pytest.mark.parametrize("periods", [0, -1, np.nan, np.inf])
def test_a_year_without_periods_is_refused(priced, periods):
    ledger = replay_priced([1, 1], priced([100, 110]), settings=PAPER)
    with pytest.raises(ValueError, match="periods_per_year"):
        trade_statistics(ledger, periods_per_year=periods)
