"""Opening ONNX graphs with onnxruntime: providers by name, one thread, and shapes that must be the manifest's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import onnxruntime

from archetype_dagster.errors import ArtifactError
from archetype_dagster.types import JsonDict

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
# TensorFloat-32 would round weights to ten bits, far beyond the tolerance that a bundle is tested to.
_OPTIONS: Final[dict[str, dict[str, str]]] = {CUDA: {"use_tf32": "0"}}


def require_providers(providers: Sequence[str]) -> None:
    """Refuse providers that this onnxruntime does not have.

    Raises:
        ValueError: none is named, or one is missing; the message names those that there are.
    """
    available = onnxruntime.get_available_providers()
    if isinstance(providers, str) or not providers:
        raise ValueError(f"providers must name at least one provider in a list, got {providers!r}")
    for name in providers:
        if name not in available:
            raise ValueError(f"provider {name} is not available, this onnxruntime has {', '.join(available)}")


def open_session(path: Path, interface: JsonDict, providers: Sequence[str]) -> onnxruntime.InferenceSession:
    """Open one graph, without falling back to another provider than the first one named.

    Args:
        path: the graph.
        interface: `inputs` and `outputs` as the manifest states them: name, dtype, shape.
        providers: in order of preference; see `require_providers`.

    Raises:
        ArtifactError: not a readable graph, or its inputs and outputs are not the manifest's.
        ValueError: the provider is there but does not start, e.g. for want of a driver.
    """
    options = onnxruntime.SessionOptions()
    # Bars come one at a time: one thread is fastest, and sums keep their order.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    named = [(name, _OPTIONS.get(name, {})) for name in providers]
    try:
        session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=named)
    except _FAILURES as error:
        raise ArtifactError(f"{path} is not a graph that onnxruntime can open ({error})") from error
    used = session.get_providers()
    if used[0] != providers[0]:
        raise ValueError(f"provider {providers[0]} does not start on this machine; {path.name} would run on {used[0]}")
    for side, values in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        found = [_signature(value) for value in values]
        if found != interface[side]:
            raise ArtifactError(f"{path}: {side} must be {interface[side]} as the manifest states, got {found}")
    return session


def _signature(value: Any) -> JsonDict:
    dtype = {"tensor(float)": "float32", "tensor(int64)": "int64"}.get(value.type, value.type)
    return {"name": value.name, "dtype": dtype, "shape": list(value.shape)}


def _runtime_failures() -> tuple[type[Exception], ...]:
    """The exceptions of onnxruntime, which have no common base of their own."""
    state = onnxruntime.capi.onnxruntime_pybind11_state
    names = (
        "EPFail",
        "Fail",
        "InvalidArgument",
        "InvalidGraph",
        "InvalidProtobuf",
        "NoSuchFile",
        "NotImplemented",
        "RuntimeException",
    )
    return tuple(getattr(state, name) for name in names)


_FAILURES: Final = _runtime_failures()
