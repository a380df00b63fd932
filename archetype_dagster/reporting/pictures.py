"""The pictures of one evaluation, each in both themes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from archetype_dagster.backtest.evaluation import Evaluation
from archetype_dagster.reporting import plots
from archetype_dagster.reporting.content import VariantRow
from archetype_dagster.reporting.plots import ArchetypeExample, Curve
from archetype_dagster.reporting.rendering import Picture, draw
from archetype_dagster.types import IndexArray

_SHOWN_ARCHETYPES = 6
_DRAWDOWN_VARIANTS = ("full", "buy_and_hold")


def evaluation_pictures(
    evaluation: Evaluation, rows: Sequence[VariantRow], *, horizon_bars: int, examples: int
) -> dict[str, Picture | None]:
    """The report's pictures by name; None for a profile without a whole horizon.

    Args:
        evaluation: the test split, traded by every variant.
        rows: its table rows, for labels.
        horizon_bars: h.
        examples: example horizons drawn per archetype.
    """
    curves = [curve_of(row) for row in rows]
    ledger = evaluation.full.ledger
    hindsight = evaluation.hindsight
    drawdowns = [curve for curve in curves if curve.name in _DRAWDOWN_VARIANTS]
    return {
        "equity": draw("Cumulative return of every variant", plots.equity, curves),
        "drawdown": draw("Drawdown of the full policy and of buy and hold", plots.drawdown, drawdowns),
        "exposure": draw(
            "Share of each day the full policy spent long and short",
            plots.exposure,
            ledger.timestamps,
            ledger.position,
            max_position=ledger.max_position,
            hindsight=hindsight,
        ),
        "recent": draw(
            "Price, position and trades of the full policy over the last bars",
            plots.recent_trades,
            ledger.timestamps,
            ledger.mark,
            ledger.position,
            hindsight=hindsight,
        ),
        "usage": draw("Share of horizons by archetype", plots.usage, evaluation.code_usage),
        "profile": _profile(evaluation, horizon_bars),
        "behaviour": draw(
            "Price with entries in example horizons of each archetype",
            plots.archetype_behaviour,
            behaviour_examples(evaluation, examples),
            hindsight=hindsight,
        ),
    }


def curve_of(row: VariantRow) -> Curve:
    """A variant's account as a curve."""
    ledger = row.ledger
    return Curve(row.name, row.label, ledger.timestamps, ledger.net_value, ledger.initial_capital, row.hindsight)


def behaviour_examples(
    evaluation: Evaluation, per_archetype: int, archetypes: int = _SHOWN_ARCHETYPES
) -> list[ArchetypeExample]:
    """Example horizons of the most used archetypes, evenly spaced in time and so not picked by result.

    The longest horizons come first; cut ones appear only where an archetype has no whole one. The paper's
    Figure 2 shows two archetypes with two examples each.
    """
    decisions = evaluation.decisions
    ledger = evaluation.variants["always_flat"].ledger
    used = np.argsort(-evaluation.code_usage, kind="stable")[:archetypes]
    found = []
    for code in np.sort(used[evaluation.code_usage[used] > 0]):
        for horizon in _evenly_spaced(decisions.codes, decisions.lengths, int(code), per_archetype):
            start, length = decisions.starts[horizon], decisions.lengths[horizon]
            bars = evaluation.bar_rows[start : start + length]
            opened = np.datetime_as_string(ledger.timestamps[bars[0]], unit="m").replace("T", " ")
            found.append(
                ArchetypeExample(
                    code=int(code),
                    title=f"from {opened} UTC",
                    mark=ledger.mark[bars],
                    actions=decisions.base_actions[start : start + length],
                    initial_action=int(decisions.initial_actions[horizon]),
                )
            )
    return found


def _evenly_spaced(codes: IndexArray, lengths: IndexArray, code: int, wanted: int) -> IndexArray:
    chosen: IndexArray = np.flatnonzero(codes == code)
    chosen = chosen[lengths[chosen] == lengths[chosen].max()]
    spots = (np.arange(1, wanted + 1) * len(chosen)) // (wanted + 1)
    return chosen[np.unique(spots)]


def _profile(evaluation: Evaluation, horizon_bars: int) -> Picture | None:
    decisions = evaluation.decisions
    whole = decisions.lengths == horizon_bars
    if not whole.any():
        return None
    rows = decisions.starts[whole][:, np.newaxis] + np.arange(horizon_bars)
    return draw(
        "Mean position of each archetype at each bar of its horizon",
        plots.archetype_profile,
        decisions.base_actions[rows],
        decisions.codes[whole],
        num_codes=evaluation.num_codes,
        hindsight=evaluation.hindsight,
    )
