"""The paper's ablations, and seeds, as named runs: what each row of a table is trained and judged under."""

from __future__ import annotations

from datetime import timedelta
from typing import get_args

from archetype_dagster.errors import SettingsError
from archetype_dagster.settings import Embedding, Settings
from archetype_dagster.studies.training import StudyRun

Study = dict[str, StudyRun]


def embedding_variants(settings: Settings) -> Study:
    """Table 2: what Phase I learns, judged without refinement."""
    return {
        kind: StudyRun(settings.changed({"codebook.embedding": kind}), "no_refinement")
        for kind in reversed(get_args(Embedding))
    }


def refinement_variants(settings: Settings) -> Study:
    """Table 3: without refinement, refinement without regret (beta_1 = 0 in Eq. 8), and the full method."""
    return {
        "no_refinement": StudyRun(settings, "no_refinement"),
        "without_regret": StudyRun(settings.changed({"refinement.beta_1": 0.0})),
        "full": StudyRun(settings),
    }


def horizon_variants(settings: Settings) -> Study:
    """Table 4: horizons h. Budgets count environment steps, so a longer horizon is visited less often.

    All are judged on the same bars; each is flat until its purge of h bars at a split's start has passed.

    Raises:
        SettingsError: a split too short for one of the horizons.
    """
    study = {
        f"h={bars}": StudyRun(settings.changed({"planner.horizon_bars": bars}))
        for bars in settings.studies.horizons_bars
    }
    for name, run in study.items():
        require_a_horizon(run.settings, f"studies.horizons_bars, {name}")
    return study


def code_count_variants(settings: Settings) -> Study:
    """Table 4: numbers of archetypes K."""
    return {
        f"K={count}": StudyRun(settings.changed({"codebook.num_codes": count}))
        for count in settings.studies.code_counts
    }


def require_a_horizon(settings: Settings, where: str) -> None:
    """Refuse date ranges too short for a horizon behind its purge before anything is trained for them.

    Raises:
        SettingsError: names the split, the bars it needs and the bars its dates hold.
    """
    dates, horizon = settings.splits, settings.planner.horizon_bars
    needed = horizon + settings.execution.execution_delay_bars + 1
    before = None
    for split in ("train", "validation", "test"):
        start, end = getattr(dates, f"{split}_start"), getattr(dates, f"{split}_end")
        bar = timedelta(minutes=settings.market.bar_minutes)
        purged = horizon - min((start - before) // bar, horizon) if before is not None else 0
        if (end - start) // bar - purged < needed:
            raise SettingsError(
                f"{where}: the {split} split from {start:%Y-%m-%d %H:%M} until {end:%Y-%m-%d %H:%M} holds "
                f"{(end - start) // bar} bars, a horizon of {horizon} needs {needed + purged}"
            )
        before = end
