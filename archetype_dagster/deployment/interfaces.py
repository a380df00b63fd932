"""What the graphs of a bundle must take and give: names, types and shapes, the batch first and free."""

from __future__ import annotations

from typing import Final

from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.feature_formulas import FEATURE_NAMES
from archetype_dagster.types import ACTION_NAMES, JsonDict

_DTYPES: Final = {"code": "int64", "base_action": "int64"}


def expected_interfaces(manifest: JsonDict, hidden_size: int) -> dict[str, JsonDict]:
    """Inputs and outputs of each graph that a manifest's numbers call for."""
    features, actions, codes = len(FEATURE_NAMES), len(ACTION_NAMES), int(manifest["num_codes"])
    decoder_state = {"hidden_in": [hidden_size], "cell_in": [hidden_size]}
    known = {
        "selector": ({**_market(manifest["selector_lookback_bars"], features)}, {"code_logits": [codes]}),
        "decoder": (
            {"state": [features], "code": [], **decoder_state},
            {"action_logits": [actions], "hidden_out": [hidden_size], "cell_out": [hidden_size]},
        ),
        "refiner": (
            {
                **_market(manifest["refiner_lookback_bars"], features),
                "code": [],
                "base_action": [],
                "realised_return": [],
                "time_left": [],
            },
            {"override_logits": [actions]},
        ),
    }
    return {
        name: {"inputs": _values(known[name][0]), "outputs": _values(known[name][1])} for name in manifest["graphs"]
    }


def require_interfaces(manifest: JsonDict) -> None:
    """Compare the interfaces that a manifest states with those that its numbers call for.

    Raises:
        ArtifactError: they differ; the message names the graph and both.
    """
    graphs = manifest["graphs"]
    hidden_size = int(graphs["decoder"]["outputs"][1]["shape"][1])
    for name, expected in expected_interfaces(manifest, hidden_size).items():
        for side, values in expected.items():
            if graphs[name][side] != values:
                raise ArtifactError(
                    f"the {name}'s {side} are {graphs[name][side]}, this version needs {values}; "
                    "export the policy again"
                )


def _market(lookback_bars: int, features: int) -> dict[str, list[int]]:
    return {"state": [features]} if lookback_bars == 1 else {"window": [int(lookback_bars), features]}


def _values(shapes: dict[str, list[int]]) -> list[JsonDict]:
    return [
        {"name": name, "dtype": _DTYPES.get(name, "float32"), "shape": ["batch", *shape]}
        for name, shape in shapes.items()
    ]
