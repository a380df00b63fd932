import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archetype_dagster.envs import PortfolioAllocationEnv, StockTradingEnv, generated_prices
from archetype_dagster.envs.allocation import value_after_costs
from archetype_dagster.envs.price_columns import log_returns, turbulence
from archetype_dagster.settings import PortfolioAllocationSettings, PricePathSettings, StockTradingSettings

FRAME = generated_prices(PricePathSettings(assets=3, bars=140))
PRICES = FRAME.drop("timestamp").to_numpy()
STOCK = StockTradingSettings(
    starts="first", episode_bars=None, turbulence_threshold=None, turbulence_bars=30, reward="simple"
)
PORTFOLIO = PortfolioAllocationSettings(starts="first", episode_bars=None)


def played(env: StockTradingEnv | PortfolioAllocationEnv, actions: np.ndarray | None) -> list[tuple]:
    """Steps until the end of the episode under the same or the following actions, or equal weights."""
    env.reset(seed=0)
    steps: list[tuple] = []
    while not steps or not (steps[-1][2] or steps[-1][3]):
        action = env.baseline_action("equal_weight") if actions is None else actions[min(len(steps), len(actions) - 1)]
        steps.append(env.step(action))
    return steps


def framed(prices: np.ndarray) -> pl.DataFrame:
    names = [f"asset_{number}" for number in range(prices.shape[1])]
    return pl.DataFrame({"timestamp": FRAME["timestamp"][: len(prices)]}).with_columns(
        pl.Series(name, prices[:, number]) for number, name in enumerate(names)
    )


def first_row(env: StockTradingEnv | PortfolioAllocationEnv) -> int:
    return int(env.reset()[1]["row"])


@settings(max_examples=60, deadline=None)
@given(
    worth=st.lists(st.floats(-2, 2), min_size=3, max_size=3),
    weights=st.lists(st.floats(-1, 1), min_size=3, max_size=3),
    rate=st.floats(0, 0.09),
)
def test_value_after_costs_is_what_the_trade_leaves(worth: list[float], weights: list[float], rate: float) -> None:
    left = value_after_costs(np.array(worth), np.array(weights), 3.0, rate)
    cost = rate * np.abs(np.array(weights) * left - worth).sum()
    assert left == pytest.approx(3.0 - cost, abs=1e-12)


def test_a_flat_account_earns_nothing() -> None:
    steps = played(StockTradingEnv(FRAME, settings=STOCK), np.zeros((1, 3)))
    assert {step[1] for step in steps} == {0.0}
    assert steps[-1][4]["net_value"] == STOCK.initial_capital
    cash = played(PortfolioAllocationEnv(FRAME, settings=PORTFOLIO.model_copy(update={"weights": "renormalised"})),
                  np.array([[-1.0, -1.0, -1.0, 1.0]]))  # fmt: skip
    assert {step[1] for step in cash} == {0.0}


def test_equal_weights_without_costs_earn_the_product_of_mean_returns() -> None:
    free = {"cost_rate": 0.0}
    for env in (
        StockTradingEnv(FRAME, settings=STOCK.model_copy(update=free)),
        PortfolioAllocationEnv(FRAME, settings=PORTFOLIO.model_copy(update=free | {"cash": False})),
    ):
        expected = (PRICES[1:] / PRICES[:-1])[first_row(env) :].mean(axis=1).prod()
        net_value = played(env, None)[-1][4]["net_value"]
        assert net_value / env.settings.initial_capital == pytest.approx(expected, rel=1e-12)


def test_assets_that_move_as_one_cost_their_purchase_and_nothing_more() -> None:
    together = PRICES[:, :1] * np.array([1.0, 3.0, 0.5])
    env = StockTradingEnv(framed(together), settings=STOCK)
    start = first_row(env)
    steps = played(env, None)
    bought = STOCK.initial_capital / (1 + STOCK.cost_rate)
    assert steps[0][4]["cost"] == pytest.approx(STOCK.cost_rate * bought, rel=1e-12)
    assert sum(step[4]["cost"] for step in steps[1:]) < 1e-6
    assert steps[-1][4]["net_value"] == pytest.approx(bought * PRICES[-1, 0] / PRICES[start, 0], rel=1e-12)


def test_drifted_weights_are_paid_for_back_to_equal() -> None:
    env = PortfolioAllocationEnv(FRAME, settings=PORTFOLIO.model_copy(update={"cash": False}))
    row, value, weights = first_row(env), 1.0, np.full(3, 1 / 3)
    for step in played(env, None):
        # The share that remains by bisection, as an independent account of the same cost.
        low, high = 0.0, 1.0
        for _ in range(80):
            middle = (low + high) / 2
            too_much = middle + 0.001 * np.abs(middle / 3 - weights).sum() > 1
            low, high = (low, middle) if too_much else (middle, high)
        moved = PRICES[row + 1] / PRICES[row]
        value *= low * moved.mean()
        weights = moved / moved.sum()
        row += 1
        assert step[4]["net_value"] / 1e6 == pytest.approx(value, rel=1e-12)
        np.testing.assert_allclose(step[4]["weights"], weights, rtol=1e-9)


@pytest.mark.parametrize("reward", ["log", "simple"])
def test_rewards_sum_to_the_return_and_costs_to_what_is_missing(reward: str) -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (110, 3))
    settings = STOCK.model_copy(update={"reward": reward, "max_gross": 2.0})
    steps = played(StockTradingEnv(FRAME, settings=settings), actions)
    total = steps[-1][4]["net_value"] / 1e6
    assert sum(step[1] for step in steps) == pytest.approx(np.log(total) if reward == "log" else total - 1, abs=1e-9)
    gains = [
        (earlier[4]["position"] * (PRICES[step[4]["row"]] - PRICES[step[4]["row"] - 1])).sum()
        for earlier, step in zip(steps, steps, strict=True)
    ]
    costs = sum(step[4]["cost"] for step in steps)
    assert total * 1e6 == pytest.approx(1e6 + sum(gains) - costs, rel=1e-9)
    assert costs == pytest.approx(0.001 * sum(step[4]["turnover"] for step in steps), rel=1e-12)
    last = steps[-1][4]
    assert last["cash"] + last["position"] @ PRICES[last["row"]] == pytest.approx(last["net_value"], rel=1e-12)


