import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import pytest

from archetype_dagster.envs import MultiLegBacktestEnv, MultiLegBacktestVectorEnv
from archetype_dagster.sweeps import make_tb_log_dir

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("hpo_spot_perp_demo")


def arguments(out: Path) -> list[str]:
    short = {"--n-trials": 2, "--n-jobs": 1, "--steps": 600, "--days": 6, "--seeds": 1, "--out": out}
    return [str(part) for option in short.items() for part in option]


def test_the_sweep_is_judged_on_bars_that_no_trial_has_seen(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, held_out = demo.main(arguments(tmp_path / "one"))
    assert result.n_tried == 2
    assert set(held_out) == {"default, seed 1", "tuned, seed 1", "flat"}
    assert held_out["flat"].total_return == 0
    for trial in range(2):
        assert list(make_tb_log_dir(trial, tmp_path / "one" / "trials").glob("ppo_1/events.out.tfevents*"))
    told = capsys.readouterr().out
    assert told.count("held out: ") == 1
    assert f"best validation Sharpe {result.best_value:.2f}" in told

    def other_future(data: Path | None, base: str, days: int) -> tuple[list[pl.DataFrame], dict[str, pl.DataFrame]]:
        bars, funding = demo.loaded(data, base, days)
        rows = np.arange(bars[0].height)
        swing = pl.Series(np.where(rows < int(0.7 * len(rows)), 1.0, 1 + 0.01 * np.sin(rows)))
        prices = [
            name for name in bars[0].columns if name.endswith("_price") or name in ("open", "high", "low", "close")
        ]
        return [table.with_columns(pl.col(prices) * swing) for table in bars], funding

    monkeypatch.setattr(demo, "_loaded_once", other_future)
    again, other = demo.main(arguments(tmp_path / "two"))
    assert again.trials["value"].equals(result.trials["value"])
    assert other["default, seed 1"].total_return != held_out["default, seed 1"].total_return


def test_stretches_side_by_side_cover_the_bars_of_one_walk(demo: ModuleType, tmp_path: Path) -> None:
    task = demo.Task(None, "BTC", 1.0, 6, 0, 0, tmp_path)
    legs, bars, funding = task.market(0.5, 0.7)

    def sharpe(copies: int, positions: list[int]) -> float | None:
        market = MultiLegBacktestVectorEnv(copies, legs, data=bars, funding=funding, settings=demo.WHOLE)
        return demo.sharpe_in_stretches(market, lambda _: np.tile(positions, (copies, 1)))

    walk = MultiLegBacktestEnv(legs, data=bars, funding=funding, settings=demo.WHOLE)
    whole = demo.held_out(walk, lambda _: np.array([2, 2]), seed=0).sharpe.estimate
    assert sharpe(1, [2, 2]) == pytest.approx(whole, rel=0.1)
    assert sharpe(4, [2, 2]) == pytest.approx(whole, rel=0.5)
    assert sharpe(4, [1, 1]) is None
