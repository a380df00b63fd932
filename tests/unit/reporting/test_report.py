"""The report: one self-contained page and the same numbers as files, the same bytes each time."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest.evaluation import VARIANTS
from archetype_dagster.reporting import read_examples, write_report
from archetype_dagster.reporting.content import VariantRow, archetype_rows, monthly_returns, variant_rows
from archetype_dagster.reporting.pictures import behaviour_examples

FILES = [
    "archetype_examples.parquet",
    "ledger.csv",
    "ledger.parquet",
    "metrics.csv",
    "metrics.json",
    "net_values.parquet",
    "report.html",
]


class Page(HTMLParser):
    """Tags, attributes and the text of every table row of a page."""

    VOID = frozenset({"meta", "link", "img", "br", "source"})

    def __init__(self, text):
        super().__init__()
        self.open, self.addresses, self.tags, self.rows = [], [], set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.addresses += [value for key, value in attrs if key in ("src", "srcset", "href", "action", "data")]
        if tag == "tr":
            hindsight = any(name == "tbody" and "hindsight" in kind for name, kind in self.open)
            self.rows.append({"hindsight": hindsight, "text": ""})
        if tag not in self.VOID:
            self.open.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag, f"</{tag}> closes another element"

    def handle_data(self, data):
        if any(tag == "tr" for tag, _ in self.open):
            self.rows[-1]["text"] += data + " "


@pytest.fixture(scope="module")
def written(evaluation, settings, tmp_path_factory):
    directory = tmp_path_factory.mktemp("report")
    return directory, write_report(evaluation, directory, settings=settings)


@pytest.fixture(scope="module")
def page(written):
    return Page((written[0] / "report.html").read_text())


def test_the_report_is_these_files(written):
    assert sorted(path.name for path in written[0].iterdir()) == FILES


def test_the_page_asks_for_nothing_outside_itself(written, page):
    text = (written[0] / "report.html").read_text()
    assert page.open == []
    assert all(address.startswith("data:") for address in page.addresses)
    assert not page.tags & {"script", "iframe", "object", "embed", "form", "base"}
    assert not re.search(r"@import|url\(|https?://", text)
    assert "default-src 'none'" in text


def test_the_same_evaluation_gives_the_same_bytes(written, evaluation, settings, tmp_path):
    write_report(evaluation, tmp_path, settings=settings)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (written[0] / name).read_bytes(), name


def test_the_page_states_data_book_capital_splits_settings_and_seed(written, settings):
    text = (written[0] / "report.html").read_text()
    for fact in (
        "embedded synthetic market",
        "modelled, not recorded",
        f"{written[1]['initial_capital']:,.0f} USDT",
        settings.content_hash,
        "1 Jan 2024 until before 1 Sep 2024",
        "2 bp of the traded notional",
    ):
        assert fact in text, fact
    assert re.search(r"<dt>Seed</dt><dd>0</dd>", text)


def test_every_variant_is_explained_and_hindsight_rows_stand_apart(page):
    for name, meaning in VARIANTS.items():
        rows = [row for row in page.rows if meaning in row["text"]]
        assert len(rows) == 1, name
        assert rows[0]["hindsight"] == (name == "hindsight_plan")
        assert ("hindsight" in rows[0]["text"].replace(meaning, "").lower()) == (name == "hindsight_plan")


def test_undefined_ratios_read_not_available_and_never_zero(page):
    flat = next(row["text"] for row in page.rows if VARIANTS["always_flat"] in row["text"])
    assert flat.split().count("n/a") == 3


def test_metrics_files_agree_and_hold_the_calmar_identity(written):
    directory, summary = written
    assert json.loads((directory / "metrics.json").read_text()) == summary
    table = pl.read_csv(directory / "metrics.csv")
    assert table["variant"].to_list() == list(VARIANTS)
    for row in table.iter_rows(named=True):
        assert row["sharpe"] == summary["variants"][row["variant"]]["sharpe"]
        if row["sharpe"] is not None:
            assert row["calmar"] == pytest.approx(row["sharpe"] * row["annual_volatility"] / row["max_drawdown"])


def test_the_ledger_files_hold_every_bar_of_the_full_policy(written, evaluation):
    ledger = evaluation.full.ledger
    frame = pl.read_parquet(written[0] / "ledger.parquet")
    assert frame["net_value"].to_list() == ledger.net_value.tolist()
    assert pl.read_csv(written[0] / "ledger.csv")["net_value"].to_list() == ledger.net_value.tolist()
    values = pl.read_parquet(written[0] / "net_values.parquet")
    assert values.columns == ["timestamp", *VARIANTS]
    assert values["full"].to_list() == ledger.net_value.tolist()


def test_a_hindsight_policy_is_flagged_everywhere_and_not_ranked(make_evaluation, settings, tmp_path):
    summary = write_report(make_evaluation(hindsight=True), tmp_path, settings=settings)
    text = (tmp_path / "report.html").read_text()
    assert summary["hindsight"] is True
    assert "could not have been traded: they are marked throughout" in text
    assert "by Sharpe ratio among" not in text
    full = [row for row in Page(text).rows if VARIANTS["full"] in row["text"]]
    assert [row["hindsight"] for row in full] == [True]


def test_ruin_is_said_and_its_rows_end(make_evaluation, settings, tmp_path):
    evaluation = make_evaluation(crash=True)
    summary = write_report(evaluation, tmp_path, settings=settings)
    assert summary["variants"]["full"]["ruined"] is True
    assert summary["variants"]["full"]["total_return"] == -1.0
    assert "lost its whole capital" in (tmp_path / "report.html").read_text()
    ended = len(evaluation.full.ledger)
    values = pl.read_parquet(tmp_path / "net_values.parquet")
    assert values["full"].null_count() == evaluation.bars - ended > 0


def test_money_columns_add_up(evaluation):
    for row in variant_rows(evaluation):
        assert row.gross - row.slippage - row.commission == pytest.approx(row.net, abs=1e-6)
        assert row.long_share + row.flat_share + row.short_share == pytest.approx(1.0)
    by_name = {row.name: row for row in variant_rows(evaluation)}
    assert by_name["full"].cost_bps == pytest.approx(3.0)
    assert by_name["always_flat"].cost_bps is None


def test_a_row_that_breaks_the_calmar_identity_is_refused(evaluation):
    good = variant_rows(evaluation)[0]
    with pytest.raises(ValueError, match="ACR must equal ASR AVOL / MDD"):
        replace(good, metrics=replace(good.metrics, calmar=good.metrics.calmar * 1.01))


def test_monthly_returns_compound_to_the_total_and_midnight_belongs_to_the_month_before(evaluation):
    ledger = evaluation.full.ledger
    months = monthly_returns(ledger)
    assert list(months) == ["2024-01", "2024-02"]
    total = np.prod([1.0 + value for value in months.values()]) - 1.0
    assert total == pytest.approx(evaluation.full.performance.total_return)
    midnight = int(np.flatnonzero(ledger.timestamps == np.datetime64("2024-02-01"))[0])
    assert months["2024-01"] == pytest.approx(ledger.net_value[midnight] / ledger.initial_capital - 1.0)


def test_a_first_bar_at_midnight_opens_its_month(evaluation):
    ledger = evaluation.full.ledger
    opened = replace(ledger, timestamps=ledger.timestamps + (np.datetime64("2024-02-01") - ledger.timestamps[0]))
    assert list(monthly_returns(opened)) == ["2024-02", "2024-03"]


def test_one_ruined_draw_does_not_ruin_the_mean(evaluation):
    row = {row.name: row for row in variant_rows(evaluation)}["random_archetype"]
    lost = replace(row.draws[0], ruined=True)
    assert (row.ruined, row.ruin) == (False, "")
    assert replace(row, draws=(lost, row.draws[1])).ruin == "1 of 2 draws ruined"
    assert replace(row, draws=(lost, lost)).ruined


def test_archetype_rows_split_the_horizons_exactly(evaluation):
    rows = archetype_rows(evaluation)
    assert [row.horizons for row in rows] == evaluation.code_usage.tolist()
    assert sum(row.share for row in rows) == pytest.approx(1.0)
    used = [row for row in rows if row.horizons]
    overridden = sum(row.overridden * row.horizons for row in used)
    assert overridden == pytest.approx(np.count_nonzero(evaluation.decisions.override_rows >= 0))
    profit = sum(row.mean_return * row.horizons for row in used)
    assert profit == pytest.approx(evaluation.horizon_returns.sum())
    assert [row.mean_return for row in rows if not row.horizons] == [None]


def test_behaviour_examples_do_not_depend_on_the_result(evaluation):
    examples = behaviour_examples(evaluation, 2)
    assert {len(example.actions) for example in examples} == {72}
    losing = replace(evaluation, variants={**evaluation.variants, "full": evaluation.variants["random_archetype"]})
    assert [example.title for example in behaviour_examples(losing, 2)] == [example.title for example in examples]


def test_rows_know_their_variant(evaluation):
    row = {row.name: row for row in variant_rows(evaluation)}["base_archetype"]
    assert isinstance(row, VariantRow)
    assert row.meaning.endswith("here archetype 3")


def test_the_examples_of_figure_2_are_read_back(written, evaluation):
    shown = behaviour_examples(evaluation, 2, 2)
    found = read_examples(written[0])
    assert [(one.code, one.title, one.initial_action) for one in found] == [
        (one.code, one.title, one.initial_action) for one in shown
    ]
    assert all(np.array_equal(a.mark, b.mark) for a, b in zip(found, shown, strict=True))
    assert all(np.array_equal(a.actions, b.actions) for a, b in zip(found, shown, strict=True))
