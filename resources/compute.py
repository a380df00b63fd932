"""The compute device as a resource."""

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal

import dagster as dg
from pydantic import Field

if TYPE_CHECKING:
    import torch


class ComputeResource(dg.ConfigurableResource["ComputeResource"]):
    """Device, threads and numerics of the stages that train or run networks."""

    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        default="auto", description="auto takes cuda, then mps, then cpu."
    )
    threads: int | None = Field(default=None, gt=0, description="CPU threads per operation; empty leaves torch's own.")
    deterministic: bool = Field(default=True, description="Only operations whose result does not vary between runs.")
    precision: Literal["float32", "tf32"] = Field(
        default="float32", description="tf32 allows shortened products on CUDA."
    )

    def session(self) -> "AbstractContextManager[torch.device]":
        """The device, with the numerics set for as long as the context is open."""
        from archetype_dagster.compute import compute_session

        return compute_session(
            self.device, threads=self.threads, deterministic=self.deterministic, precision=self.precision
        )
