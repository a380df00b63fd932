import runpy
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from archetype_dagster.market.book import mark_prices, trade_costs

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize(
    ("script", "rivals"),
    [
        ("train_spot_single_leg.py", {"flat", "hold", "random"}),
        ("spot_perp_arb_demo.py", {"flat", "hold spot against swap", "random"}),
    ],
)
def test_an_example_trains_judges_and_logs(
    script: str, rivals: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    main = runpy.run_path(str(EXAMPLES / script))["main"]
    results = main(["--steps", "600", "--days", "6", "--seed", "1", "--out", str(tmp_path)])
    assert set(results) == {"ppo", "ppo on shuffled returns"} | rivals
    assert results["flat"].total_return == 0
    assert results["flat"].sharpe.estimate is None
    random = results["random"]
    assert random.turnover > 50
    assert random.total_return < 0
    assert random.sharpe.low < random.sharpe.estimate < random.sharpe.high
    assert len(list(tmp_path.rglob("events.out.tfevents*"))) == 2
    assert capsys.readouterr().out.count("held out: ") == 2


def test_the_control_has_the_same_returns_in_another_order(monkeypatch: pytest.MonkeyPatch, bars: pl.DataFrame) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    shuffled = runpy.run_path(str(EXAMPLES / "_ppo.py"))["shuffled"]
    [control] = shuffled([bars], 0)
    real, other = (np.diff(np.log(mark_prices(table))) for table in (bars, control))
    np.testing.assert_allclose(np.sort(other), np.sort(real), atol=1e-12)
    assert abs(np.corrcoef(real, other)[0, 1]) < 0.2
    costs = [
        trade_costs(table, max_position=1.0, commission_rate=0.0)[:, 1, 2] / mark_prices(table)
        for table in (bars, control)
    ]
    np.testing.assert_allclose(costs[1], costs[0], rtol=1e-6)
