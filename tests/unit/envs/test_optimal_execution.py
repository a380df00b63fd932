import numpy as np
import polars as pl
import pytest

from archetype_dagster.envs import (
    OptimalExecutionEnv,
    almgren_chriss_left,
    expected_shortfall_bps,
    generated_prices,
    twap_left,
)
from archetype_dagster.settings import OptimalExecutionSettings, PricePathSettings

FRAME = generated_prices(PricePathSettings(assets=1, bars=400, bar_seconds=60, volatility_bps=10.0))
STILL = FRAME.with_columns(asset_1=pl.lit(100.0))
SETTINGS = OptimalExecutionSettings(starts="first", horizon_bars=30, quantity=5.0)
IMPACTS = {"half_spread_bps": 0.5, "temporary_impact_bps": 200.0, "permanent_impact_bps": 5.0}


def played(env: OptimalExecutionEnv, policy: str | np.ndarray, *, seed: int = 0) -> list[dict]:
    """Infos with rewards of an order under a baseline, or under actions of which the last is repeated."""
    env.reset(seed=seed)
    infos: list[dict] = []
    over = False
    while not over:
        action = env.baseline_action(policy) if isinstance(policy, str) else policy[min(len(infos), len(policy) - 1)]
        _, reward, terminated, truncated, info = env.step(action)
        infos.append(info | {"reward": reward})
        over = terminated
        assert not truncated
    return infos


def test_twap_falls_short_by_the_formula_on_a_still_price() -> None:
    for side in ("sell", "buy"):
        infos = played(OptimalExecutionEnv(STILL, settings=SETTINGS.model_copy(update={"side": side})), "twap")
        np.testing.assert_allclose([info["traded"] for info in infos], 5.0 / 30, rtol=1e-12)
        expected = 5 / 2 + 0.5 + (200 - 5 / 2) / 30
        assert expected_shortfall_bps(twap_left(30), **IMPACTS) == pytest.approx(expected, rel=1e-12)
        assert infos[-1]["shortfall"] == pytest.approx(expected * 1e-4 * 5.0 * 100.0, rel=1e-9)
        # A price that does not move bears no risk.
        assert sum(info["reward"] for info in infos) == pytest.approx(-expected, abs=1e-9)


@pytest.mark.parametrize("side", ["sell", "buy"])
def test_twap_falls_short_by_impact_and_by_what_the_market_did(side: str) -> None:
    env = OptimalExecutionEnv(FRAME, settings=SETTINGS.model_copy(update={"side": side}))
    start = env.reset()[1]["row"]
    path = FRAME["asset_1"].to_numpy()[start : start + 30]
    drift = 1e4 * (1 - path.mean() / path[0]) * (1 if side == "sell" else -1)
    last = played(env, "twap")[-1]
    expected = expected_shortfall_bps(twap_left(30), **IMPACTS) + drift
    assert 1e4 * last["shortfall"] / (5 * path[0]) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("side", ["sell", "buy"])
@pytest.mark.parametrize("seed", range(3))
def test_rewards_sum_to_minus_shortfall_minus_risk(side: str, seed: int) -> None:
    env = OptimalExecutionEnv(FRAME, settings=SETTINGS.model_copy(update={"side": side, "starts": "random"}))
    infos = played(env, np.random.default_rng(seed).uniform(-1, 0.3, (30, 1)), seed=seed)
    arrival, sign = infos[0]["arrival_price"], 1 if side == "sell" else -1
    spent = sum(info["traded"] * info["price"] for info in infos)
    assert sum(info["traded"] for info in infos) == pytest.approx(5.0, rel=1e-12)
    shortfall = sign * (5.0 * arrival - spent)
    assert infos[-1]["shortfall"] == pytest.approx(shortfall, abs=1e-9)
    risk = 0.003 * env.arrival_volatility_bps**2 * sum((info["left"] / 5.0) ** 2 for info in infos)
    total = sum(info["reward"] for info in infos)
    assert total == pytest.approx(-1e4 * shortfall / (5.0 * arrival) - risk, abs=1e-9)
    assert risk > 0


def test_what_is_left_at_the_end_trades_at_its_cost() -> None:
    infos = played(OptimalExecutionEnv(STILL, settings=SETTINGS), np.array([[-1.0]]))
    assert len(infos) == 30
    assert [info["traded"] for info in infos] == [0.0] * 29 + [5.0]
    assert infos[-1]["forced"] == 5.0
    assert infos[-1]["price"] == pytest.approx(100 * (1 - 200.5e-4), rel=1e-12)
    assert infos[-1]["ended"] == "executed"
    assert infos[-1]["shortfall"] == pytest.approx(5 * 100 * 200.5e-4, rel=1e-9)


