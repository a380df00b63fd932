"""What starts runs by itself: schedules, the sensor on raw files, and the alert on failed runs.

All but the alert are off until somebody switches them on in the UI.
"""

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import dagster as dg

from archetype_dagster.artifacts import read_manifest
from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.jobs import MONTHS, REASON_TAG, REFRESH, TRAINING, month_key, months_job, refresh_job
from archetype_dagster.settings import PAIRS, Settings
from resources.alerts import AlertsResource
from resources.settings import SettingsResource
from resources.storage import ArtifactStore

# Two hours apart, at the beginning of the week, so that no two pairs train at once for long.
_RETRAINING_HOURS: Final = {pair: 2 + 2 * number for number, pair in enumerate(PAIRS)}


def rolled_overrides(settings: Settings, until: datetime) -> dict[str, Any]:
    """Split dates that a retraining at a time uses in place of the settings'; empty where splits stay."""
    if not settings.operations.roll_splits:
        return {}
    from archetype_dagster.market.rolling_splits import rolled_splits

    return {name: date.isoformat() for name, date in rolled_splits(settings.splits, until).items()}


def trained_overrides(store: ArtifactStore, pair: str, settings: Settings) -> dict[str, Any]:
    """Split dates of the pair's trained policy, where a retraining has moved them; empty where they are the settings'.

    Raises:
        ArtifactError: the pair has no report yet, so there is nothing to refresh.
    """
    made = read_manifest(store.directory("evaluation_report", pair), kind="evaluation_report").settings
    now = {f"splits.{name}": date for name, date in settings.splits.model_dump(mode="json").items()}
    return {name: made[name] for name, date in now.items() if name in made and made[name] != date}


