"""Windows per second of each backbone at the length it is meant for, beside the plain PyTorch module of its sizes.

Run with `python benchmarks/backbones.py`; nothing else should run meanwhile. `forward` is evaluation without
gradients, `training` a forward pass, a backward pass and an Adam step; each figure is the best of a few repeats on one
thread. The plain module of an attention backbone is `nn.TransformerEncoder` of the same width, heads, layers and
feed-forward size, which computes every token of its last layer although one is read.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from _machine import machine_line
from torch import nn

from archetype_dagster.policies import build_backbone

OUTPUT = 128


@dataclass(frozen=True)
class Case:
    alias: str
    length: int
    features: int
    plain: Callable[[int, int], nn.Module]
    arguments: dict[str, Any]


class PlainTransformer(nn.Module):
    def __init__(self, length: int, token: int, width: int, feed_forward: int) -> None:
        super().__init__()
        self.length = length
        self.embedding = nn.Linear(token, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, feed_forward, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, OUTPUT)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        tokens = windows.reshape(len(windows), self.length, -1)
        return self.head(self.encoder(self.embedding(tokens) + self.positions)[:, -1])


class PlainRecurrence(nn.Module):
    def __init__(self, cell: type[nn.LSTM | nn.GRU], features: int) -> None:
        super().__init__()
        self.recurrence = cell(features, 128, batch_first=True)
        self.head = nn.Linear(128, OUTPUT)

    def forward(self, windows: torch.Tensor) -> torch.Tensor:
        return self.head(self.recurrence(windows)[0][:, -1])


def plain_encoder(length: int, features: int) -> nn.Module:
    layers = (nn.Linear(length * features, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, OUTPUT))
    return nn.Sequential(nn.Flatten(), *layers)


CASES = [
    Case("TransformerBackbone", 30, 45, lambda length, f: PlainTransformer(length, f, OUTPUT, 256), {}),
    Case("TransformerBackbone", 100, 45, lambda length, f: PlainTransformer(length, f, OUTPUT, 256), {}),
    Case("RecurrentBackbone", 30, 45, lambda _, f: PlainRecurrence(nn.LSTM, f), {}),
    Case("RecurrentBackbone", 30, 45, lambda _, f: PlainRecurrence(nn.GRU, f), {"cell": "gru"}),
    Case("AutoencoderBackbone", 1, 1200, plain_encoder, {}),
    Case("PatchTSTBackbone", 256, 45, lambda length, f: PlainTransformer(length // 4, 4 * f, 64, 128), {}),
]


def fastest(work: Callable[[], Any], windows: int, repeats: int) -> float:
    """Windows per second of the best repeat; one more, the first, is not counted."""
    work()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    return windows / min(seconds)


def speeds(network: nn.Module, windows: torch.Tensor, repeats: int) -> tuple[float, float]:
    """Forward and training windows per second."""
    optimizer = torch.optim.Adam(weight for weight in network.parameters() if weight.requires_grad)

    def learn() -> None:
        optimizer.zero_grad()
        network(windows).square().mean().backward()
        optimizer.step()

    with torch.no_grad():
        forward = fastest(lambda: network.eval()(windows), len(windows), repeats)
    network.train()
    return forward, fastest(learn, len(windows), repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=256, help="windows a call")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(machine_line("torch"))
    print(f"{'':36} {'forward/s':>10} {'plain':>10} {'ratio':>6} {'training/s':>11} {'plain':>10} {'ratio':>6}")
    for case in CASES:
        windows = torch.randn(options.batch, case.length, case.features)
        sizes = {"input_features": case.features, "sequence_length": case.length, "output_dim": OUTPUT}
        ours = speeds(build_backbone(case.alias, **sizes, backbone_kwargs=case.arguments), windows, options.repeats)
        plain = speeds(case.plain(case.length, case.features), windows, options.repeats)
        label = " ".join([case.alias, *case.arguments.values(), f"L={case.length} F={case.features}"])
        row = [f"{a:10,.0f} {b:10,.0f} {a / b:6.2f}" for a, b in zip(ours, plain, strict=True)]
        print(f"{label:36} {row[0]} {' '}{row[1]}")


if __name__ == "__main__":
    main()
