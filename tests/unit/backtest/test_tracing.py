"""The leak check on the real pipeline: it passes, and it fails for each of three planted leaks."""

import numpy as np
import polars as pl
import pytest

from archetype_dagster.backtest import refined_plans
from archetype_dagster.backtest.leaks import LeakStatus, check_no_lookahead
from archetype_dagster.backtest.tracing import DECODED, check_policy, pipeline_trace
from archetype_dagster.errors import MarketDataError
from archetype_dagster.market import feature_table
from archetype_dagster.market.features import FEATURE_NAMES
from archetype_dagster.market.sources import bars_for
from archetype_dagster.refinement import adapter
from archetype_dagster.settings import load_settings

SETTINGS = load_settings(
    overrides={
        "planner.horizon_bars": 12,
        "market.book_levels": 5,
        "market.synthetic.start": "2024-01-01T00:00:00Z",
        "market.synthetic.end": "2024-01-03T00:00:00Z",
        "splits.train_start": "2024-01-01T00:00:00Z",
        "splits.train_end": "2024-01-02T00:00:00Z",
        "splits.validation_start": "2024-01-02T00:00:00Z",
        "splits.validation_end": "2024-01-02T12:00:00Z",
        "splits.test_start": "2024-01-02T12:00:00Z",
        "splits.test_end": "2024-01-03T00:00:00Z",
    }
)


@pytest.fixture(scope="module")
def bars():
    return bars_for(SETTINGS, "ETH")


@pytest.fixture(scope="module")
def scaler(bars):
    return feature_table.build_feature_table(bars, SETTINGS, "ETH").scaler


@pytest.fixture
def policy(random_policy):
    return random_policy(SETTINGS, features=len(FEATURE_NAMES))


def check(bars, scaler, policy, settings=SETTINGS):
    """Present the policy as causal, whatever it is."""
    return check_no_lookahead(
        lambda changed: pipeline_trace(changed, settings, "ETH", scaler, policy), bars.tail(110), cuts=6, seed=0
    )


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("override", ["step", "hold"])
def test_the_pipeline_is_causal_in_every_number_it_computes(bars, scaler, random_policy, delay, override):
    execution = SETTINGS.execution.model_copy(update={"execution_delay_bars": delay})
    refinement = SETTINGS.refinement.model_copy(update={"override": override})
    settings = SETTINGS.model_copy(update={"execution": execution, "refinement": refinement})
    report = check(bars, scaler, random_policy(settings, features=len(FEATURE_NAMES)), settings)
    assert report.status is LeakStatus.PASSED, report.reason
    assert set(report.compared) == DECODED | {"features", "states", "mark", "costs", "selector_logits", "codes"}
    assert {"features", "selector_logits", "decoder_logits", "refiner_context", "refiner_logits"} <= set(
        report.responsive
    )


def test_a_continuous_policy_is_causal_and_one_that_reads_the_future_fails(bars, scaler, random_policy):
    causal, reading = (
        random_policy(SETTINGS, features=len(FEATURE_NAMES), embedding="continuous", decoder=decoder)
        for decoder in ("lstm", "bilstm")
    )
    report = check(bars, scaler, causal)
    assert report.status is LeakStatus.PASSED, report.reason
    traced = {"features", "states", "mark", "costs", "embeddings", "decoder_logits", "base_actions", "actions"}
    assert set(report.compared) == traced
    assert {"embeddings", "decoder_logits"} <= set(report.responsive)
    leaking = check(bars, scaler, reading)
    assert leaking.status is LeakStatus.FAILED
    assert {"decoder_logits"} <= {leak.array for leak in leaking.leaks} <= DECODED


def test_a_planted_bidirectional_decoder_fails(bars, scaler, random_policy):
    report = check(bars, scaler, random_policy(SETTINGS, features=len(FEATURE_NAMES), decoder="bilstm"))
    assert report.status is LeakStatus.FAILED
    assert "decoder_logits" in {leak.array for leak in report.leaks}
    assert not {leak.array for leak in report.leaks} - DECODED


def test_a_planted_centred_window_fails(bars, scaler, policy, monkeypatch):
    def centred(bars, *, scale):
        window = pl.col("volume_imbalance").rolling_mean(window_size=11, min_samples=1, center=True)
        return honest(bars, scale=scale).with_columns(window)

    honest = feature_table.compute_features
    monkeypatch.setattr(feature_table, "compute_features", centred)
    report = check(bars, scaler, policy)
    assert report.status is LeakStatus.FAILED
    assert {"features", "states", "decoder_logits"} <= {leak.array for leak in report.leaks}


def test_a_planted_reward_of_the_running_bar_fails(bars, scaler, policy, monkeypatch):
    """The paper's R_arche taken literally: its sum includes r_tau, which needs the next price."""

    def literal(codes_embedding, base_actions, base_rewards, notional, *, delay):
        realised = (100 * np.cumsum(base_rewards, axis=1) / notional[:, None]).astype(np.float32)
        return adapter.assemble_context(codes_embedding, base_actions, realised)

    monkeypatch.setattr(refined_plans, "refinement_context", literal)
    report = check(bars, scaler, policy)
    assert report.status is LeakStatus.FAILED
    leaking = {leak.array for leak in report.leaks}
    assert {"refiner_context", "refiner_logits"} <= leaking
    assert not leaking & {"features", "selector_logits", "decoder_logits", "base_actions"}


def test_the_check_of_a_policy_passes_or_says_hindsight(bars, scaler, policy, random_policy):
    report = check_policy(bars, SETTINGS, "ETH", scaler, policy)
    assert report.status is LeakStatus.PASSED, report.reason
    assert len(report.cuts) == SETTINGS.evaluation.leak_check_cuts
    reading = random_policy(SETTINGS, features=len(FEATURE_NAMES), decoder="bilstm")
    assert check_policy(bars, SETTINGS, "ETH", scaler, reading).status is LeakStatus.HINDSIGHT


def test_hindsight_hides_no_leak_outside_the_decoder(bars, scaler, random_policy, monkeypatch):
    def centred(bars, *, scale):
        return honest(bars, scale=scale).with_columns(pl.col("volume").shift(-1, fill_value=0.0))

    honest = feature_table.compute_features
    monkeypatch.setattr(feature_table, "compute_features", centred)
    reading = random_policy(SETTINGS, features=len(FEATURE_NAMES), decoder="bilstm")
    report = check_policy(bars, SETTINGS, "ETH", scaler, reading)
    assert report.status is LeakStatus.FAILED
    assert report.reason.startswith("features at")


def test_bars_without_a_horizon_are_refused(bars, scaler, policy):
    with pytest.raises(MarketDataError):
        check_policy(bars.head(65), SETTINGS, "ETH", scaler, policy)
