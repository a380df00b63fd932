"""Policies trained from the shipped specifications, an asset each."""

import time
from collections.abc import Callable
from typing import Any, Final, cast

import dagster as dg
from pydantic import Field

from archetype_dagster.pipeline.stages import POLICIES_GROUP
from archetype_dagster.settings.policy_specs import load_policy_spec, policy_spec_names
from assets.execution import OWNERS, StageResources, gpu_pool
from assets.policy_runs import CODE_VERSION, PolicyRun, describe_policy, make_policy
from resources.failure import clear_failure


class PolicyConfig(dg.Config):
    """What a launch changes of a specification."""

    overrides: dict[str, Any] = Field(
        default={}, description="Values by dotted key on top of the specification, e.g. total_steps: 5000."
    )


def _policy(name: str) -> dg.AssetsDefinition:
    def trained(context: dg.AssetExecutionContext, config: PolicyConfig) -> dg.MaterializeResult[Any]:
        resources = cast(StageResources, context.resources)
        began = time.monotonic()
        with clear_failure(context):
            spec = load_policy_spec(name, config.overrides)
            root_run = context.run.root_run_id or context.run.run_id
            run = PolicyRun(
                name,
                resources.store.path,
                resources.compute,
                resources.tracking,
                f"{root_run}/{context.asset_key.path[-1]}",
                context.log,
            )
            artifact, reused = make_policy(spec, run, resources.progress.open(context.log, name))
            description = describe_policy(artifact)
        return dg.MaterializeResult(
            data_version=dg.DataVersion(artifact.content_hash),
            metadata={
                "reused": reused,
                "seconds": round(time.monotonic() - began, 3),
                "path": dg.MetadataValue.path(artifact.directory),
                "tensorboard": dg.MetadataValue.path(run.tensorboard(artifact.manifest.key)),
                "content_hash": artifact.content_hash,
                "stage_key": artifact.manifest.key,
                **description,
            },
        )

    make: Callable[[Callable[..., Any]], dg.AssetsDefinition] = dg.asset(
        name=f"policy_{name}",
        group_name=POLICIES_GROUP,
        code_version=CODE_VERSION,
        pool=gpu_pool(),
        required_resource_keys={"store", "compute", "tracking", "progress"},
        kinds={"pytorch"},
        owners=list(OWNERS),
        description=f"The specification {name}: trained, judged beside the built-in policies and exported.",
    )
    return make(trained)


POLICY_ASSETS: Final = tuple(_policy(name) for name in policy_spec_names())
