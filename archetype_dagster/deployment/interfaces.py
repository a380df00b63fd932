"""What the graphs of a bundle must take and give: names, types and shapes, the batch first and free."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from archetype_dagster.artifacts import json_hash
from archetype_dagster.errors import ArtifactError
from archetype_dagster.market.feature_formulas import FEATURE_NAMES
from archetype_dagster.types import ACTION_NAMES, JsonDict

_DTYPES: Final = {"code": "int64", "base_action": "int64"}
_AGAIN: Final = "export the policy again"


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


def require_interfaces(manifest: JsonDict, *, file: Path) -> None:
    """Compare the interfaces that a manifest states with those that its numbers call for.

    Args:
        manifest: with the numbers and, in `graphs`, an object for each graph.
        file: where the manifest lies, or will lie.

    Raises:
        ArtifactError: they differ; the message names file, graph and both.
    """
    graphs = manifest["graphs"]
    for name, expected in expected_interfaces(manifest, _hidden_size(graphs["decoder"], file)).items():
        for side, values in expected.items():
            found = graphs[name].get(side)
            # Of the JSON texts, because to Python 1 and True are equal.
            if json_hash(found) != json_hash(values):
                raise ArtifactError(f"{file}: the {name}'s {side} are {found}, this version needs {values}; {_AGAIN}")


def _hidden_size(decoder: JsonDict, file: Path) -> int:
    """Size of the decoder's state, the only number of the interfaces that nothing else states."""
    try:
        size = decoder["outputs"][1]["shape"][1]
    except (LookupError, TypeError):
        size = None
    if type(size) is not int or size < 1:
        outputs = decoder.get("outputs")
        raise ArtifactError(f"{file}: the decoder's outputs are {outputs}, the second must be a state; {_AGAIN}")
    return size


def _market(lookback_bars: int, features: int) -> dict[str, list[int]]:
    return {"state": [features]} if lookback_bars == 1 else {"window": [int(lookback_bars), features]}


def _values(shapes: dict[str, list[int]]) -> list[JsonDict]:
    return [
        {"name": name, "dtype": _DTYPES.get(name, "float32"), "shape": ["batch", *shape]}
        for name, shape in shapes.items()
    ]
