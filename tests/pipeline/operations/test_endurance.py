"""A backfill of every pair while its processes are killed at random: nothing is lost, nothing is left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest

from archetype_dagster.definitions import build_defs
from archetype_dagster.jobs import PER_PAIR_STAGES, TRAINING
from archetype_dagster.seeding import numpy_generator
from archetype_dagster.settings import PAIRS
from resources.compute import ComputeResource
from resources.storage import FOLDERS, ArtifactStore
from resources.tracking import TrackingResource

KILLS = 20
BLOCKING_CHECKS = 7


def undisturbed(root: Path, pair: str) -> None:
    definitions = build_defs(
        {
            "store": ArtifactStore(root=str(root)),
            "compute": ComputeResource(device="cpu", threads=1),
            "tracking": TrackingResource(enabled=False),
        }
    )
    with dg.DagsterInstance.ephemeral() as instance:
        assert definitions.resolve_job_def(TRAINING).execute_in_process(partition_key=pair, instance=instance).success


def verdicts(instance: dg.DagsterInstance, runs: list[dg.DagsterRun]) -> dict[tuple[str, str, str], bool]:
    """The last verdict of each check, by asset, check and pair."""
    found: dict[tuple[str, str, str], bool] = {}
    for run in sorted(runs, key=lambda run: int(run.tags.get("dagster/retry_number", "0"))):
        for entry in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION):
            check = entry.get_dagster_event().asset_check_evaluation_data
            key = (check.asset_key.to_user_string(), check.check_name, run.tags["dagster/partition"])
            found[key] = check.passed
    return found


@pytest.mark.endurance
@pytest.mark.timeout(6 * 3600)
def test_twenty_kills_do_not_change_a_byte_of_a_backfill(
    make_stack: Callable, tmp_path: Path, differences: Callable
) -> None:
    draws, killed = numpy_generator(0, "kills"), []
    with make_stack("endurance", smoke=True).running() as stack:
        backfill = stack.backfill(TRAINING, list(PAIRS), {}, dagster__max_retries="40")

        def kill_something() -> bool:
            target = draws.choice(["step", "step", "step", "daemon", "web server"])
            if target == "step":
                living = stack.processes()
                if not living:
                    return False
                os.kill(int(draws.choice(living)), signal.SIGKILL)
            else:
                stack.services.services[str(target)].process.kill()
            killed.append(str(target))
            return True

        while len(killed) < KILLS:
            pause = time.monotonic() + float(draws.uniform(5, 20))
            stack.wait(lambda until=pause: time.monotonic() > until, "the next kill")
            stack.wait(kill_something, "something to kill", seconds=1800)
        runs = stack.wait_for_backfill(backfill, count=len(PAIRS), seconds=3 * 3600)
        everything = stack.runs(backfill)
        checks = verdicts(stack.instance, everything)
        result = stack.result
    print(f"killed {killed}; {len(everything)} runs; revived: {stack.said}")
    assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}
    assert {run.tags["dagster/partition"] for run in runs} == set(PAIRS)
    assert len(checks) == BLOCKING_CHECKS * len(PAIRS)
    assert all(checks.values()), checks
    left = [path for path in result.rglob(".*") if path.name.startswith(".staging") or path.suffix == ".tmp"]
    assert left == []
    assert not list(result.rglob(".resume/*"))
    for pair in PAIRS:
        undisturbed(tmp_path, pair)
        for stage in PER_PAIR_STAGES:
            assert differences(result / pair / FOLDERS[stage], tmp_path / pair / FOLDERS[stage]) == []
