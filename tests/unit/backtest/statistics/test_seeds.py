"""Spread over seeds and the share that beats a baseline."""

import json

import numpy as np
import pytest

from archetype_dagster.backtest.statistics import seed_summary


def test_three_seeds_by_hand():
    """Mean 2, deviation 1; the two-sided 95 % point of t with 2 degrees of freedom is 4.3027."""
    found = seed_summary({0: 1.0, 1: 2.0, 2: 3.0}, {"flat": [0.0], "middle": [2.0], "unknown": []})
    assert (found.seeds, found.undefined, found.mean, found.std) == (3, 0, 2.0, 1.0)
    assert (found.minimum, found.maximum) == (1.0, 3.0)
    assert found.low == pytest.approx(2 - 4.302653 / np.sqrt(3), rel=1e-6)
    assert found.high == pytest.approx(2 + 4.302653 / np.sqrt(3), rel=1e-6)
    assert found.beats == {"flat": 1.0, "middle": pytest.approx(1 / 3), "unknown": None}


def test_less_is_better_for_drawdowns():
    found = seed_summary({0: 0.1, 1: 0.3}, {"buy_and_hold": [0.2]}, higher_is_better=False)
    assert found.beats == {"buy_and_hold": 0.5}


def test_undefined_runs_beat_nothing_and_leave_the_mean_alone():
    found = seed_summary({0: 1.0, 1: None, 2: 3.0}, {"flat": [0.0]})
    assert (found.seeds, found.undefined, found.mean) == (3, 1, 2.0)
    assert found.beats["flat"] == pytest.approx(2 / 3)


@pytest.mark.parametrize(("higher_is_better", "worst"), [(True, -np.inf), (False, np.inf)])
def test_ruined_runs_beat_nothing_and_are_beaten_by_every_other(higher_is_better, worst):
    found = seed_summary(
        {0: 9.0, 1: 1.0, 2: -9.0}, {"ruined": [worst], "flat": [0.0]}, ruined=(0, 2), higher_is_better=higher_is_better
    )
    assert found.beats == {"ruined": pytest.approx(1 / 3), "flat": pytest.approx(1 / 3) if higher_is_better else 0.0}
    assert (found.minimum, found.maximum) == (-9.0, 9.0)


def test_every_seed_is_set_against_every_seed_of_a_baseline():
    found = seed_summary({0: 1.0, 1: 3.0}, {"ppo": [0.0, 2.0, 4.0], "dqn": [-np.inf, 2.0]})
    assert found.beats == {"ppo": 0.5, "dqn": 0.75}


def test_one_seed_has_no_spread_and_none_has_no_mean():
    one = seed_summary({4: 1.5}, {"flat": [0.0]})
    assert (one.mean, one.std, one.low, one.high) == (1.5, None, None, None)
    none = seed_summary({4: None}, {"flat": [0.0]})
    assert (none.mean, none.minimum, none.maximum, none.beats["flat"]) == (None, None, None, 0.0)
    json.dumps(none.as_dict(), allow_nan=False)


def test_intervals_hold_the_true_mean_at_the_stated_rate():
    rng = np.random.default_rng(0)
    held = 0
    for values in rng.normal(1.0, 2.0, (800, 4)):
        found = seed_summary(dict(enumerate(values)), confidence=0.9)
        held += found.low <= 1.0 <= found.high
    assert held / 800 == pytest.approx(0.9, abs=3 * np.sqrt(0.09 / 800))


@pytest.mark.parametrize(
    ("values", "options", "rule"),
    [
        ({}, {}, "at least one seed"),
        ({0: np.inf}, {}, "finite or None, got inf"),
        ({0: 1.0}, {"confidence": 1.0}, "got confidence=1.0"),
    ],
)
def test_wrong_input_is_refused(values, options, rule):
    with pytest.raises(ValueError, match=rule):
        seed_summary(values, **options)
