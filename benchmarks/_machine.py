"""What a benchmark ran on, as one line to print above its figures."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path


def machine_line(*packages: str) -> str:
    """Processor, cores this process may use, memory, Python and the versions of `packages`."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    gibibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    facts = [
        f"{models[0] if models else platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        f"{gibibytes:.0f} GiB",
        f"Python {platform.python_version()}",
        *(f"{package} {version(package)}" for package in packages),
    ]
    return "; ".join(facts)
