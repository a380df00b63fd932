"""The three single-step networks of a policy as ONNX graphs with named inputs and a free batch size.

Each graph takes codes as indices and holds the codebook itself, so that a runtime needs nothing but
the graphs, the scaler and the rules of the manifest.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import onnx
import torch
from torch import Tensor, nn

from archetype_dagster.artifacts import write_bytes_atomically
from archetype_dagster.codebook.decoder import ArchetypeDecoder
from archetype_dagster.errors import ArtifactError
from archetype_dagster.refinement.network import RefinerNetwork
from archetype_dagster.selection.network import SelectorNetwork
from archetype_dagster.types import JsonDict

OPSET: Final = 20
# With an example batch of 1 the exporter would freeze the batch size.
_EXAMPLE_BATCH: Final = 3
_NUM_ACTIONS: Final = 3
Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Graph:
    """A module with the example inputs and the names of its ONNX form.

    Attributes:
        file: file name in the bundle.
        module: takes the inputs in order.
        inputs: example tensors by name, all with the batch first.
        outputs: names of the outputs.
    """

    file: str
    module: nn.Module
    inputs: dict[str, Tensor]
    outputs: tuple[str, ...]


class SelectorStep(nn.Module):
    """Scaled state at a horizon's start (B, F), or the window up to it (B, L, F) -> code logits (B, K)."""

    def __init__(self, network: SelectorNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, market: Tensor) -> Tensor:
        """The actor's logits; the critic stays behind."""
        logits: Tensor = self.network(market)[0]
        return logits


class DecoderStep(nn.Module):
    """One bar of the causal decoder: state, code index and LSTM state -> action logits and LSTM state."""

    def __init__(self, decoder: ArchetypeDecoder, codes: Tensor) -> None:
        super().__init__()
        self.decoder = decoder
        self.register_buffer("codes", codes.detach().clone())
        self.codes: Tensor

    def forward(self, state: Tensor, code: Tensor, hidden_in: Tensor, cell_in: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, F), int64 (B,), (B, H), (B, H) -> (B, 3), (B, H), (B, H)."""
        logits, (hidden, cell) = self.decoder.step(state, self.codes[code], (hidden_in, cell_in))
        return logits, hidden, cell


class RefinerStep(nn.Module):
    """One bar of the refiner; assembles its context from the code, the base action and two numbers."""

    def __init__(self, network: RefinerNetwork, codes: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("codes", codes.detach().clone())
        self.codes: Tensor

    def forward(
        self, market: Tensor, code: Tensor, base_action: Tensor, realised_return: Tensor, time_left: Tensor
    ) -> Tensor:
        """Logits over [short, nothing, long], (B, 3).

        Args:
            market: (B, F), or (B, L, F) where the network looks back.
            code: int64 (B,).
            base_action: int64 (B,).
            realised_return: R_arche in percent of notional (B,).
            time_left: (h - tau) / h (B,).
        """
        action = (base_action.unsqueeze(-1) == torch.arange(_NUM_ACTIONS)).to(market.dtype)
        numbers = torch.stack([realised_return, time_left], dim=-1)
        logits: Tensor = self.network(market, torch.cat([self.codes[code], action, numbers], dim=-1))[0]
        return logits


def selector_graph(network: SelectorNetwork) -> Graph:
    """`selector.onnx`: state, or window where the network looks back -> code_logits."""
    return Graph("selector.onnx", SelectorStep(_portable(network)), _market_input(network), ("code_logits",))


def decoder_graph(decoder: ArchetypeDecoder, codes: Tensor) -> Graph:
    """`decoder_step.onnx`: state, code, hidden_in, cell_in -> action_logits, hidden_out, cell_out.

    Raises:
        ArtifactError: the decoder reads the horizon's future and has no single step.
    """
    if decoder.hindsight:
        raise ArtifactError("a hindsight decoder cannot be deployed: it reads the horizon's future")
    inputs = {
        "state": _floats(decoder.num_features),
        "code": torch.zeros(_EXAMPLE_BATCH, dtype=torch.int64),
        "hidden_in": _floats(decoder.hidden_size),
        "cell_in": _floats(decoder.hidden_size),
    }
    module = DecoderStep(_portable(decoder), codes.cpu())
    return Graph("decoder_step.onnx", module, inputs, ("action_logits", "hidden_out", "cell_out"))


def refiner_graph(network: RefinerNetwork, codes: Tensor) -> Graph:
    """`refiner_step.onnx`: state or window, code, base_action, realised_return, time_left -> override_logits."""
    inputs = {
        **_market_input(network),
        "code": torch.zeros(_EXAMPLE_BATCH, dtype=torch.int64),
        "base_action": torch.ones(_EXAMPLE_BATCH, dtype=torch.int64),
        "realised_return": torch.zeros(_EXAMPLE_BATCH),
        "time_left": torch.ones(_EXAMPLE_BATCH),
    }
    return Graph("refiner_step.onnx", RefinerStep(_portable(network), codes.cpu()), inputs, ("override_logits",))


def write_graph(directory: Path, graph: Graph) -> JsonDict:
    """Export one graph and return its inputs and outputs as JSON; the same weights give the same bytes.

    Raises:
        ArtifactError: the exporter froze the batch size or renamed an input or output.
    """
    batch = torch.export.Dim("batch")
    with _quiet_exporter():
        program = torch.onnx.export(
            graph.module.eval(),
            tuple(graph.inputs.values()),
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=tuple({0: batch} for _ in graph.inputs),
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
        )
    if program is None:
        raise ArtifactError(f"the exporter returned nothing for {graph.file}")
    model = program.model_proto
    _strip_origin(model)
    onnx.checker.check_model(model, full_check=True)
    interface = {"inputs": _signature(model.graph.input), "outputs": _signature(model.graph.output)}
    _require_interface(graph, interface)
    write_bytes_atomically(directory / graph.file, model.SerializeToString(deterministic=True))
    return {"file": graph.file, **interface}


def _portable(network: Network) -> Network:
    return deepcopy(network).cpu().eval().requires_grad_(False)


def _market_input(network: SelectorNetwork | RefinerNetwork) -> dict[str, Tensor]:
    features = network.shape["num_features"]
    if network.lookback_bars == 1:
        return {"state": _floats(features)}
    return {"window": _floats(network.lookback_bars, features)}


def _floats(*sizes: Any) -> Tensor:
    return torch.zeros(_EXAMPLE_BATCH, *sizes)


def _strip_origin(model: onnx.ModelProto) -> None:
    """Drop stack traces and paths of the exporting machine, which would differ between machines."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        del part.metadata_props[:]
        part.doc_string = ""


def _signature(values: Iterable[onnx.ValueInfoProto]) -> list[JsonDict]:
    return [
        {
            "name": value.name,
            "dtype": onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name,
            "shape": [size.dim_param or size.dim_value for size in value.type.tensor_type.shape.dim],
        }
        for value in values
    ]


def _require_interface(graph: Graph, interface: JsonDict) -> None:
    for side, expected in (("inputs", tuple(graph.inputs)), ("outputs", graph.outputs)):
        found = interface[side]
        if tuple(value["name"] for value in found) != expected:
            raise ArtifactError(f"{graph.file}: {side} must be {expected}, the exporter made {found}")
        frozen = [value for value in found if value["shape"][0] != "batch"]
        if frozen:
            raise ArtifactError(f"{graph.file}: the batch size must be free, the exporter made {frozen}")


@contextlib.contextmanager
def _quiet_exporter() -> Iterator[None]:
    """The exporter prints its progress and warns about its own internals; errors still propagate."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
