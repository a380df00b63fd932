"""The record Phase I keeps of each epoch: one row, one schema."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

# Columns about codes are null in epochs without quantisation, those about validation where nothing is held out.
HISTORY_SCHEMA: Final = pl.Schema(
    {
        "epoch": pl.Int64(),
        "quantised": pl.Boolean(),
        "loss": pl.Float64(),
        "reconstruction": pl.Float64(),
        "codebook_loss": pl.Float64(),
        "commitment_loss": pl.Float64(),
        "validation_reconstruction": pl.Float64(),
        "validation_accuracy": pl.Float64(),
        "code_counts": pl.List(pl.Int64()),
        "used_codes": pl.Int64(),
        "perplexity": pl.Float64(),
        "alarm": pl.Boolean(),
        "reseeded": pl.Int64(),
    }
)


def history_frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """The rows as a frame with the columns of `HISTORY_SCHEMA`; what a row leaves out is null."""
    return pl.DataFrame(rows, schema=HISTORY_SCHEMA)


def loss_row(reconstruction: float, quantisation: float, commitment: float | None) -> dict[str, float | None]:
    """The loss of Eq. (4) and its terms; `commitment` is beta_0, None without quantisation.

    Both terms about codes have the same value, |z_e - z_q|^2; only their gradients differ.
    """
    distance = None if commitment is None else quantisation / (1.0 + commitment)
    return {
        "loss": reconstruction + quantisation,
        "reconstruction": reconstruction,
        "codebook_loss": distance,
        "commitment_loss": None if commitment is None or distance is None else commitment * distance,
    }


def row_metrics(row: dict[str, Any]) -> dict[str, float]:
    """The numbers of a row under `codebook/...`, as a progress display takes them."""
    return {
        f"codebook/{name}": float(value)
        for name, value in row.items()
        if name not in ("epoch", "code_counts") and value is not None
    }
