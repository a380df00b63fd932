"""The leaderboard ranks what could have been traded and lists the rest apart."""

import json

import polars as pl
import pytest

from archetype_dagster.errors import ArtifactError
from archetype_dagster.reporting import leaderboard, read_metrics, write_leaderboard
from archetype_dagster.reporting.content import variant_rows
from archetype_dagster.reporting.report import summarise


@pytest.fixture(scope="module")
def metrics(make_evaluation, settings):
    def summary(**kind):
        evaluation = make_evaluation(**kind)
        return summarise(evaluation, variant_rows(evaluation), settings)

    return {"ETH": summary(), "BTC": summary(hindsight=True), "DOT": summary(crash=True)}


def test_ranks_go_by_sharpe_within_each_pair(metrics):
    frame = leaderboard(metrics)
    eth = frame.filter(pl.col("pair") == "ETH", pl.col("rank").is_not_null()).sort("rank")
    assert eth["rank"].to_list() == [1, 2, 3, 4, 5]
    assert eth["sharpe"].to_list() == sorted(eth["sharpe"], reverse=True)


def test_hindsight_rows_never_rank_and_come_last(metrics):
    frame = leaderboard(metrics)
    assert frame["hindsight"].to_list() == sorted(frame["hindsight"])
    bounds = frame.filter("hindsight")
    assert bounds["rank"].null_count() == bounds.height
    assert set(bounds.filter(pl.col("pair") == "BTC")["variant"]) >= {"full", "hindsight_plan"}
    best = frame.filter(pl.col("pair") == "ETH").sort("sharpe", descending=True, nulls_last=True)
    assert best["variant"][0] == "hindsight_plan", "the bound would have won the ranking"


def test_a_ruined_account_has_no_rank(metrics):
    frame = leaderboard(metrics).filter(pl.col("pair") == "DOT", ~pl.col("hindsight"))
    ruined = frame.filter("ruined")
    assert ruined["variant"].to_list() == ["full"]
    assert ruined["rank"].to_list() == [None]
    assert frame["rank"].drop_nulls().to_list() == [1, 2, 3, 4]


def test_an_undefined_ratio_has_no_rank(metrics):
    flat = leaderboard(metrics).filter(pl.col("variant") == "always_flat")
    assert flat["sharpe"].null_count() == flat["rank"].null_count() == 3


def test_the_files_hold_the_same_rows_and_repeat_byte_by_byte(metrics, tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        frame = write_leaderboard(metrics, folder)
    assert pl.read_parquet(first / "leaderboard.parquet").equals(frame)
    assert json.loads((first / "leaderboard.json").read_text()) == frame.to_dicts()
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes(), path.name


def test_the_page_warns_of_different_settings(metrics, tmp_path):
    write_leaderboard(metrics, tmp_path)
    assert "Different settings" not in (tmp_path / "leaderboard.html").read_text()
    write_leaderboard({**metrics, "DOT": {**metrics["DOT"], "settings_hash": "f" * 64}}, tmp_path)
    assert "Different settings" in (tmp_path / "leaderboard.html").read_text()


def test_the_page_sets_hindsight_rows_apart(metrics, tmp_path):
    write_leaderboard(metrics, tmp_path)
    ranked, apart = (tmp_path / "leaderboard.html").read_text().split('<tbody class="hindsight">')
    assert "Hindsight plan" not in ranked
    assert apart.count('<span class="tag hind">') == leaderboard(metrics)["hindsight"].sum()


def test_names_in_the_data_are_escaped(metrics, tmp_path):
    write_leaderboard({"<script>alert(1)</script>": metrics["ETH"]}, tmp_path)
    page = (tmp_path / "leaderboard.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_no_pair_and_damaged_metrics_are_refused(tmp_path):
    with pytest.raises(ValueError, match="at least one pair"):
        leaderboard({})
    with pytest.raises(ArtifactError, match="does not exist"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.json").write_text("{")
    with pytest.raises(ArtifactError, match="truncated"):
        read_metrics(tmp_path)
