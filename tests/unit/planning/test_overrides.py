"""Where an override may act and which bars it replaces."""

import numpy as np
import pytest

from archetype_dagster.planning import apply_override, legal_override_mask


def test_step_returns_to_the_base_and_hold_waits_for_its_next_trade() -> None:
    base = np.array([[1, 1, 1, 2, 2, 0]])
    assert apply_override(base, [1], [-1], "step").tolist() == [[1, 0, 1, 2, 2, 0]]
    assert apply_override(base, [1], [-1], "hold").tolist() == [[1, 0, 0, 2, 2, 0]]
    assert apply_override(base, [4], [-1], "hold").tolist() == [[1, 1, 1, 2, 0, 0]]
    assert apply_override(base, [-1], [0], "hold").tolist() == base.tolist()


def test_mask_refuses_bars_where_the_base_trades_and_no_ops() -> None:
    mask = legal_override_mask([2, 2, 1, 1, 0], initial_action=1)
    assert mask.tolist() == [[False, False], [True, False], [False, False], [True, True], [False, False]]
    assert legal_override_mask([2, 2], initial_action=2).tolist() == [[True, False], [True, False]]


def test_a_batch_mixes_horizons_with_and_without_an_override() -> None:
    base = np.array([[[1, 1, 2], [2, 2, 2]], [[0, 0, 1], [1, 1, 1]]])
    final = apply_override(base, [[0, -1], [-1, 2]], [[1, 0], [0, -1]], "hold")
    assert final.tolist() == [[[2, 2, 2], [2, 2, 2]], [[0, 0, 1], [1, 1, 0]]]
    assert final.dtype == np.int8


def test_wrong_input_names_the_rule() -> None:
    base = np.ones((2, 4), dtype=np.int8)
    with pytest.raises(ValueError, match=r"steps must lie in -1\.\.3, got 4"):
        apply_override(base, [4, 0], [1, 1], "step")
    with pytest.raises(ValueError, match="directions must be -1 or"):
        apply_override(base, [-1, 0], [1, 1], "step")
