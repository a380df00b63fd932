"""A picture of an episode so far: net value and positions."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Final

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from archetype_dagster.types import FloatArray

_SIZE_INCHES: Final = (6.4, 4.0)
_DPI: Final = 100


def episode_picture(
    timestamps: NDArray[np.datetime64], net_value: FloatArray, held: FloatArray, names: Sequence[str]
) -> NDArray[np.uint8]:
    """Net value above, positions below, over the bars of an episode.

    Args:
        timestamps: datetime64 (n,), bar ends, UTC.
        net_value: float64 (n,), quote units.
        held: float64 (n, L), positions in units, each held into its bar.
        names: of the L legs.

    Returns:
        uint8 (height, width, 3), RGB.
    """
    figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
    value, position = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    value.plot(timestamps, net_value, color="tab:blue", linewidth=1.2)
    value.set_ylabel("net value (quote units)")
    for leg, name in enumerate(names):
        position.step(timestamps, held[:, leg], where="pre", linewidth=1.0, label=name)
    position.set_ylim(-1.1, 1.1)
    position.set_ylabel("position (units)")
    position.legend(loc="upper left", fontsize="small")
    position.tick_params(axis="x", labelrotation=20)
    pixels = BytesIO()
    figure.savefig(pixels, format="rgba", dpi=_DPI)
    shape = (round(_SIZE_INCHES[1] * _DPI), round(_SIZE_INCHES[0] * _DPI), 4)
    return np.frombuffer(pixels.getvalue(), dtype=np.uint8).reshape(shape)[..., :3].copy()
