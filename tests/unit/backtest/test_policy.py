"""Decisions made all at once equal those of a policy that lives through the bars one by one."""

from dataclasses import replace as changed

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archetype_dagster.backtest.policy import archetype_actions, carried_actions, decide, padded_horizons
from archetype_dagster.errors import ArtifactError
from archetype_dagster.settings import load_settings
from archetype_dagster.types import FLAT


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2), st.booleans()), min_size=1, max_size=40)
)
def test_carried_actions_equal_a_walk_from_horizon_to_horizon(rows):
    ends, fresh = np.array([row[:3] for row in rows], dtype=np.int8), np.array([row[3] for row in rows])
    held, expected = FLAT, []
    for end, starts_flat in zip(ends, fresh, strict=True):
        held = FLAT if starts_flat else held
        expected.append(held)
        held = end[held]
    carried = carried_actions(ends, fresh)
    assert carried.tolist() == expected
    assert carried.dtype == np.int8


@pytest.mark.parametrize("delay", [0, 2])
def test_whole_horizons_are_those_of_the_dataset(random_dataset, delay):
    dataset = random_dataset(delay=delay)
    starts = dataset.horizon_starts()
    expected, padded = dataset.horizons(starts), padded_horizons(dataset, starts)
    for name in ("states", "mark", "costs"):
        np.testing.assert_array_equal(getattr(padded, name), getattr(expected, name))


def test_a_cut_horizon_stands_still_after_its_segment(random_dataset):
    dataset = random_dataset(segments=(5, 30))
    batch = padded_horizons(dataset, np.array([0]))
    np.testing.assert_array_equal(batch.states[0, :5], dataset.states[:5])
    assert not batch.states[0, 5:].any()
    assert (batch.mark[0, 4:] == dataset.mark[4]).all()


def live(policy, dataset):
    """Reference: one bar after the other, with nothing but what is known at it."""
    h, delay, m = dataset.horizon_bars, dataset.execution_delay_bars, dataset.max_position
    override = policy.settings.refinement.override
    actions, override_rows, held = [], [], FLAT
    for start, length in zip(*dataset.decision_starts(), strict=True):
        if not start or dataset.segment[start] != dataset.segment[start - 1]:
            held = FLAT
        if policy.settings.execution.horizon_boundary == "settle":
            held = FLAT
        states = padded_horizons(dataset, np.array([start])).states
        code = policy.selector.choose(states[:, 0])
        base = policy.codebook.decode(states, code)[0][0]
        embedding = policy.codebook.codes[code[0]]
        previous, acting, acted_at, rewards = held, None, -1, []
        for tau in range(length):
            row = start + tau
            if tau > delay:
                i = tau - delay - 1
                before = held if i == 0 else base[i - 1]
                paid = dataset.costs[start + i + delay, before, base[i]]
                move = dataset.mark[start + i + delay + 1] - dataset.mark[start + i + delay]
                rewards.append(m * (base[i] - 1.0) * move - paid)
            arche = 100 * sum(rewards) / (m * dataset.mark[min(start + delay, row)])
            context = np.concatenate([embedding, np.eye(3)[base[tau]], [arche, (h - tau) / h]]).astype(np.float32)
            logits = policy.refiner.logits(dataset.states[row][None], context[None])[0]
            changed_now = base[tau] != previous
            if acting is not None and (override == "step" or changed_now):
                acting = None
            options = [] if changed_now else [(logits[d], d) for d in (0, 2) if base[tau] != d]
            if acted_at < 0 and options and max(options)[0] > logits[1]:
                acting, acted_at = max(options)[1], row
            actions.append(base[tau] if acting is None else acting)
            previous = base[tau]
        held = actions[-1]
        override_rows.append(acted_at)
    return np.array(actions), np.array(override_rows)


@pytest.mark.parametrize("override", ["step", "hold"])
@pytest.mark.parametrize("boundary", ["carry", "settle"])
@pytest.mark.parametrize("delay", [0, 1])
def test_decisions_equal_a_life_lived_bar_by_bar(random_dataset, random_policy, override, boundary, delay):
    settings = load_settings(
        overrides={"refinement.override": override, "execution.horizon_boundary": boundary, "planner.horizon_bars": 8}
    )
    policy = random_policy(settings)
    dataset = random_dataset(delay=delay, segments=(50, 8, 3, 61))
    decisions = decide(policy, dataset)
    actions, override_rows = live(policy, dataset)
    assert len(set(decisions.codes.tolist())) > 1
    assert (override_rows >= 0).sum() > 0
    np.testing.assert_array_equal(decisions.actions, actions)
    np.testing.assert_array_equal(decisions.override_rows, override_rows)


