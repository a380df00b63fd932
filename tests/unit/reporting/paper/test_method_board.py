"""The leaderboard of methods: every seed, ranked by the median, what reads the future apart."""

import json
from dataclasses import replace

import polars as pl
import pytest

from archetype_dagster.reporting import method_leaderboard, write_leaderboard
from archetype_dagster.reporting.content import variant_rows
from archetype_dagster.reporting.method_board import board_page
from archetype_dagster.reporting.report import summarise
from archetype_dagster.studies.comparison import METHODS, POLICY


def test_every_pair_method_and_seed_has_a_row(results):
    frame = method_leaderboard(results)
    assert frame.height == 2 * len(METHODS) + 2
    policy = frame.filter(pl.col("pair") == "BTC", pl.col("method") == POLICY)
    assert policy["seed"].to_list() == [0, 1, 2]
    assert policy["median_sharpe"].unique().to_list() == [pytest.approx(policy["sharpe"].median())]


def test_ranks_go_by_the_median_and_skip_what_reads_the_future(results):
    frame = method_leaderboard(results).unique(["pair", "method"], maintain_order=True)
    for pair in results:
        ranked = frame.filter(pl.col("pair") == pair, pl.col("rank").is_not_null())
        medians = ranked["median_sharpe"].to_list()
        assert ranked["rank"].to_list() == [1 + sum(other > own for other in medians) for own in medians]
        assert medians == sorted(medians, reverse=True)
    apart = frame.filter("hindsight")
    assert apart.select("pair", "method", "rank").rows() == [("DOT", POLICY, None)]
    assert frame["hindsight"].to_list() == sorted(frame["hindsight"])
    assert frame.filter(pl.col("method") == "always_flat")["rank"].to_list() == [None, None]


@pytest.mark.parametrize(("lost", "placed"), [(1, True), (2, False)])
def test_a_ruined_seed_counts_below_every_other(results, lost, placed):
    whole = results["BTC"]
    rows = [{**row, "ruined": row["seed"] in range(1, lost + 1)} for row in whole.seeds.rows]
    frame = method_leaderboard({"BTC": replace(whole, seeds=replace(whole.seeds, rows=rows))})
    policy = frame.filter(pl.col("method") == POLICY)
    assert (policy["rank"][0] is not None) == placed
    if placed:
        kept = sorted(row["sharpe"] for row in rows if not row["ruined"])
        assert policy["median_sharpe"][0] == pytest.approx(kept[0])


def test_the_medians_of_a_row_keep_the_calmar_identity(results):
    whole = results["BTC"]
    # Medians of different seeds: the median of the seeds' own ratios is none of this row.
    moved = [{**row, "annual_volatility": row["annual_volatility"] * (3 + row["seed"])} for row in whole.seeds.rows]
    given = {"BTC": replace(whole, seeds=replace(whole.seeds, rows=moved))}
    page = board_page(given, method_leaderboard(given))
    rows = [row for pair in page["pairs"] for row in pair["rows"]]
    assert any(row["seeds"] == 3 for row in rows)
    for row in rows:
        if row["sharpe"] is None:
            assert row["calmar"] is None
        else:
            assert row["calmar"] == pytest.approx(row["sharpe"] * row["annual_volatility"] / row["max_drawdown"])


def test_methods_head_the_page_and_lie_beside_it(results, make_evaluation, settings, tmp_path):
    evaluation = make_evaluation()
    metrics = {"ETH": summarise(evaluation, variant_rows(evaluation), settings)}
    write_leaderboard(metrics, tmp_path)
    assert not (tmp_path / "methods.json").exists()
    write_leaderboard(metrics, tmp_path, results)
    frame = method_leaderboard(results)
    assert json.loads((tmp_path / "methods.json").read_text()) == frame.to_dicts()
    assert pl.read_parquet(tmp_path / "methods.parquet").equals(frame)
    page = (tmp_path / "leaderboard.html").read_text()
    assert page.index("<h2>Methods</h2>") < page.index("Variants of the policy")
    assert "Every seed" in page


def test_no_pair_is_refused():
    with pytest.raises(ValueError, match="at least one pair"):
        method_leaderboard({})