def test_shorts_gain_what_longs_lose_unless_they_are_not_allowed() -> None:
    action = np.array([[0.0, -0.5, 0.0]])
    env = StockTradingEnv(FRAME, settings=STOCK.model_copy(update={"cost_rate": 0.0}))
    row = first_row(env)
    env.reset()
    reward = env.step(action[0])[1]
    assert reward == pytest.approx(-0.5 * (PRICES[row + 1, 1] / PRICES[row, 1] - 1), rel=1e-9)
    long_only = StockTradingEnv(FRAME, settings=STOCK.model_copy(update={"shorting": False}))
    assert {step[1] for step in played(long_only, action)} == {0.0}


def test_gross_exposure_is_scaled_to_its_limit() -> None:
    env = StockTradingEnv(FRAME, settings=STOCK.model_copy(update={"max_gross": 1.5, "cost_rate": 0.0}))
    row = first_row(env)
    env.reset()
    info = env.step(np.array([1.0, -1.0, 0.5]))[4]
    np.testing.assert_allclose(info["position"] * PRICES[row] / 1e6, [0.6, -0.6, 0.3], rtol=1e-12)


def test_turbulence_is_the_distance_of_a_return_from_those_before_it() -> None:
    index = turbulence(PRICES, 30)
    returns = log_returns(PRICES)
    before = returns[50:80]
    excess = returns[80] - before.mean(axis=0)
    expected = excess @ np.linalg.inv(np.cov(before.T, bias=True)) @ excess / 3
    assert index[80] == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match="turbulence_bars must exceed"):
        turbulence(PRICES, 3)


def test_a_turbulent_bar_sells_everything_at_its_end() -> None:
    crash = PRICES.copy()
    crash[60:, 0] *= 0.8
    env = StockTradingEnv(framed(crash), settings=STOCK.model_copy(update={"turbulence_threshold": 20.0}))
    assert env.turbulence[60] > 20
    steps = played(env, None)
    halted = [step[4]["row"] - 1 for step in steps if step[4]["halted"]]
    assert 60 in halted
    assert halted == [row for row in range(31, len(crash) - 1) if env.turbulence[row] > 20]
    stopped = next(step[4] for step in steps if step[4]["row"] == 61)
    before = next(step[4] for step in steps if step[4]["row"] == 60)
    assert not stopped["position"].any()
    assert stopped["net_value"] == pytest.approx(before["net_value"] - stopped["cost"], rel=1e-12)
    assert stopped["cost"] == pytest.approx(0.001 * before["position"] @ crash[60], rel=1e-12)
    assert next(step[4] for step in steps if step[4]["row"] == 62)["position"].all()


@pytest.mark.parametrize(
    ("factor", "changes", "ended"),
    [
        (2.1, {}, "ruin"),
        (1.93, {}, "margin"),
        (1.3, {"max_drawdown": 0.25}, "drawdown"),
        (1.3, {}, None),
    ],
)
@pytest.mark.parametrize("reward", ["log", "simple"])
def test_limits_terminate_and_time_truncates(
    factor: float, changes: dict[str, float], ended: str | None, reward: str
) -> None:
    jump = np.full((60, 1), 100.0)
    jump[40:] *= factor
    settings = STOCK.model_copy(update={**changes, "reward": reward, "episode_bars": 20, "cost_rate": 0.0})
    steps = played(StockTradingEnv(framed(jump), settings=settings), np.array([[-1.0]]))
    assert steps[-1][2:4] == (ended is not None, ended is None)
    assert steps[-1][4]["ended"] == ended
    assert np.isfinite(steps[-1][0]).all()
    assert np.isfinite(steps[-1][1])
    assert len(steps) == 20 if ended is None else steps[-1][4]["row"] == 40


@settings(max_examples=30, deadline=None)
@given(action=st.lists(st.floats(-1, 1), min_size=4, max_size=4), rule=st.sampled_from(["softmax", "renormalised"]))
def test_weights_are_a_simplex_in_the_order_of_the_action(action: list[float], rule: str) -> None:
    env = PortfolioAllocationEnv(FRAME, settings=PORTFOLIO.model_copy(update={"weights": rule}))
    weights = env.simplex_weights(np.array(action))
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert (weights >= 0).all()
    assert (np.diff(weights[np.argsort(action)]) >= 0).all()


def test_a_portfolio_without_cash_begins_in_equal_weights_and_holds_none() -> None:
    env = PortfolioAllocationEnv(FRAME, settings=PORTFOLIO.model_copy(update={"cash": False}))
    info = env.reset()[1]
    np.testing.assert_allclose(info["weights"], 1 / 3)
    step = played(env, np.array([[1.0, 0.0, -1.0]]))[-1]
    assert step[4]["weights"].sum() == pytest.approx(1.0, abs=1e-9)
    assert abs(step[4]["cash"]) < 1e-6
    assert "cash" not in env.bar_features


def test_settings_that_could_not_be_paid_are_refused() -> None:
    with pytest.raises(ValueError, match="margin_floor must be at least cost_rate"):
        StockTradingSettings(margin_floor=0.0005)
    with pytest.raises(ValueError, match="Extra inputs"):
        StockTradingSettings(leverage=2)
