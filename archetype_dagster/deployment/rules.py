"""The rules that turn a bundle's numbers into actions, in words: written into every manifest and compared at load.

Whoever changes what a rule says or what it does raises `BUNDLE_VERSION`.
"""

from __future__ import annotations

from typing import Final

from archetype_dagster.artifacts import json_hash
from archetype_dagster.market.feature_formulas import FEATURE_FORMULAS, WARMUP_BARS

BUNDLE_VERSION: Final = 2

RULES: Final = {
    "state": "features in feature_names order, scaled by scaler.json: clip((x - mean) / std), float32",
    "window": "where a graph reads window instead of state: the states of its last L bars, oldest first, the current "
    "bar last; rows before the segment's first bar with features are zero",
    "code": "argmax of code_logits at the horizon's first bar, held for the horizon; ties go to the lowest code",
    "base_action": "argmax of action_logits, ties go to the lowest action; under decoding single_change the "
    "first action that is not flat is held to the horizon's end",
    "decoder_state": "hidden_in and cell_in are zero at a horizon's first bar, then hidden_out and cell_out",
    "override": "at most one in a horizon: the first bar where the base action equals the one before and a logit of "
    "override_logits [short, nothing, long] for another action exceeds that of nothing; ties between directions go "
    "to short; the action before the horizon's first bar is the one held, or flat under horizon_boundary settle",
    "override_end": "step: the base action returns at the next bar; hold: at the base's next change of action",
    "realised_return": "100 / (m p_0) times the base actions' rewards realised before this bar, p_0 the mark at "
    "the horizon's first execution",
    "time_left": "(h - tau) / h with tau = 0 at the horizon's first bar",
    "horizon": "starts at the first bar with features after a gap and after every h bars; the position is carried, "
    "or closed before the horizon's first trade under horizon_boundary settle; bars without features are flat",
}


def feature_hash() -> str:
    """SHA-256 of the features' names, order, formulas and warm-up, as this version computes them."""
    return json_hash({"formulas": list(FEATURE_FORMULAS.items()), "warmup_bars": WARMUP_BARS})
