"""The printed figures agree with each other where the paper prints one figure twice, and bad ones are refused."""

import pytest
import yaml
from pydantic import ValidationError

from archetype_dagster.reporting.paper import PaperResults, paper_results
from archetype_dagster.reporting.paper.printed import PAPER_FILE
from archetype_dagster.settings import PAIRS, config_text
from archetype_dagster.studies.comparison import METHODS, POLICY


def test_the_paper_prints_nine_methods_on_four_pairs():
    printed = paper_results()
    assert printed.pairs == PAIRS
    assert set(METHODS) - set(printed.table_1) == {"buy_and_hold", "random", "always_flat"}


def test_figures_that_are_printed_twice_agree():
    printed = paper_results()
    for pair in PAIRS:
        whole, full = printed.table_1[POLICY][pair], printed.table_3["full"][pair]
        assert (whole.tr, whole.asr, whole.mdd) == (full.tr, full.asr, full.mdd)
        assert printed.table_2["vq"][pair] == printed.table_3["no_refinement"][pair]
    assert printed.table_4["h=72"]["DOT"].tr == printed.table_4["K=10"]["DOT"].tr == printed.table_1[POLICY]["DOT"].tr


def test_printed_rows_that_break_the_calmar_identity_are_found():
    printed = paper_results()
    broken = printed.broken_identities()
    assert broken == [("dqn", "BNB"), ("macrohft", "DOT")]
    table = dict(printed.table_1)
    for name, pair in broken:
        row = table[name][pair]
        table[name] = {**table[name], pair: row.model_copy(update={"acr": round(row.asr * row.avol / row.mdd, 2)})}
    assert printed.model_copy(update={"table_1": table}).broken_identities() == []


def test_percent_becomes_fractions_and_missing_figures_stay_missing():
    printed = paper_results()
    assert printed.table_1[POLICY]["BTC"].as_dict()["total_return"] == pytest.approx(0.7625)
    assert printed.table_4["h=36"]["DOT"].as_dict() == {
        "total_return": pytest.approx(0.5543),
        **dict.fromkeys(("sharpe", "calmar", "sortino", "annual_volatility", "max_drawdown")),
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["table_1"].update(ddpg=raw["table_1"]["dqn"]), "unknown methods ddpg"),
        (lambda raw: raw["table_1"].pop(POLICY), "table_1 lacks archetype_trader"),
        (lambda raw: raw["table_2"]["vq"].pop("BNB"), "table_2, vq: must give BTC, ETH, DOT, BNB"),
        (lambda raw: raw["table_4"]["K=5"].update(XRP={"tr": 1.0}), "table_4, K=5: must give"),
        (lambda raw: raw["table_1"]["ppo"]["BTC"].pop("acr"), "table_1, ppo, BTC: needs all six"),
        (lambda raw: raw["table_3"]["full"]["BTC"].update(sharpe=1.0), "Extra inputs are not permitted"),
        (lambda raw: raw["table_3"]["full"]["BTC"].update(tr=float("nan")), "finite number"),
    ],
)
def test_incomplete_and_unknown_figures_are_refused(change, message):
    raw = yaml.safe_load(config_text(PAPER_FILE))
    change(raw)
    with pytest.raises(ValidationError, match=message):
        PaperResults.model_validate(raw)