def _run_config(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {"resources": {"settings": {"config": {"overrides": dict(overrides)}}}} if overrides else {}


def _retraining(pair: str) -> dg.ScheduleDefinition:
    @dg.schedule(
        job_name=TRAINING,
        name=f"retrain_{pair.lower()}",
        cron_schedule=f"0 {_RETRAINING_HOURS[pair]} * * 1",
        execution_timezone="UTC",
        description=f"Weekly: {pair} from its bars to its report, on splits that move on where roll_splits is on.",
    )
    def retrain(context: dg.ScheduleEvaluationContext, settings: SettingsResource) -> dg.RunRequest:
        moment = context.scheduled_execution_time
        return dg.RunRequest(
            run_key=f"{pair} {moment:%G-W%V}",
            partition_key=pair,
            run_config=_run_config(rolled_overrides(settings.load(), moment)),
            tags={REASON_TAG: "weekly retraining"},
        )

    return retrain


@dg.schedule(
    job_name=REFRESH,
    cron_schedule="30 0 * * *",
    execution_timezone="UTC",
    description="Daily: every pair's trained policy on the newest bars.",
)
def refresh_daily(
    context: dg.ScheduleEvaluationContext, settings: SettingsResource, store: ArtifactStore
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """One run for each pair that has a trained policy."""
    tree, missing = settings.load(), []
    for pair in PAIRS:
        try:
            overrides = trained_overrides(store, pair, tree)
        except ArtifactError:
            missing.append(pair)
            continue
        yield dg.RunRequest(
            run_key=f"{pair} {context.scheduled_execution_time:%Y-%m-%d}",
            partition_key=pair,
            run_config=_run_config(overrides),
            tags={REASON_TAG: "daily refresh"},
        )
    if len(missing) == len(PAIRS):
        yield dg.SkipReason("no pair has a trained policy yet")


@dg.sensor(
    jobs=[months_job(), refresh_job()],
    # A look lists every file of the source, and opens each archive for its directory.
    minimum_interval_seconds=300,
    description="New or changed files of the source: their months are built, or else the pair is refreshed.",
)
def new_raw_files(
    context: dg.SensorEvaluationContext, settings: SettingsResource, store: ArtifactStore
) -> dg.SensorResult | dg.SkipReason:
    """One run a pair and month with new files; by pair where the source is read in one step."""
    from archetype_dagster.market.arrivals import Arrivals

    tree = settings.load()
    market = tree.market
    if market.source == "synthetic":
        return dg.SkipReason("the embedded market has no files")
    try:
        owners = _owners(tree)
    except MarketDataError as error:
        return dg.SkipReason(f"the source cannot be read now, perhaps a file is being written: {error}")
    known = Arrivals.of_cursor(context.cursor)
    memory = Arrivals({}, {}) if known is None else known
    settled, memory = memory.look(owners, now_ns=time.time_ns(), settle_seconds=tree.operations.settle_seconds)
    context.update_cursor(memory.cursor)
    requests = _requests(tree, store, {file: owners[file] for file in settled})
    if not requests:
        return dg.SkipReason(f"{len(memory.taken)} files known, {len(memory.waiting)} not settled yet")
    return dg.SensorResult(run_requests=requests)


def _owners(tree: Settings) -> dict[Path, list[str]]:
    """The pairs that each file of the source belongs to; `MarketDataError` where no pair has a file."""
    from archetype_dagster.market.sources import source_files

    owners: dict[Path, list[str]] = {}
    faults: list[MarketDataError] = []
    for pair in PAIRS:
        try:
            files = source_files(tree.market, tree.pair(pair))
        except MarketDataError as error:
            faults.append(error)
            continue
        for file in files:
            owners.setdefault(file, []).append(pair)
    if not owners:
        raise faults[0]
    return owners


def _requests(tree: Settings, store: ArtifactStore, settled: Mapping[Path, list[str]]) -> list[dg.RunRequest]:
    wanted: dict[tuple[str, str | None], list[Path]] = {}
    for file, pairs in settled.items():
        for pair in pairs:
            for month in _months(tree, pair, file):
                wanted.setdefault((pair, month), []).append(file)
    requests = []
    for (pair, month), files in sorted(wanted.items(), key=str):
        stamp = max(file.stat().st_mtime_ns for file in files)
        try:
            overrides = trained_overrides(store, pair, tree)
        except ArtifactError:
            if month is None:
                continue
            overrides = {}
        requests.append(
            dg.RunRequest(
                run_key=f"{pair} {month} {len(files)} {stamp}",
                job_name=REFRESH if month is None else MONTHS,
                partition_key=pair if month is None else month_key(pair, month),
                run_config=_run_config(overrides),
                tags={REASON_TAG: f"{len(files)} new files"},
            )
        )
    return requests


def _months(tree: Settings, pair: str, file: Path) -> list[str | None]:
    """Months of a new file where bars are made by month, those of the whole source where it names no days."""
    if not tree.market.by_month:
        return [None]
    from archetype_dagster.market.months import covered_months
    from archetype_dagster.market.period import named_days

    days = named_days(file)
    return list(days.months()) if days is not None else list(covered_months(tree.market, tree.pair(pair)))


@dg.run_failure_sensor(
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description="Tells a failed run that is not tried again, in the log or through a webhook.",
)
def alert_on_failure(context: dg.RunFailureSensorContext, alerts: AlertsResource) -> dg.SkipReason | None:
    """One alert a run that failed for good."""
    run = context.dagster_run
    if run.tags.get("dagster/will_retry") == "true":
        return dg.SkipReason("the run is tried again")
    alerts.send(*failure_message(context))
    return None


def failure_message(context: dg.RunFailureSensorContext) -> tuple[str, str]:
    """Title and text of the alert on a failed run: what, for which partition, and the first line of the reason."""
    run = context.dagster_run
    title = f"{run.job_name} failed for {run.tags.get('dagster/partition', 'all')}"
    lines = []
    for event in context.get_step_failure_events():
        data = event.step_failure_data
        told = data.user_failure_data.description if data.user_failure_data else None
        reason = told or (data.error.message if data.error else "no reason given")
        lines.append(f"{event.step_key}: {reason.strip().splitlines()[0]}")
    return title, "\n".join([*(lines or [context.failure_event.message or "the run ended"]), f"run {run.run_id}"])


SCHEDULES: Final = (*(_retraining(pair) for pair in PAIRS), refresh_daily)
SENSORS: Final = (new_raw_files, alert_on_failure)
