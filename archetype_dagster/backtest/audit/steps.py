"""The ledger, bar by bar, as CSV files of bounded size."""

from __future__ import annotations

import io
from pathlib import Path

from archetype_dagster.artifacts import write_bytes_atomically
from archetype_dagster.backtest.ledger import Ledger


def write_steps(ledger: Ledger, directory: Path, rows_per_file: int = 10_000) -> tuple[Path, ...]:
    """Write `Ledger.frame()` as steps-00000.csv, steps-00001.csv, ..., each with a header; returns their paths.

    Each file appears whole or not at all, and the same ledger gives the same bytes. Step files of an
    earlier, longer ledger are removed from the folder, so that what lies there is one ledger.

    Args:
        ledger: T bars.
        directory: folder to write to; made if it is not there.
        rows_per_file: bars per file; the last file may hold fewer.

    Raises:
        ValueError: rows_per_file below 1.
    """
    if rows_per_file < 1:
        raise ValueError(f"rows_per_file must be positive, got rows_per_file={rows_per_file}")
    frame = ledger.frame()
    paths = []
    for index, chunk in enumerate(frame.iter_slices(rows_per_file)):
        buffer = io.BytesIO()
        chunk.write_csv(buffer)
        paths.append(directory / f"steps-{index:05d}.csv")
        write_bytes_atomically(paths[-1], buffer.getvalue())
    for stale in sorted(set(directory.glob("steps-[0-9]*.csv")) - set(paths)):
        stale.unlink()
    return tuple(paths)
