"""What became of raw records on their way to bars: every fault by name, with the policy that met it and its count."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from archetype_dagster.types import JsonDict


@dataclass(frozen=True)
class FaultCount:
    """One kind of fault.

    Attributes:
        fault: name of the fault, as in `IngestionSettings`.
        unit: what was counted: snapshots, trades, candles or bars.
        count: how many had the fault.
        policy: what was done; None for a snapshot that stands as it came, because the policy is its bar's.
    """

    fault: str
    unit: str
    count: int
    policy: str | None


@dataclass(frozen=True)
class IngestionReport:
    """What was read of a source and what was wrong with it.

    Attributes:
        snapshots: order books read.
        trades: trades read.
        candles: candles read.
        bars: bars that are left.
        dropped_bars: bars that a policy took away; each is a gap.
        faults: every fault looked for, found or not.
    """

    snapshots: int
    trades: int
    candles: int
    bars: int
    dropped_bars: int
    faults: tuple[FaultCount, ...]

    def count(self, fault: str, unit: str) -> int:
        """How many of `unit` had `fault`; `KeyError` where it was not looked for."""
        for row in self.faults:
            if (row.fault, row.unit) == (fault, unit):
                return row.count
        raise KeyError(f"{fault} was not counted in {unit}")

    def as_dict(self) -> JsonDict:
        """The report as plain JSON values."""
        return {**asdict(self), "faults": [asdict(row) for row in self.faults]}
