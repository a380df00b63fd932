"""Phase I's training step, and decoding every code on each horizon against one LSTM pass per code.

Run with `python benchmarks/codebook.py`; both ways of decoding must agree, or the run stops.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from archetype_dagster.codebook import Codebook, decode_actions
from archetype_dagster.codebook.demonstrations import DemonstrationBatch
from archetype_dagster.codebook.modules import CodebookModules
from archetype_dagster.settings import CodebookSettings
from archetype_dagster.types import ActionArray

FEATURES = 45
PASSES_AT_ONCE = 512


def timed(work: Callable[[], Any], *, repeats: int = 3) -> tuple[Any, float]:
    """Result and the shortest of a few wall times in seconds."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - begin)
    return result, min(seconds)


def training_step(settings: CodebookSettings, bars: int, seed: int) -> Callable[[], None]:
    """One gradient step of Eq. (4) on a batch of random demonstrations."""
    generator = torch.Generator().manual_seed(seed)
    modules = CodebookModules.build(settings, FEATURES, seed=seed)
    optimizer = torch.optim.Adam(modules.parameters(), lr=settings.learning_rate)
    shape = (settings.batch_size, bars)
    batch = DemonstrationBatch(
        torch.randn(*shape, FEATURES, generator=generator),
        torch.randint(0, 3, shape, generator=generator),
        0.002 * torch.randn(*shape, generator=generator),
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        modules.losses(batch, quantised=True).total.backward()
        optimizer.step()

    return step


@torch.no_grad()
def one_pass_per_code(codebook: Codebook, states: torch.Tensor) -> ActionArray:
    """The same actions from the decoder's training-time pass, one code after the other."""
    actions = np.empty((len(states), codebook.num_codes, states.shape[1]), dtype=np.int8)
    for code, vector in enumerate(codebook.quantizer.codes):
        for first in range(0, len(states), PASSES_AT_ONCE):
            rows = states[first : first + PASSES_AT_ONCE]
            logits = codebook.decoder(rows, vector.expand(len(rows), -1))
            actions[first : first + len(rows), code] = decode_actions(logits, "argmax", hindsight=False)
    return actions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--horizons", type=int, default=1000)
    parser.add_argument("--bars", type=int, default=72)
    parser.add_argument("--hidden-size", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    settings = CodebookSettings(hidden_size=options.hidden_size)
    print(f"{options.bars} bars, {options.hidden_size} units, {options.threads} threads, seed {options.seed}")

    codebook = Codebook.untrained(FEATURES, options.bars, settings, seed=options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    codebook.quantizer.codes.normal_(generator=generator)
    states = torch.randn(options.horizons, options.bars, FEATURES, generator=generator)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shared, shared_time = timed(lambda: codebook.decode_all_codes(states))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    single, single_time = timed(lambda: one_pass_per_code(codebook, states))
    # Rounding differs, so logits within it of each other may swap; more than a few would be a fault.
    if (shared != single).mean() > 1e-5:
        raise SystemExit("the two ways of decoding disagree")
    sequences = options.horizons * codebook.num_codes
    for name, spent in (("all codes on one projection", shared_time), ("one LSTM pass per code", single_time)):
        print(f"{name:30} {spent:7.2f} s {sequences / spent:10,.0f} sequences/s {spent / shared_time:5.2f} x")
    print(f"decoding {sequences:,} sequences grew the process by {grown / 1024:.0f} MiB")

    _, seconds = timed(training_step(settings, options.bars, options.seed), repeats=5)
    print(
        f"training step of {settings.batch_size}: {seconds:.3f} s, {settings.batch_size / seconds:,.0f} trajectories/s"
    )


if __name__ == "__main__":
    main()
