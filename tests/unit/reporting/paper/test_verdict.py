"""The verdict follows from the numbers and from nothing else."""

from copy import deepcopy
from dataclasses import replace

import pytest

from archetype_dagster.reporting.paper import PairResults, paper_tables
from archetype_dagster.studies.comparison import POLICY


def words(result):
    return paper_tables({"BTC": result}, profile="smoke").verdicts["BTC"]


def changed(result, *, low=0.5, high=2.0, deflated=0.99, pbo=0.1):
    found = deepcopy(result.certainty)
    found["intervals"]["sharpe"].update(low=low, high=high)
    found["sharpe"].update(deflated=deflated, deflated_robust=deflated)
    found["overfitting"]["pbo"] = pbo
    return replace(result, certainty=found)


@pytest.mark.parametrize(
    ("numbers", "conclusion"),
    [
        ({}, "Evidence of an edge on these bars"),
        ({"low": -0.1}, "No evidence of an edge"),
        ({"deflated": 0.9}, "No evidence of an edge"),
        ({"deflated": None}, "No evidence of an edge"),
        ({"pbo": 0.5}, "likely to have overfitted"),
        ({"low": -2.0, "high": -0.1}, "It loses, and by more than chance."),
        ({"low": None, "high": None}, "undefined"),
    ],
)
def test_the_conclusion_needs_interval_odds_and_no_overfitting(make_pair, numbers, conclusion):
    assert conclusion in words(changed(make_pair("BTC"), **numbers))[0]


@pytest.mark.parametrize(
    ("low", "high", "place"), [(0.5, 2.0, "lies above 0"), (-1.0, 2.0, "includes 0"), (-2.0, -1.0, "lies below 0")]
)
def test_the_interval_is_said_with_its_ends(make_pair, low, high, place):
    text = " ".join(words(changed(make_pair("BTC"), low=low, high=high)))
    assert f"{high:.2f}".replace("-", "\u2212") + f", {place}." in text


def test_rank_return_and_print_are_stated(make_pair):
    result = make_pair("BTC")
    tables = paper_tables({"BTC": result}, profile="smoke")
    policy = next(row for row in tables.rows["table_1"] if (row.pair, row.name) == ("BTC", POLICY))
    text = tables.verdicts["BTC"][1]
    assert f"number {policy.rank} of 9 of the paper's methods" in text
    assert "the paper prints +76.25\u202f% and 2.66, number 1 of 9." in text
    leads = int(policy.rank == 1)
    assert f"leads the paper's methods on {leads} of 1 pairs run here, and on 3 of 4 in print." in tables.summary


def test_holding_is_compared_with(make_pair):
    result = make_pair("BTC", whole=False)
    methods = dict(result.comparison.methods)
    hold = methods["buy_and_hold"]
    for total, relation in (
        (-0.9, "more than"),
        (9.0, "less than"),
        (methods[POLICY].performance.total_return, "as much as"),
    ):
        methods["buy_and_hold"] = replace(hold, performance=replace(hold.performance, total_return=total))
        text = " ".join(words(PairResults(replace(result.comparison, methods=methods))))
        assert f"That is {relation} buy and hold" in text


def test_ruin_undefined_ratios_and_absence_are_said(make_pair):
    comparison = make_pair("BTC", whole=False).comparison
    policy = comparison.methods[POLICY]

    def with_policy(**metrics):
        changed_policy = replace(policy, performance=replace(policy.performance, **metrics))
        return PairResults(replace(comparison, methods={**comparison.methods, POLICY: changed_policy}))

    assert words(with_policy(ruined=True))[0] == "It lost its whole capital."
    assert "without a place" in words(with_policy(sharpe=None, calmar=None))[1]
    without = {name: method for name, method in comparison.methods.items() if name != POLICY}
    assert words(PairResults(replace(comparison, methods=without))) == ("ArchetypeTrader was not run on BTC.",)


def test_seeds_alignments_and_walk_forward_are_said_where_given(make_pair):
    text = " ".join(words(make_pair("BTC")))
    for part in ("Over 3 seeds", "Where its horizons begin", "Trained again before each window"):
        assert part in text
    bare = " ".join(words(make_pair("BTC", whole=False)))
    assert not any(part in bare for part in ("seeds", "horizons begin", "Trained again"))
