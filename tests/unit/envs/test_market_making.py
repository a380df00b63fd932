from itertools import pairwise

import numpy as np
import polars as pl
import pytest

from archetype_dagster.envs import MarketMakingEnv, avellaneda_stoikov_distances, generated_prices
from archetype_dagster.settings import MarketMakingSettings, PricePathSettings

LONG = MarketMakingSettings(starts="first", episode_bars=None, inventory_limit=10_000)
CALM = PricePathSettings(assets=1, bars=2_000, bar_seconds=10, volatility_bps=3.0, trend_share=0.0)
FRAME = generated_prices(CALM)


def played(env: MarketMakingEnv, action: np.ndarray | None, *, seed: int = 0) -> list[dict]:
    """Infos with rewards of an episode under one action; None for random ones."""
    env.reset(seed=seed)
    generator = np.random.default_rng(seed)
    infos: list[dict] = []
    over = False
    while not over:
        taken = generator.uniform(-1, 1, 2) if action is None else action
        _, reward, terminated, truncated, info = env.step(taken)
        infos.append(info | {"reward": reward, "terminated": terminated, "truncated": truncated})
        over = terminated or truncated
    return infos


def changed(**values: object) -> MarketMakingSettings:
    return LONG.model_copy(update=values)


def test_wider_quotes_fill_less_and_only_where_nearer_ones_do() -> None:
    env = MarketMakingEnv(FRAME, settings=LONG)
    fills = [
        np.array([(info["bought"], info["sold"]) for info in played(env, np.full(2, part))])
        for part in (-1.0, -0.6, -0.2, 0.4, 1.0)
    ]
    for nearer, wider in pairwise(fills):
        assert (wider <= nearer).all()
        assert wider.sum() < nearer.sum()
    assert not fills[-1].any()


def test_fills_come_as_often_as_their_intensity_says() -> None:
    env = MarketMakingEnv(FRAME, settings=changed(adverse_selection=0.0))
    infos = played(env, np.array([-0.8, -0.5]))
    for side, distance in (("bought", 2.0), ("sold", 5.0)):
        chance = 1 - np.exp(-0.9 * np.exp(-0.3 * distance))
        assert env.fill_probability(distance) == pytest.approx(chance, rel=1e-12)
        share = np.mean([info[side] for info in infos])
        assert abs(share - chance) < 4 * np.sqrt(chance * (1 - chance) / len(infos))


def test_adverse_selection_moves_the_mid_against_fills() -> None:
    mids = FRAME["asset_1"].to_numpy()

    def move_after_fills(share: float) -> float:
        infos = played(MarketMakingEnv(FRAME, settings=changed(adverse_selection=share)), np.full(2, -0.8))
        moves = [1e4 * np.log(mids[info["row"]] / mids[info["row"] - 1]) for info in infos]
        signs = [info["bought"] - info["sold"] for info in infos]
        return float(np.dot(moves, signs) / np.abs(signs).sum())

    assert abs(move_after_fills(0.0)) < 0.3
    assert move_after_fills(1.0) < move_after_fills(0.5) < -0.5


@pytest.mark.parametrize("penalty", [0.0, 0.02])
def test_rewards_sum_to_wealth_less_the_penalties_and_fees_are_paid_once(penalty: float) -> None:
    settings = changed(inventory_penalty_bps=penalty, maker_fee_bps=0.5, quote_size=2.0, episode_bars=300)
    env = MarketMakingEnv(FRAME, settings=settings)
    start = env.reset()[1]["mid"]
    infos = played(env, np.full(2, -0.7))
    penalties = sum(penalty * info["inventory"] ** 2 for info in infos)
    earned = 1e4 * infos[-1]["wealth"] / (2.0 * start)
    assert sum(info["reward"] for info in infos) == pytest.approx(earned - penalties, abs=1e-9)
    assert sum(info["inventory_penalty"] for info in infos) == pytest.approx(penalties, abs=1e-9)
    mids = [start, *(info["mid"] for info in infos[:-1])]
    values = [
        2.0 * mid * (info["sold"] * 1.0003 + info["bought"] * 0.9997) for mid, info in zip(mids, infos, strict=True)
    ]
    assert sum(info["fee"] for info in infos) == pytest.approx(0.5e-4 * sum(values), rel=1e-9)
    cash = sum(
        2.0 * mid * (info["sold"] * 1.0003 - info["bought"] * 0.9997) for mid, info in zip(mids, infos, strict=True)
    )
    assert infos[-1]["cash"] == pytest.approx(cash - 0.5e-4 * sum(values), rel=1e-9)


def test_too_much_inventory_terminates_and_time_truncates() -> None:
    env = MarketMakingEnv(FRAME, settings=changed(inventory_limit=3, episode_bars=200))
    breached = played(env, np.array([-1.0, 1.0]))
    assert [info["inventory"] for info in breached][-1] == 4
    assert (breached[-1]["terminated"], breached[-1]["truncated"], breached[-1]["ended"]) == (True, False, "inventory")
    assert all(abs(info["inventory"]) <= 3 for info in breached[:-1])
    quiet = played(env, np.ones(2))
    assert len(quiet) == 200
    assert (quiet[-1]["terminated"], quiet[-1]["truncated"], quiet[-1]["ended"]) == (False, True, None)
    assert {info["reward"] for info in quiet} == {0.0}


def test_the_closed_form_leans_against_inventory_and_widens_with_risk() -> None:
    terms = {"bars_left": 20.0, "risk_aversion": 0.01, "fill_decay_per_bps": 0.3}
    bid, ask = avellaneda_stoikov_distances(0, 3.0, **terms)
    assert bid == ask == pytest.approx(0.01 * 9 * 20 / 2 + np.log(1 + 0.01 / 0.3) / 0.01, rel=1e-12)
    long_bid, long_ask = avellaneda_stoikov_distances(2, 3.0, **terms)
    assert long_bid - bid == pytest.approx(ask - long_ask) == pytest.approx(2 * 0.01 * 9 * 20)
    # At the end of time only the margin over the fills' decay is left.
    assert avellaneda_stoikov_distances(5, 3.0, **terms | {"bars_left": 0.0})[0] == pytest.approx(
        np.log(1 + 0.01 / 0.3) / 0.01
    )
    with pytest.raises(ValueError, match="must be positive"):
        avellaneda_stoikov_distances(0, 3.0, **terms | {"risk_aversion": 0.0})


def test_avellaneda_stoikov_beats_random_quotes_and_keeps_its_inventory() -> None:
    env = MarketMakingEnv(FRAME, settings=MarketMakingSettings(episode_bars=200))
    differences, most = [], 0
    for seed in range(20):
        random = sum(info["reward"] for info in played(env, None, seed=seed))
        env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            _, reward, terminated, truncated, info = env.step(env.baseline_action())
            total += reward
            most = max(most, abs(info["inventory"]))
            over = terminated or truncated
        assert not terminated
        differences.append(total - random)
    assert np.mean(differences) > 4 * np.std(differences) / np.sqrt(len(differences))
    assert most <= 10


def test_prices_of_several_assets_are_refused() -> None:
    with pytest.raises(ValueError, match="one asset, got 2"):
        MarketMakingEnv(generated_prices(PricePathSettings(assets=2, bars=100)))


def test_bars_with_a_book_are_quoted_around_its_mid(bars: pl.DataFrame) -> None:
    env = MarketMakingEnv(bars, settings=changed(starts="random"))
    info = env.reset(seed=0)[1]
    assert info["mid"] == (bars["bid1_price"][info["row"]] + bars["ask1_price"][info["row"]]) / 2