def test_an_order_done_at_once_is_over_at_once() -> None:
    infos = played(OptimalExecutionEnv(STILL, settings=SETTINGS), np.array([[1.0]]))
    assert len(infos) == 1
    assert (infos[0]["ended"], infos[0]["forced"], infos[0]["left"]) == ("executed", 0.0, 0.0)


def test_the_pace_is_nothing_twap_or_everything_and_grows_between() -> None:
    env = OptimalExecutionEnv(STILL, settings=SETTINGS)
    shares = []
    for pace in (-1.0, -0.5, 0.0, 0.25, 0.5, 1.0):
        env.reset()
        shares.append(env.step(np.array([pace]))[4]["traded"] / 5.0)
    np.testing.assert_allclose(shares, [0, 1 / 60, 1 / 30, 30**-0.75, 30**-0.5, 1], rtol=1e-12)


def test_almgren_chriss_is_the_least_of_shortfall_and_risk() -> None:
    terms = {"volatility_bps": 10.0, "temporary_impact_bps": 200.0, "permanent_impact_bps": 5.0}
    left = almgren_chriss_left(30, risk_aversion=0.01, **terms)

    def objective(path: np.ndarray) -> float:
        return expected_shortfall_bps(path, **IMPACTS) + 0.01 * 10.0**2 * float((path[1:] ** 2).sum())

    assert (left[0], left[-1]) == (1.0, 0.0)
    generator = np.random.default_rng(0)
    for _ in range(50):
        other = left.copy()
        other[1:-1] += 0.01 * generator.standard_normal(29)
        assert objective(other) > objective(left)
    assert objective(left) < objective(twap_left(30))
    np.testing.assert_array_equal(almgren_chriss_left(30, risk_aversion=0.0, **terms), twap_left(30))
    np.testing.assert_allclose(almgren_chriss_left(30, risk_aversion=1e-9, **terms), twap_left(30), atol=1e-6)
    hurried = almgren_chriss_left(30, risk_aversion=1e6, **terms)
    assert np.isfinite(hurried).all()
    assert hurried[1] < 1e-3


def test_the_baseline_walks_the_optimal_path_and_beats_twap_where_risk_counts() -> None:
    env = OptimalExecutionEnv(FRAME, settings=SETTINGS.model_copy(update={"risk_aversion": 0.05}))
    infos = played(env, "almgren_chriss")
    expected = almgren_chriss_left(
        30,
        volatility_bps=env.arrival_volatility_bps,
        temporary_impact_bps=200.0,
        permanent_impact_bps=5.0,
        risk_aversion=0.05,
    )
    np.testing.assert_allclose([info["left"] / 5.0 for info in infos], expected[1:], atol=1e-9)
    starts = range(60, 340, 10)

    def total(policy: str, start: int) -> float:
        env.reset(options={"start": start})
        over, rewards = False, 0.0
        while not over:
            _, reward, over, _, _ = env.step(env.baseline_action(policy))
            rewards += reward
        return rewards

    assert np.mean([total("almgren_chriss", start) - total("twap", start) for start in starts]) > 0


def test_the_window_shows_the_price_before_the_order_and_its_impact_after() -> None:
    env = OptimalExecutionEnv(FRAME, settings=SETTINGS.model_copy(update={"lookback_bars": 3}))
    observation, info = env.reset()
    path = FRAME["asset_1"].to_numpy()
    gains = 1e4 * (path[info["row"] - 2 : info["row"] + 1] / path[info["row"]] - 1)
    window = observation.reshape(3, 6)
    np.testing.assert_allclose(window[:, 3:], np.stack(([1, 1, 1], [32 / 30, 31 / 30, 1], gains), axis=1), rtol=1e-5)
    observation, _, _, _, after = env.step(np.zeros(1))
    seen = path[after["row"]] - 5e-4 / 30 * path[info["row"]]
    assert after["mid"] == pytest.approx(seen, rel=1e-12)
    assert observation[-1] == pytest.approx(1e4 * (seen / path[info["row"]] - 1), rel=1e-5)


def test_impacts_under_which_splitting_does_not_pay_are_refused() -> None:
    with pytest.raises(ValueError, match="must exceed half of permanent_impact_bps"):
        OptimalExecutionSettings(temporary_impact_bps=2.0, permanent_impact_bps=5.0)
    with pytest.raises(ValueError, match="horizon_bars must be positive"):
        twap_left(0)
