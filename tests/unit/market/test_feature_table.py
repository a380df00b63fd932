"""The feature table: aligned with its bars, scaled by training rows only, intact after a round trip."""

import json

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal

from archetype_dagster.errors import ArtifactError, MarketDataError, SettingsError
from archetype_dagster.market.book import execution_cost_parts, mark_prices
from archetype_dagster.market.feature_table import FeatureTable, build_feature_table
from archetype_dagster.market.features import FEATURE_NAMES, compute_features, feature_rows
from archetype_dagster.market.synthetic import synthetic_bars
from archetype_dagster.settings import Settings, load_settings

OVERRIDES = {
    "planner.horizon_bars": 12,
    "splits.train_start": "2024-01-01T00:00:00Z",
    "splits.train_end": "2024-01-02T00:00:00Z",
    "splits.validation_start": "2024-01-02T00:00:00Z",
    "splits.validation_end": "2024-01-02T12:00:00Z",
    "splits.test_start": "2024-01-02T12:00:00Z",
    "splits.test_end": "2024-01-04T00:00:00Z",
}
TRAINING_BARS = 144


@pytest.fixture(scope="module")
def run_settings() -> Settings:
    return load_settings("smoke", OVERRIDES)


@pytest.fixture(scope="module")
def table(random_bars, run_settings) -> FeatureTable:
    return build_feature_table(random_bars(400, gap_at=300), run_settings, "BTC")


def test_rows_are_the_bars_past_their_warm_up(random_bars, run_settings, table):
    bars = random_bars(400, gap_at=300)
    rows = feature_rows(bars)
    parts = execution_cost_parts(bars, run_settings.execution, run_settings.pair("BTC"))
    dataset = table.dataset(run_settings)
    assert len(dataset) == len(rows)
    assert dataset.states.shape == (len(rows), 45)
    assert dataset.states.dtype == np.float32
    assert_array_equal(dataset.timestamps, bars["timestamp"].dt.replace_time_zone(None).to_numpy()[rows])
    assert_array_equal(dataset.mark, mark_prices(bars)[rows])
    assert_array_equal(dataset.costs, (parts.slippage + parts.commission)[rows])
    assert_array_equal(dataset.segment, bars["segment"].to_numpy()[rows])
    assert (dataset.pair, dataset.max_position, dataset.horizon_bars) == ("BTC", 8.0, 12)
    assert table.features.select("timestamp", *FEATURE_NAMES).equals(compute_features(bars))


def test_no_horizon_crosses_the_gap(run_settings, table):
    dataset = table.dataset(run_settings)
    starts = dataset.horizon_starts()
    assert_array_equal(dataset.segment[starts], dataset.segment[starts + 12])
    assert len(starts) == (240 - 12) + (40 - 12)


def test_scaler_knows_the_training_split_only(random_bars, run_settings, table):
    bars = random_bars(400, gap_at=300)
    later = pl.concat([bars[:TRAINING_BARS], random_bars(400, gap_at=300, seed=9)[TRAINING_BARS:]])
    other = build_feature_table(later, run_settings, "BTC")
    assert_array_equal(other.scaler.mean, table.scaler.mean)
    assert_array_equal(other.scaler.std, table.scaler.std)
    training = compute_features(bars[:TRAINING_BARS]).drop("timestamp").to_numpy()
    np.testing.assert_allclose(table.scaler.mean, training.mean(axis=0), rtol=1e-12, atol=1e-15)


def test_saved_table_is_read_back_and_written_again_to_the_same_bytes(tmp_path, run_settings, table):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    table.save(first)
    loaded = FeatureTable.load(first)
    loaded.save(second)
    assert {p.name: p.read_bytes() for p in first.iterdir()} == {p.name: p.read_bytes() for p in second.iterdir()}
    assert loaded.pair == "BTC"
    for name in ("states", "mark", "costs", "segment", "timestamps"):
        assert_array_equal(getattr(loaded.dataset(run_settings), name), getattr(table.dataset(run_settings), name))


@pytest.mark.parametrize("name", ["features.parquet", "trade_costs.parquet", "scaler.json", "table.json"])
def test_a_truncated_or_missing_file_is_refused(tmp_path, table, name):
    table.save(tmp_path)
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ArtifactError, match=name):
        FeatureTable.load(tmp_path)
    path.unlink()
    with pytest.raises(ArtifactError, match=name):
        FeatureTable.load(tmp_path)


def test_foreign_columns_rows_and_scalers_are_refused(tmp_path, table):
    table.save(tmp_path)
    table.features.drop("kmid").write_parquet(tmp_path / "features.parquet")
    with pytest.raises(ArtifactError, match="kmid"):
        FeatureTable.load(tmp_path)
    table.features[1:].write_parquet(tmp_path / "features.parquet")
    with pytest.raises(ArtifactError, match="do not have the same rows"):
        FeatureTable.load(tmp_path)
    table.save(tmp_path)
    (tmp_path / "scaler.json").write_text(json.dumps({"mean": [0.0], "std": [1.0], "clip_sigma": 1.0}))
    with pytest.raises(ArtifactError, match="scales 1 features, expected 45"):
        FeatureTable.load(tmp_path)


def test_too_few_bars_for_one_horizon_say_what_there_is_and_what_is_needed(random_bars, run_settings):
    assert len(build_feature_table(random_bars(73), run_settings, "BTC").dataset(run_settings)) == 13
    with pytest.raises(MarketDataError, match=r"has 12 rows after 60 bars of warm-up, .* of 12 bars needs 13"):
        build_feature_table(random_bars(72), run_settings, "BTC")
    with pytest.raises(MarketDataError, match="found 60 bars, a segment needs 61"):
        build_feature_table(random_bars(60), run_settings, "BTC")


def test_an_execution_delay_lengthens_what_a_horizon_needs(random_bars):
    delayed = load_settings("smoke", {**OVERRIDES, "execution.execution_delay_bars": 1})
    assert len(build_feature_table(random_bars(74), delayed, "BTC").dataset(delayed).horizon_starts()) == 1
    with pytest.raises(MarketDataError, match="needs 14"):
        build_feature_table(random_bars(73), delayed, "BTC")


def test_no_training_row_says_which_rows_there_are(random_bars):
    with pytest.raises(MarketDataError, match=r"training split \[2021-06-01 00:00, .*rows run from 2024-01-01 10:00"):
        build_feature_table(random_bars(200), load_settings("smoke"), "BTC")


def test_an_unknown_pair_lists_the_choices(random_bars, run_settings):
    with pytest.raises(SettingsError, match="unknown pair 'XRP'; choose from BNB, BTC, DOT, ETH"):
        build_feature_table(random_bars(200), run_settings, "XRP")


def test_every_pair_of_the_embedded_market_gives_a_finite_table():
    tree = load_settings("smoke", {"market.synthetic.end": "2021-06-08T00:00:00Z"})
    for name in tree.pairs:
        bars = synthetic_bars(tree.market, tree.pair(name), pair_name=name, seed=0)
        dataset = build_feature_table(bars, tree, name).dataset(tree)
        assert np.isfinite(dataset.states).all()
        assert np.isfinite(dataset.costs).all()
        assert dataset.costs[:, ~np.eye(3, dtype=bool)].min() > 0
