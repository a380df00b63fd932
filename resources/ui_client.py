"""Asking a running UI, over its GraphQL on the loopback, to start a backfill."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import requests

from archetype_dagster.artifacts import read_json
from archetype_dagster.errors import ArchetypeError
from archetype_dagster.types import JsonDict
from resources.services import ADDRESS_FILE, LOCATION

_LAUNCH: Final = """
mutation($params: LaunchBackfillParams!) { launchPartitionBackfill(backfillParams: $params) {
  __typename
  ... on LaunchBackfillSuccess { backfillId }
  ... on PartitionKeysNotFoundError { partitionKeys }
  ... on Error { message } } }
"""
_TIMEOUT_SECONDS: Final = 120.0


class UiError(ArchetypeError):
    """No UI answers, or it refuses what it was asked."""


def running_ui(home: Path) -> str:
    """Address of the UI over the instance in `home`; `UiError` where none runs."""
    file = home / ADDRESS_FILE
    if not file.is_file():
        raise UiError(f"no UI runs over {home}, whose daemon would start the runs: start `archetype ui` first")
    return str(read_json(file)["address"])


def launch_backfill(
    address: str, job: str, partitions: Sequence[str], *, run_config: Mapping[str, Any], tags: Mapping[str, str]
) -> str:
    """Ask for a backfill of a job; returns its id.

    Raises:
        UiError: the UI does not answer, or knows no such job or partition.
    """
    repository = {"repositoryName": "__repository__", "repositoryLocationName": LOCATION}
    params: JsonDict = {
        "selector": {"partitionSetName": f"{job}_partition_set", "repositorySelector": repository},
        "partitionNames": list(partitions),
        "runConfigData": dict(run_config),
        "tags": [{"key": key, "value": value} for key, value in tags.items()],
    }
    try:
        answer = requests.post(
            f"{address}/graphql", json={"query": _LAUNCH, "variables": {"params": params}}, timeout=_TIMEOUT_SECONDS
        )
        answer.raise_for_status()
        told = answer.json()
    except (requests.RequestException, json.JSONDecodeError) as error:
        raise UiError(f"the UI at {address} does not answer ({type(error).__name__})") from error
    found = (told.get("data") or {}).get("launchPartitionBackfill") or {}
    if found.get("__typename") != "LaunchBackfillSuccess":
        reason = found.get("message") or found.get("partitionKeys") or told.get("errors")
        raise UiError(f"the UI refuses a backfill of {job} over {', '.join(partitions)}: {reason}")
    return str(found["backfillId"])
