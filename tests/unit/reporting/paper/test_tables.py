"""The paper's tables: ours beside print, nothing invented, hindsight apart, and the same numbers in every file."""

import json
from dataclasses import replace
from html.parser import HTMLParser

import polars as pl
import pytest

from archetype_dagster.backtest.metric_kernels import METRICS
from archetype_dagster.reporting.paper import PairResults, paper_results, paper_tables, write_paper_tables
from archetype_dagster.reporting.paper.sheets import HINDSIGHT, NOT_RUN
from archetype_dagster.reporting.rendering import ratio
from archetype_dagster.studies.comparison import METHODS, POLICY


class Rows(HTMLParser):
    """Cells of every table row by section, with the class of the row's body."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.section, self.body, self.inside = [], "", "", False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        kinds = dict(attrs)
        self.section = kinds.get("id", "") if tag == "section" else self.section
        self.body = kinds.get("class") or "" if tag == "tbody" else self.body
        if tag == "tr":
            self.rows.append((self.section, self.body, []))
        elif tag in ("td", "th"):
            self.rows[-1][2].append("")
            self.inside = True

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data):
        if self.inside:
            self.rows[-1][2][-1] += data

    def of(self, section, *, hindsight=False):
        return [cells for place, body, cells in self.rows if place == section and (body == "hindsight") == hindsight]


@pytest.fixture(scope="module")
def page(written):
    return Rows((written[0] / "tables.html").read_text())


def row_of(tables, table, pair, name):
    return next(row for row in tables.rows[table] if (row.pair, row.name) == (pair, name))


def test_table_1_holds_every_printed_method_on_every_pair_and_ours_below(written):
    rows = written[1].rows["table_1"]
    printed = paper_results()
    assert {(row.pair, row.name) for row in rows} >= {
        (pair, name) for pair in printed.pairs for name in printed.table_1
    }
    assert [row.name for row in rows if row.pair == "BTC"][-3:] == ["buy_and_hold", "random", "always_flat"]
    assert all(row.ours is None for row in rows if row.pair in ("ETH", "BNB"))


def test_our_numbers_are_the_comparisons_and_ranks_go_by_sharpe_among_the_papers_methods(written, results):
    for name, method in results["BTC"].comparison.methods.items():
        assert row_of(written[1], "table_1", "BTC", name).ours == method.performance
    ranked = [row for row in written[1].rows["table_1"] if row.pair == "BTC" and row.rank]
    assert len(ranked) == len(paper_results().table_1)
    assert min(row.rank for row in ranked) == 1
    for row in ranked:
        assert row.rank == 1 + sum(other.ours.sharpe > row.ours.sharpe for other in ranked)
    assert [row_of(written[1], "table_1", pair, POLICY).printed_rank for pair in ("BTC", "BNB")] == [1, 3]


def test_a_policy_that_reads_the_future_takes_no_place(written):
    policy = row_of(written[1], "table_1", "DOT", POLICY)
    rivals = [row for row in written[1].rows["table_1"] if row.pair == "DOT" and row.rank]
    assert policy.hindsight
    assert policy.rank is None
    assert len(rivals) == len(paper_results().table_1) - 1
    assert written[1].verdicts["DOT"] == ("ArchetypeTrader reads the future on DOT and is not ranked.",)


def test_what_was_not_run_says_so_and_shows_no_number(page):
    rows = page.of("table-1")
    bnb = rows[rows.index(["BNB"]) + 1 :]
    assert len(bnb) == len(paper_results().table_1)
    assert {cells[1] for cells in bnb} == {NOT_RUN}
    assert {len(cells) for cells in bnb} == {1 + 1 + 7}
    refinement = page.of("table-3")
    first = refinement.index(["DOT"]) + 1
    assert [cells[1] for cells in refinement[first : first + 3]] == 3 * [NOT_RUN]


def test_hindsight_rows_stand_apart(page):
    assert page.of("table-1", hindsight=True)[0] == [HINDSIGHT]
    assert [cells[0] for cells in page.of("table-1", hindsight=True)[1:]] == ["DOT ArchetypeTraderhindsight"]


def test_variants_show_the_mean_over_seeds_beside_print(written, page):
    row = row_of(written[1], "table_2", "BTC", "clustered")
    assert sorted(row.runs) == [0, 1]
    assert row.ours.total_return == pytest.approx(sum(run.total_return for run in row.runs.values()) / 2)
    cells = next(cells for cells in page.of("table-2") if cells[0].startswith("Clustered"))
    assert cells[1:] == [
        ratio(100 * row.ours.total_return),
        ratio(row.ours.sharpe),
        ratio(100 * row.ours.max_drawdown),
        "47.84",
        "1.75",
        "15.87",
    ]


def test_table_4_orders_by_size_and_prints_dot_alone(written):
    names = [row.name for row in written[1].rows["table_4"] if row.pair == "BTC"]
    assert names == ["h=36", "h=72", "h=144", "K=5", "K=10", "K=20"]
    assert {row.pair for row in written[1].rows["table_4"]} == {"BTC", "DOT"}
    assert row_of(written[1], "table_4", "BTC", "K=20").printed is None


def test_files_hold_the_same_exact_numbers(written):
    directory, tables = written
    saved = json.loads((directory / "tables.json").read_text())
    frame = pl.read_csv(directory / "tables.csv")
    assert frame.height == sum(len(rows) for rows in tables.rows.values())
    for record in frame.iter_rows(named=True):
        row = row_of(tables, record["table"], record["pair"], record["name"])
        stored = next(r for r in saved[record["table"]] if (r["pair"], r["name"]) == (row.pair, row.name))
        assert (stored["ours"] is None) == (row.ours is None)
        for metric in METRICS:
            exact = row.ours and getattr(row.ours, metric)
            assert record[metric] == exact
            assert stored["ours"] is None or stored["ours"][metric] == exact


def test_markdown_says_what_the_page_says(written, page):
    text = (written[0] / "tables.md").read_text()
    row = next(cells for cells in page.of("table-1") if cells[0] == "MACD")
    assert f"| {' | '.join(row)} |" in text
    assert written[1].summary in text
    for sentence in written[1].verdicts["BTC"]:
        assert sentence in text
    for line in text.splitlines():
        if line.startswith("| MACD"):
            assert line.count(" | ") == 14


def test_headings_name_data_book_span_seeds_profile_and_settings(written, results):
    first = (written[0] / "tables.md").read_text().split("## Table 2")[0]
    facts = results["BTC"].comparison.facts
    for fact in ("data candles", "modelled, not recorded", "2024-01-25 00:00", "seed 0", "profile smoke"):
        assert fact in first
    assert facts["settings_hash"][:12] in first


def test_every_part_that_was_given_has_its_sheet(page, written):
    given = {"intervals", "odds", "leads", "seeds", "alignments", "sensitivities", "walk-forward"}
    assert given <= {section for section, _, _ in page.rows}
    refused = next(cells for cells in page.of("sensitivities") if "reject" in cells[0])
    assert refused == ["depth policy rejectbar 7 is thin", "refused"]
    assert (written[0] / "tables.html").read_text().count("<figure>") == 2


def test_text_from_outside_is_escaped(written):
    assert "&lt;abc&gt;" in (written[0] / "tables.html").read_text()


def test_the_bare_comparison_is_enough_and_repeats_byte_by_byte(make_pair, tmp_path):
    bare = {"ETH": make_pair("ETH", whole=False)}
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write_paper_tables(bare, tmp_path / name, profile="smoke")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name
    rows = Rows((tmp_path / "a" / "tables.html").read_text())
    assert not {"intervals", "odds", "seeds"} & {section for section, _, _ in rows.rows}
    text = (tmp_path / "a" / "tables.md").read_text()
    assert "How certain this result is was not computed." in text
    assert "ETH not run" in text.split("## Figure 3")[1]


def test_a_ruined_method_is_marked_and_takes_no_place(make_pair):
    bare = make_pair("ETH", whole=False)
    macd = bare.comparison.methods["macd"]
    lost = replace(macd, performance=replace(macd.performance, ruined=True, total_return=-1.0))
    tables = paper_tables(
        {"ETH": PairResults(replace(bare.comparison, methods={**bare.comparison.methods, "macd": lost}))},
        profile="smoke",
    )
    assert row_of(tables, "table_1", "ETH", "macd").rank is None
    line = next(line for line in tables.sheets()[0].blocks[1].lines if line.label == "MACD")
    assert line.tags == ("ruined",)


def sheet_of(tables, title):
    return next(sheet for sheet in tables.sheets() if sheet.title.startswith(title))


@pytest.mark.parametrize(("lost", "leads"), [(("full",), "other"), (("no_refinement", "without_regret", "full"), None)])
def test_a_ruined_variant_leads_nothing(make_pair, lost, leads):
    whole = make_pair("BTC")
    studies = [
        replace(
            part,
            runs={
                name: {**run, "ruined": name in lost, "sharpe": 9.0 if name in lost else run["sharpe"]}
                for name, run in part.runs.items()
            },
        )
        for part in whole.studies["refinement_study"]
    ]
    tables = paper_tables({"BTC": replace(whole, studies={"refinement_study": studies})}, profile="smoke")
    remark = sheet_of(tables, "Table 3").remarks[0].split("In print")[0]
    assert ("Full method" not in remark) if leads else ("BTC all ruined" in remark)


def test_a_ruined_rival_and_a_ruined_seed_are_marked_where_they_are_compared(make_pair):
    whole = make_pair("BTC")
    lost = [{**row, "ruined": row["seed"] == 1} for row in whole.seeds.rows]
    runs = {name: {**run, "ruined": run["seed"] == 1} for name, run in whole.seeds.policy.runs.items()}
    seeds = replace(whole.seeds, rows=lost, policy=replace(whole.seeds.policy, runs=runs))
    held = whole.comparison.methods["buy_and_hold"]
    methods = whole.comparison.methods | {
        "buy_and_hold": replace(held, performance=replace(held.performance, ruined=True))
    }
    comparison = replace(whole.comparison, methods=methods)
    tables = paper_tables({"BTC": replace(whole, comparison=comparison, seeds=seeds)}, profile="smoke")
    tags = {
        (title, line.label): line.tags
        for title in ("ArchetypeTrader against", "Seeds")
        for block in sheet_of(tables, title).blocks
        for line in block.lines
    }
    assert tags["ArchetypeTrader against", "Buy and hold"] == ("ruined",)
    assert tags["Seeds", "Mean"] == ("1 of 3 seeds ruined",)
    assert tags["Seeds", "Ahead of Buy and hold, %"] == ("ruined",)
    assert tags["Seeds", "Ahead of MACD, %"] == ()


def test_what_does_not_belong_together_is_refused(make_pair):
    whole = make_pair("BTC")
    with pytest.raises(ValueError, match="at least one pair"):
        paper_tables({}, profile="smoke")
    with pytest.raises(ValueError, match="results of BTC are given as those of ETH"):
        paper_tables({"ETH": whole}, profile="smoke")
    with pytest.raises(ValueError, match="unknown study table_2"):
        replace(whole, studies={"table_2": []})
    study = whole.studies["embedding_study"][0]
    with pytest.raises(ValueError, match="must be of pair BTC, got ETH"):
        replace(whole, studies={"embedding_study": [replace(study, pair="ETH")]})
    with pytest.raises(ValueError, match="twice"):
        replace(whole, studies={"embedding_study": [study, study]})
    other = [{**row, "total_return": row["total_return"] + 0.1} for row in whole.seeds.rows]
    with pytest.raises(ValueError, match=f"{POLICY} of BTC with seed 0 returned"):
        replace(whole, seeds=replace(whole.seeds, rows=other))


def test_methods_of_the_table_are_those_of_the_comparison(results):
    assert set(results["BTC"].comparison.methods) == set(METHODS)
