"""Convergence: the Sharpe ratio on bars that a policy never saw, after few environment steps."""

from __future__ import annotations

from typing import Any

from archetype_dagster.acceptance.metric import AcceptanceMetric, Target
from archetype_dagster.acceptance.policies import AcceptanceRun
from archetype_dagster.errors import MarketDataError
from archetype_dagster.settings import Settings
from archetype_dagster.studies.results import StudyResult
from archetype_dagster.types import JsonDict


def convergence(run: AcceptanceRun) -> AcceptanceMetric:
    """The baseline's Sharpe ratio on the test split, on the embedded market; on real prices the same figure is told.

    A policy that trained for more than `max_steps` is not measured. Steps are those of Phases II and III; Phase I
    learns from demonstrations, whose number and passes are told beside them.

    Raises:
        ArchetypeError: the computations' own errors.
    """
    settings, baseline = run.settings, run.baseline
    results = run.judged_seeds(baseline, "convergence on the embedded market")
    steps = run.steps_taken(results[settings.seeds[0]].settings)
    within = steps <= settings.max_steps
    market = baseline.market.synthetic
    return AcceptanceMetric.over_seeds(
        "convergence",
        Target(settings.least_sharpe, exceeded=True, unit=f"annual Sharpe ratio within {settings.max_steps} steps"),
        {seed: sharpe if within else None for seed, sharpe in test_sharpes(results).items()},
        confidence=baseline.statistics.confidence,
        facts={
            "steps": steps,
            "steps_of_phase_one": {
                "demonstrations": baseline.planner.num_trajectories,
                "passes": baseline.codebook.pretrain_epochs + baseline.codebook.epochs,
            },
            "market": {
                "signal_strength": market.signal_strength,
                "drift_bps": market.drift_bps,
                "volatility_bps": market.volatility_bps,
                "seed": baseline.market_seed,
                **_test_span(baseline),
            },
            "real": _on_real_prices(run),
        },
    )


def test_sharpes(results: dict[int, StudyResult]) -> dict[int, float | None]:
    """Annual Sharpe ratio on the test split by seed; None where undefined."""
    return {seed: result.performance().sharpe for seed, result in results.items()}


def _on_real_prices(run: AcceptanceRun) -> JsonDict:
    """The same figure on real candles with a modelled book, whatever it is; null with a reason where there are none."""
    path = None if run.data is None else run.data / run.settings.real_path
    if path is None or not path.exists():
        return {
            "measured": None,
            "reason": f"no real data at {path or 'the usual places'}; name its folder with --data",
        }
    changes: dict[str, Any] = {"market.source": "candles", "market.path": path}
    real = run.baseline.changed(changes)
    try:
        results = run.judged_seeds(real, "convergence on real prices")
    except MarketDataError as error:
        return {"measured": None, "reason": str(error)}
    target = Target(run.settings.least_sharpe, exceeded=True)
    told = AcceptanceMetric.over_seeds(
        "real", target, test_sharpes(results), confidence=real.statistics.confidence, facts={}
    )
    return {
        "measured": told.measured,
        "interval": None if told.interval is None else list(told.interval),
        "by_seed": told.facts["by_seed"],
        "ruined_seeds": [seed for seed, result in results.items() if result.performance().ruined],
        "book_sources": list(results[run.settings.seeds[0]].book_sources),
        **_test_span(real),
    }


def _test_span(settings: Settings) -> JsonDict:
    return {"test_start": settings.splits.test_start.isoformat(), "test_end": settings.splits.test_end.isoformat()}