def test_at_most_one_override_per_horizon_and_none_without_a_refiner(random_dataset, random_policy):
    policy, dataset = random_policy(load_settings()), random_dataset(segments=(200,))
    decisions = decide(policy, dataset)
    differs = decisions.actions != decisions.base_actions
    assert np.add.reduceat(differs.astype(int), decisions.starts).max() == 1
    np.testing.assert_array_equal(np.flatnonzero(differs), decisions.override_rows[decisions.override_rows >= 0])
    base = decide(policy.without_refinement(), dataset)
    np.testing.assert_array_equal(base.actions, base.base_actions)
    assert (base.override_rows == -1).all()
    assert not base.override_directions.any()


def test_the_position_is_carried_and_starts_flat_after_a_gap(random_dataset, random_policy):
    decisions = decide(random_policy(load_settings()), random_dataset(segments=(40, 40)))
    before = np.append(FLAT, decisions.actions[:-1])[decisions.starts]
    before[np.searchsorted(decisions.starts, 40)] = FLAT
    np.testing.assert_array_equal(decisions.initial_actions, before)
    assert (decisions.initial_actions != FLAT).any()


def test_given_codes_replace_the_selector(random_dataset, random_policy):
    policy, dataset = random_policy(load_settings()).without_refinement(), random_dataset()
    by_code = archetype_actions(policy.codebook, dataset)
    for code in range(len(by_code)):
        codes = np.full(len(dataset.decision_starts()[0]), code)
        np.testing.assert_array_equal(decide(policy, dataset, codes=codes).actions, by_code[code])
    with pytest.raises(ValueError, match="one archetype per horizon"):
        decide(policy, dataset, codes=np.array([0]))


def test_a_trace_has_an_entry_per_row(random_dataset, random_policy):
    policy, dataset = random_policy(load_settings()), random_dataset(segments=(30, 11))
    decisions = decide(policy, dataset, trace=True)
    assert decisions.trace.decoder_logits.shape == decisions.trace.refiner_logits.shape == (41, 3)
    assert len(decisions.trace.context) == len(decisions.actions) == 41
    assert len(decisions.trace.selector_logits) == len(decisions.starts)
    assert decisions.lengths.sum() == 41
    assert decide(policy, dataset).trace is None
    assert decide(policy.without_refinement(), dataset, trace=True).trace.context is None


@pytest.mark.parametrize("boundary", ["carry", "settle"])
@pytest.mark.parametrize("delay", [0, 1])
def test_a_continuous_policy_decides_bar_by_bar_from_what_is_known(random_dataset, random_policy, boundary, delay):
    """Reference: every horizon decoded from its own first row on, with nothing after the bar that is decided."""
    settings = load_settings(overrides={"execution.horizon_boundary": boundary, "planner.horizon_bars": 8})
    policy, dataset = random_policy(settings, embedding="continuous"), random_dataset(delay=delay, segments=(50, 3, 61))
    decisions = decide(policy, dataset, trace=True)
    expected = []
    for start, length in zip(*dataset.decision_starts(), strict=True):
        chosen = policy.selector.choose(dataset.states[start][None])
        for tau in range(length):
            known = dataset.states[start : start + tau + 1][None]
            expected.append(policy.codebook.decode_embeddings(known, chosen[:, None])[0][0, 0, -1])
    np.testing.assert_array_equal(decisions.actions, expected)
    np.testing.assert_array_equal(decisions.base_actions, decisions.actions)
    assert set(decisions.actions.tolist()) == {0, 1, 2}
    assert (decisions.codes == -1).all()
    assert (decisions.override_rows == -1).all()
    assert decisions.trace.selector_logits.shape == (len(decisions.starts), 3)
    assert len(np.unique(decisions.trace.selector_logits, axis=0)) == len(decisions.starts)
    with pytest.raises(ValueError, match="takes no codes"):
        decide(policy, dataset, codes=decisions.codes)


def test_phases_of_different_embeddings_make_no_policy(random_policy):
    coded, continuous = random_policy(load_settings()), random_policy(load_settings(), embedding="continuous")
    with pytest.raises(ArtifactError, match=r"a Selector cannot choose for .* 'continuous'"):
        changed(coded, codebook=continuous.codebook)
    with pytest.raises(ArtifactError, match=r"a ContinuousSelector cannot choose for .* 'vq'"):
        changed(coded, selector=continuous.selector)
    with pytest.raises(ArtifactError, match="a refiner needs the embedding of a code"):
        changed(continuous, refiner=coded.refiner)


def test_an_empty_dataset_is_refused(random_dataset, random_policy):
    empty = random_dataset().rows(slice(0, 0))
    with pytest.raises(ValueError, match="at least one row"):
        decide(random_policy(load_settings()), empty)


def test_a_refiner_that_never_acts_changes_nothing(random_dataset, random_policy):
    policy, dataset = random_policy(load_settings()), random_dataset()
    policy.refiner.network.actor.bias.data[1] = 1e6
    patient = decide(policy, dataset)
    np.testing.assert_array_equal(patient.actions, decide(changed(policy, refiner=None), dataset).actions)
