"""The probability of overfitting on noise, on a real edge and on planted overfitting."""

import json
from math import comb

import numpy as np
import pytest

from archetype_dagster.backtest.statistics import combinatorial_purged_splits, probability_of_overfitting


def noise(seed, bars=1600, trials=20):
    return np.random.default_rng(seed).normal(0, 1e-3, (bars, trials))


def test_combinations_from_group_sums_are_those_read_bar_by_bar():
    returns = noise(0, 400, 7)
    found = probability_of_overfitting(returns, groups=6, test_groups=2, purge_bars=9, embargo_bars=4)
    for row, split in enumerate(combinatorial_purged_splits(400, 6, 2, 9, 4)):
        inside, outside = (returns[bars].mean(0) / returns[bars].std(0) for bars in (split.train, split.test))
        winner = inside.argmax()
        rank = 1 + np.count_nonzero(outside < outside[winner])
        assert found.winners[row] == winner
        assert found.in_sample[row] == pytest.approx(inside[winner], rel=1e-9)
        assert found.out_of_sample[row] == pytest.approx(outside[winner], rel=1e-9)
        assert found.logits[row] == pytest.approx(np.log(rank / (8 - rank)), abs=1e-12)


def test_paths_are_made_of_the_winners_held_out_stretches():
    returns = noise(1, 60, 4)
    found = probability_of_overfitting(returns, groups=3, test_groups=2)
    assert found.winners.shape == (3,)
    # Combinations hold out groups 01, 02, 12: each group twice, so two paths.
    stretches = np.split(returns, 3)
    first, second, third = found.winners
    for path, picks in enumerate(((first, first, second), (second, third, third))):
        joined = np.concatenate([stretch[:, pick] for stretch, pick in zip(stretches, picks, strict=True)])
        assert found.path_sharpes[path] == pytest.approx(joined.mean() / joined.std(), rel=1e-9)


@pytest.mark.parametrize("purging", [{}, {"purge_bars": 20, "embargo_bars": 10}, {"test_groups": 2}])
def test_noise_is_overfitted_half_of_the_time(purging):
    found = [probability_of_overfitting(noise(seed), groups=10, **purging).pbo for seed in range(60)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("trials", [2, 3, 5])
def test_noise_is_overfitted_half_of_the_time_whatever_the_number_of_trials(trials):
    """With three trials the winner is the median in a third of all cases; counted whole it would give two thirds."""
    found = [probability_of_overfitting(noise(seed, trials=trials), groups=8).pbo for seed in range(200)]
    assert np.mean(found) == pytest.approx(0.5, abs=4 * np.std(found) / 200**0.5)


def test_a_real_edge_is_not_overfitting():
    returns = noise(2)
    returns[:, 3] += 3e-4
    found = probability_of_overfitting(returns, groups=10)
    assert found.pbo < 0.02
    assert (found.winners == 3).mean() > 0.95
    assert found.loss_share < 0.02
    assert np.median(found.path_sharpes) == pytest.approx(0.3, abs=0.1)


def test_planted_overfitting_is_found():
    """Trials whose luck is fixed over all bars: what wins on one half must lose on the other."""
    returns = noise(3)
    returns -= returns.mean(axis=0)
    found = probability_of_overfitting(returns, groups=10)
    assert found.pbo > 0.98
    assert found.loss_share > 0.98
    assert found.degradation < -0.5


def test_all_paths_and_combinations_are_there():
    found = probability_of_overfitting(noise(4), groups=16, test_groups=3, purge_bars=10)
    assert len(found.logits) == comb(16, 3)
    assert len(found.path_sharpes) == comb(15, 2)


def test_sharpe_ratios_do_not_depend_on_the_unit_of_returns():
    one = probability_of_overfitting(noise(5), groups=8)
    tiny = probability_of_overfitting(noise(5) * 1e-150, groups=8)
    np.testing.assert_allclose(one.in_sample, tiny.in_sample, rtol=1e-9)
    assert one.pbo == tiny.pbo


def test_a_trial_without_a_sharpe_ratio_never_wins_and_ranks_last():
    returns = noise(6, trials=3) - 1e-3
    returns[:, 1] = 0.0
    found = probability_of_overfitting(returns, groups=6)
    assert not (found.winners == 1).any()
    assert found.logits.min() > np.log(1 / 3)


def test_identical_trials_are_level_with_the_median():
    returns = np.repeat(noise(7, trials=1), 4, axis=1)
    found = probability_of_overfitting(returns, groups=6)
    np.testing.assert_allclose(found.logits, 0.0, atol=1e-12)
    assert found.pbo == 0.5


def test_trials_that_never_traded_have_no_winner_and_no_probability():
    found = probability_of_overfitting(np.zeros((100, 3)), groups=4)
    assert found.pbo is None
    assert found.loss_share is None
    assert found.degradation is None
    assert (found.winners == -1).all()
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["path_sharpes"] is None


def test_the_summary_is_ready_for_json():
    found = json.loads(json.dumps(probability_of_overfitting(noise(8), groups=8).as_dict(), allow_nan=False))
    assert found["combinations"] == comb(8, 4)
    assert found["logits"] == sorted(found["logits"])


@pytest.mark.parametrize(
    ("returns", "options", "rule"),
    [
        (np.zeros(10), {"groups": 2}, r"\(T, N\)"),
        (np.zeros((10, 1)), {"groups": 2}, "at least two trials"),
        (np.full((10, 2), np.inf), {"groups": 2}, "finite, got inf"),
        (np.zeros((10, 2)), {"groups": 3}, "even where half"),
        (np.zeros((10, 2)), {"groups": 4, "purge_bars": 1}, "longer than the 2 bars"),
        (np.zeros((10, 2)), {"groups": 3, "test_groups": 3}, "got test_groups=3"),
    ],
)
def test_wrong_input_is_refused(returns, options, rule):
    with pytest.raises(ValueError, match=rule):
        probability_of_overfitting(returns, **options)
