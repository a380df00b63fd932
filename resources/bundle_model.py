"""How MLflow loads a bundle as a model: by this module's name and a folder of plain files, nothing pickled."""

from collections.abc import Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

from archetype_dagster.deployment import OnnxPolicy
from archetype_dagster.types import ACTION_NAMES, FLAT


class BundleModel:
    """A bundle as MLflow calls it: a table of bars in, a table of decisions out.

    Args:
        directory: the bundle.
    """

    def __init__(self, directory: Path) -> None:
        self._policy = OnnxPolicy.load(directory)

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> Any:
        """Decide on bars of one market as if they came one by one; every call starts anew.

        Args:
            model_input: pandas DataFrame in the bars schema, oldest first; times without a zone are UTC.
            params: none are known.

        Returns:
            A pandas DataFrame with a row for each bar: `action` (short, flat, long; flat while features warm
            up), `code` and `tau` (-1 while they do) and `overridden`.

        Raises:
            MarketDataError: an unusable bar.
        """
        self._policy.reset()
        rows = []
        for bar in model_input.to_dict("records"):
            end = bar["timestamp"].to_pydatetime()
            end = end.replace(tzinfo=UTC) if end.tzinfo is None else end
            # A missing level is NaN to pandas and null to a bar.
            known = {name: None if value != value else value for name, value in bar.items()}
            decision = self._policy.on_bar({**known, "timestamp": end})
            rows.append(
                {
                    "action": ACTION_NAMES[FLAT if decision is None else decision.action],
                    "code": -1 if decision is None else decision.code,
                    "tau": -1 if decision is None else decision.tau,
                    "overridden": decision is not None and decision.overridden,
                }
            )
        return type(model_input)(rows)


def _load_pyfunc(data_path: str) -> BundleModel:
    """The function that MLflow looks for in a model's loader module."""
    return BundleModel(Path(data_path))
