"""What the numbers say of ArchetypeTrader on one pair, in plain words that are computed from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from archetype_dagster.backtest.alignments import EQUAL_WEIGHT
from archetype_dagster.backtest.performance import Performance
from archetype_dagster.reporting.paper.inputs import PairResults
from archetype_dagster.reporting.paper.rows import ResultRow
from archetype_dagster.reporting.rendering import count, percent, ratio
from archetype_dagster.studies.comparison import POLICY
from archetype_dagster.types import JsonDict

# Odds from which a lead counts as more than luck, and overfitting as likely.
_SURE: Final = 0.95
_EVEN: Final = 0.5


def verdict(pair: str, rows: Sequence[ResultRow], result: PairResults) -> list[str]:
    """Sentences on one pair, the conclusion first.

    Args:
        pair: traded pair.
        rows: rows of Table 1.
        result: what was run on the pair.
    """
    here = {row.name: row for row in rows if row.pair == pair}
    policy = here.get(POLICY)
    if policy is None or policy.ours is None:
        return [f"ArchetypeTrader was not run on {pair}."]
    if policy.hindsight:
        return [f"ArchetypeTrader reads the future on {pair} and is not ranked."]
    ours = policy.ours
    return [
        _conclusion(ours, result.certainty),
        _standing(policy, ours, here),
        *_against_holding(ours, here),
        *_doubts(result),
    ]


def standing_over_pairs(rows: Sequence[ResultRow]) -> str:
    """On how many pairs ArchetypeTrader leads, ours and in print."""
    policy = [row for row in rows if row.name == POLICY]
    run = [row for row in policy if row.ours is not None and not row.hindsight]
    printed = [row for row in policy if row.printed_rank is not None]
    return (
        f"By Sharpe ratio ArchetypeTrader leads the paper's methods on {sum(row.rank == 1 for row in run)} of "
        f"{len(run)} pairs run here, and on {sum(row.printed_rank == 1 for row in printed)} of {len(printed)} in print."
    )


def _conclusion(ours: Performance, found: JsonDict | None) -> str:
    if ours.ruined:
        return "It lost its whole capital."
    if found is None:
        return "How certain this result is was not computed."
    interval, evidence = found["intervals"]["sharpe"], found["sharpe"]
    if interval["low"] is None or evidence is None:
        return "Its Sharpe ratio is undefined, so nothing can be said for it."
    if interval["high"] < 0:
        return "It loses, and by more than chance."
    deflated = _lowest(evidence["deflated"], evidence["deflated_robust"])
    overfitting = found["overfitting"]
    overfitted = overfitting is not None and overfitting["pbo"] is not None and overfitting["pbo"] >= _EVEN
    if interval["low"] <= 0 or deflated is None or deflated < _SURE:
        return "No evidence of an edge: the result is within what luck gives."
    if overfitted:
        return "The result is more than luck on these bars, but choosing among the trials is likely to have overfitted."
    return "Evidence of an edge on these bars: the result is more than luck and the number of trials explain."


def _standing(policy: ResultRow, ours: Performance, here: Mapping[str, ResultRow]) -> str:
    printed = policy.printed
    rivals = [row for row in here.values() if row.printed and row.ours and not row.hindsight]
    ranked = [row for row in here.values() if row.printed_rank is not None]
    place = f"number {policy.rank} of {len(rivals)} of the paper's methods" if policy.rank else "without a place"
    text = (
        f"ArchetypeTrader returned {percent(ours.total_return, True)} at a Sharpe ratio of "
        f"{ratio(ours.sharpe)}, {place}"
    )
    if printed is None:
        return f"{text}; the paper has no such pair."
    return (
        f"{text}; the paper prints {percent(printed.tr / 100, True)} and {ratio(printed.asr)}, "
        f"number {policy.printed_rank} of {len(ranked)}."
    )


def _against_holding(ours: Performance, here: Mapping[str, ResultRow]) -> Iterator[str]:
    hold = here.get("buy_and_hold")
    if hold is None or hold.ours is None:
        return
    theirs = hold.ours.total_return
    relation = (
        "as much as" if ours.total_return == theirs else "more than" if ours.total_return > theirs else "less than"
    )
    yield f"That is {relation} buy and hold, with {percent(theirs, True)} at {ratio(hold.ours.sharpe)}."


def _doubts(result: PairResults) -> Iterator[str]:
    found = result.certainty
    if found is not None:
        yield from _interval(found)
        if evidence := found["sharpe"]:
            odds = percent(_lowest(evidence["deflated"], evidence["deflated_robust"]), decimals=0)
            trials = "trial" if evidence["trials"] == 1 else "trials"
            yield (
                f"With {count(evidence['trials'])} {trials} counted, its true Sharpe ratio beats the best of as many "
                f"useless ones with probability {odds}."
            )
        if (overfitting := found["overfitting"]) and overfitting["pbo"] is not None:
            odds = percent(overfitting["pbo"], decimals=0)
            yield (
                f"The best of {count(overfitting['trials'])} trials on some bars is worse than their median on the "
                f"others with probability {odds}."
            )
    if result.seeds is not None and (spread := result.seeds.summary["sharpe"])["seeds"] > 1:
        yield (
            f"Over {spread['seeds']} seeds its Sharpe ratio is {ratio(spread['mean'])} on average, from "
            f"{ratio(spread['minimum'])} to {ratio(spread['maximum'])}."
        )
    if result.alignments is not None:
        rows = {row["row"]: row for row in result.alignments.iter_rows(named=True)}
        low, high, whole = (percent(rows[name]["total_return"], True) for name in ("q0.00", "q1.00", EQUAL_WEIGHT))
        yield f"Where its horizons begin moves the total return from {low} to {high}; equal parts of all give {whole}."
    if result.walk_forward is not None:
        again = result.walk_forward.performance
        total = percent(again.total_return, True)
        yield f"Trained again before each window it returned {total} at {ratio(again.sharpe)}."


def _interval(found: JsonDict) -> Iterator[str]:
    interval = found["intervals"]["sharpe"]
    if interval["low"] is None:
        return
    low, high = interval["low"], interval["high"]
    place = "lies above 0" if low > 0 else "lies below 0" if high < 0 else "includes 0"
    yield (
        f"The {percent(found['confidence'], decimals=0)} interval of its Sharpe ratio, "
        f"{ratio(low)} to {ratio(high)}, {place}."
    )


def _lowest(*odds: float | None) -> float | None:
    defined = [value for value in odds if value is not None]
    return min(defined) if len(defined) == len(odds) else None
