"""The scaler: training rows only, defined for constants, the same after a round trip."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.scaler import FeatureScaler


def test_fit_sees_the_training_rows_only():
    scaler = FeatureScaler.fit(np.array([[0.0], [1.0]]))
    assert (scaler.mean[0], scaler.std[0]) == (0.5, 0.5)
    assert scaler.transform(np.array([[1.0]]))[0, 0] == 1.0


def test_values_far_outside_are_clipped():
    scaler = FeatureScaler.fit(np.array([[0.0], [1.0]]), clip_sigma=3.0)
    scaled = scaler.transform(np.array([[100.0], [-100.0], [2.0]]))
    assert scaled.dtype == np.float32
    assert_array_equal(scaled[:, 0], np.float32([3.0, -3.0, 3.0]))


@pytest.mark.parametrize("constant", [0.0, 0.1, -68_000.3])
def test_a_constant_feature_is_centred_and_not_blown_up(constant):
    features = np.full((1001, 1), constant)
    scaler = FeatureScaler.fit(features)
    assert scaler.std[0] == 1.0
    assert np.abs(scaler.transform(features)).max() < 1e-9
    assert scaler.transform(features + 2.0)[0, 0] == pytest.approx(2.0)


def test_small_variation_around_a_large_level_is_not_taken_for_a_constant():
    features = 1.0 + 1e-8 * np.random.default_rng(0).standard_normal((500, 1))
    assert FeatureScaler.fit(features).transform(features).std() == pytest.approx(1.0, rel=1e-3)


def test_saved_scaler_is_read_back_bit_for_bit(tmp_path):
    rng = np.random.default_rng(1)
    scaler = FeatureScaler.fit(rng.lognormal(size=(50, 4)), clip_sigma=7.0)
    scaler.save(tmp_path / "scaler.json")
    loaded = FeatureScaler.load(tmp_path / "scaler.json")
    assert_array_equal(loaded.mean, scaler.mean)
    assert_array_equal(loaded.std, scaler.std)
    observation = rng.lognormal(size=(1, 4))
    assert loaded.transform(observation).tobytes() == scaler.transform(observation).tobytes()


@pytest.mark.parametrize("text", ["", '{"mean": [1.0]', "[]", '{"mean": [0.0], "std": [0.0], "clip_sigma": 1}'])
def test_a_damaged_file_is_refused(tmp_path, text):
    path = tmp_path / "scaler.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match=r"scaler\.json is (truncated|not a feature scaler)"):
        FeatureScaler.load(path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ArtifactError, match="does not exist"):
        FeatureScaler.load(tmp_path / "scaler.json")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_named(bad):
    with pytest.raises(ValueError, match="at row 1, column 0"):
        FeatureScaler.fit(np.array([[0.0, 1.0], [bad, 1.0]]))


def test_no_training_rows_and_foreign_widths_are_refused():
    with pytest.raises(ValueError, match=r"got shape \(0, 3\)"):
        FeatureScaler.fit(np.empty((0, 3)))
    with pytest.raises(ValueError, match="must have 1 columns"):
        FeatureScaler.fit(np.array([[0.0], [1.0]])).transform(np.zeros((2, 3)))
