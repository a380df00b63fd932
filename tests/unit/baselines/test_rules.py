from pathlib import Path

import numpy as np
import pytest
import torch

from archetype_dagster.baselines import fit_baseline
from archetype_dagster.baselines.rules import BuyAndHold, ImbalanceVolume, Macd, RandomHolder
from archetype_dagster.checkpoints import ResumePoint
from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.market.dataset import MarketDataset
from archetype_dagster.market.features import FEATURE_NAMES
from archetype_dagster.settings import BaselineSettings
from archetype_dagster.types import NoProgress

IMBALANCE = FEATURE_NAMES.index("volume_imbalance")


def market(mark, *, segments=None, imbalance=None) -> MarketDataset:
    mark = np.asarray(mark, dtype=np.float64)
    rows = len(mark)
    states = np.zeros((rows, len(FEATURE_NAMES)), dtype=np.float32)
    if imbalance is not None:
        states[:, IMBALANCE] = imbalance
    units = np.abs(np.arange(3)[:, None] - np.arange(3))
    return MarketDataset(
        pair="ETH",
        timestamps=np.datetime64("2024-01-01T00:10", "us") + np.arange(rows) * np.timedelta64(10, "m"),
        states=states,
        mark=mark,
        costs=units * (mark * 0.0003)[:, None, None],
        segment=np.repeat(np.arange(len(segments or (rows,))), segments or (rows,)).astype(np.int32),
        max_position=1.0,
        horizon_bars=8,
    )


def fit(name: str, train: MarketDataset, validation: MarketDataset, *, seed: int = 0):
    return fit_baseline(
        name,
        train,
        validation,
        BaselineSettings(),
        seed=seed,
        device=torch.device("cpu"),
        resume=ResumePoint(None, ""),
        progress=NoProgress(),
    )


def average(values: list[float], span: int) -> list[float]:
    out = [values[0]]
    for value in values[1:]:
        out.append(out[-1] + 2 / (span + 1) * (value - out[-1]))
    return out


def test_macd_follows_its_signal_line_inside_each_segment() -> None:
    mark = 100 * np.exp(np.cumsum(np.random.default_rng(0).normal(0, 0.01, 150)))
    expected: list[int] = []
    for rows in (mark[:90], mark[90:]):
        spread = [fast - slow for fast, slow in zip(average(list(rows), 12), average(list(rows), 26), strict=True)]
        signal = average(spread, 9)
        expected += [
            1 if bar < 33 else 2 if macd > line else 0
            for bar, (macd, line) in enumerate(zip(spread, signal, strict=True))
        ]
    assert Macd(12, 26, 9).actions(market(mark, segments=(90, 60))).tolist() == expected


def test_macd_does_not_trade_the_rounding_of_a_price_that_stands_still() -> None:
    assert set(Macd(12, 26, 9).actions(market(np.full(200, 0.1 + 0.2))).tolist()) == {1}


def test_imbalance_is_held_between_its_thresholds() -> None:
    dataset = market(np.full(9, 100.0), segments=(6, 3), imbalance=[0, 2, 0, -1, -2, 0, 0, 3, 0])
    assert ImbalanceVolume(-2.0, 2.0, 0.9).actions(dataset).tolist() == [1, 2, 2, 2, 0, 0, 1, 2, 2]


def test_the_imbalance_threshold_is_measured_on_training_and_chosen_on_validation() -> None:
    rng = np.random.default_rng(0)
    seen = rng.normal(size=2000)
    # Only an imbalance beyond its 95 % quantile says anything; what is below misleads.
    strong = np.abs(seen) > np.quantile(np.abs(seen), 0.9)
    direction = np.where(strong, np.sign(seen), 0.0)
    held = np.zeros(2000)
    for bar in range(2000):
        held[bar] = direction[bar] if strong[bar] else held[bar - 1]
    mark = 100 * np.exp(np.concatenate([[0], np.cumsum(0.002 * held)[:-1]]))
    training = market(mark, imbalance=seen)
    rule = fit("imbalance_volume", training, training)
    assert isinstance(rule, ImbalanceVolume)
    assert rule.quantile == 0.95
    assert rule.upper == pytest.approx(np.quantile(seen, 0.95), rel=1e-6)
    assert rule.lower == pytest.approx(np.quantile(seen, 0.05), rel=1e-6)
    wider = fit("imbalance_volume", market(mark, imbalance=10 * seen), market(mark))
    assert isinstance(wider, ImbalanceVolume)
    assert wider.upper == pytest.approx(np.quantile(10 * seen, wider.quantile), rel=1e-6)


def test_the_imbalance_rule_knows_its_column_by_the_features_order() -> None:
    other = market(np.full(9, 100.0))
    narrow = MarketDataset(**{**vars(other), "states": other.states[:, :4]})
    with pytest.raises(MarketDataError, match="got a dataset of 4"):
        fit("imbalance_volume", narrow, narrow)


def test_random_holds_each_draw_for_a_horizon_and_its_seed_decides() -> None:
    dataset = market(np.full(4000, 100.0), segments=(1603, 2397))
    actions = fit("random", dataset, dataset, seed=3).actions(dataset)
    starts, _ = dataset.decision_starts()
    changes = np.flatnonzero(np.diff(actions)) + 1
    assert np.isin(changes, starts).all()
    shares = np.bincount(actions[starts], minlength=3) / len(starts)
    assert np.abs(shares - 1 / 3).max() < 0.1
    np.testing.assert_array_equal(actions, RandomHolder(3).actions(dataset))
    assert not np.array_equal(actions, RandomHolder(4).actions(dataset))


def test_another_rules_file_is_refused(tmp_path: Path) -> None:
    BuyAndHold().save(tmp_path)
    with pytest.raises(ArtifactError, match="does not hold the rule 'macd'"):
        Macd.load(tmp_path)
    (tmp_path / "rule.json").write_text('{"name": "macd", "fast_bars": 3}')
    with pytest.raises(ArtifactError, match="other constants"):
        Macd.load(tmp_path)
