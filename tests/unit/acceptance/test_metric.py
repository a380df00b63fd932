"""A verdict follows from target and measurement, and what is not measured does not pass."""

from __future__ import annotations

import pytest

from archetype_dagster.acceptance import AcceptanceMetric, AcceptanceReport, Target

GAIN = Target(0.2, exceeded=True, poor=0.1, unit="of something")
ERROR = Target(0.05, exceeded=False, poor=0.1)


@pytest.mark.parametrize(
    ("target", "measured", "verdict"),
    [
        (GAIN, 0.21, "passed"),
        (GAIN, 0.2, "short of target"),
        (GAIN, 0.1, "failed"),
        (ERROR, 0.0, "passed"),
        (ERROR, 0.05, "short of target"),
        (ERROR, 0.2, "failed"),
        (Target(1.0, exceeded=True), 1.0, "failed"),
        (GAIN, None, "failed"),
    ],
)
def test_a_target_must_be_passed_and_not_met(target: Target, measured: float | None, verdict: str) -> None:
    assert target.verdict(measured) == verdict


def test_a_target_reads_as_it_is_meant() -> None:
    assert (str(GAIN), str(ERROR)) == ("> 0.2 of something", "< 0.05")


def test_the_mean_over_seeds_has_an_interval_and_needs_every_seed() -> None:
    whole = AcceptanceMetric.over_seeds("gain", GAIN, {3: 0.1, 4: 0.3, 5: 0.5}, confidence=0.95, facts={"more": 1})
    assert whole.measured == pytest.approx(0.3)
    # 4.303 is the t quantile of two degrees of freedom.
    assert whole.interval == pytest.approx((0.3 - 4.303 * 0.2 / 3**0.5, 0.3 + 4.303 * 0.2 / 3**0.5), abs=1e-3)
    told = whole.as_dict()
    assert (told["verdict"], told["seeds"], told["by_seed"]) == ("passed", [3, 4, 5], {"3": 0.1, "4": 0.3, "5": 0.5})
    assert told["more"] == 1
    lacking = AcceptanceMetric.over_seeds("gain", GAIN, {3: 0.3, 4: None, 5: 0.5}, confidence=0.95, facts={})
    assert (lacking.measured, lacking.verdict) == (None, "failed")


def test_a_report_passes_where_all_metrics_do() -> None:
    good = AcceptanceMetric("a", GAIN, 0.5, None, "none", (0,))
    poor = AcceptanceMetric("b", GAIN, 0.15, None, "none", (0,))
    assert AcceptanceReport("ETH", "smoke", "hash", (good, good)).passed
    report = AcceptanceReport("ETH", "smoke", "hash", (good, poor))
    assert not report.passed
    assert report.as_dict()["metrics"]["b"]["verdict"] == "short of target"
