"""Pin every package of the deployment image with the hash of its wheel: `python deploy/lock.py`, Linux, Python 3.11.

Writes requirements.lock beside this file. Takes the public index alone, whatever else this machine is configured for,
so that the hashes are those that a build elsewhere meets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

# The build that the tests run with, as in the Makefile; the package itself allows newer ones.
TORCH = "torch==2.13.0"
EXTRAS = ("distributed", "kubernetes", "objects")
HERE = Path(__file__).parent
TARGET = HERE / "requirements.lock"
HEAD = """\
# Written by deploy/lock.py for CPython {version} on Linux x86-64; install with --require-hashes --no-deps.
"""


def requirements() -> list[str]:
    """What the image needs: the package's own requirements, those of the extras, and what builds its wheel."""
    project = tomllib.loads((HERE.parent / "pyproject.toml").read_text())
    optional = project["project"]["optional-dependencies"]
    extras = [requirement for extra in EXTRAS for requirement in optional[extra]]
    return [TORCH, *project["build-system"]["requires"], *project["project"]["dependencies"], *extras]


def resolve(wanted: list[str]) -> list[dict[str, Any]]:
    """pip's own report of what it would install."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    environment["PIP_CONFIG_FILE"] = os.devnull
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    done = subprocess.run(
        [*command, "--only-binary", ":all:", "--report", "-", *wanted],
        env=environment,
        stdout=subprocess.PIPE,
        check=True,
    )
    report: dict[str, list[dict[str, Any]]] = json.loads(done.stdout)
    return report["install"]


def lines(packages: list[dict[str, Any]]) -> list[str]:
    """One line a package, by name."""
    pinned = []
    for package in packages:
        about, digest = package["metadata"], package["download_info"]["archive_info"]["hashes"]["sha256"]
        pinned.append(f"{about['name'].lower()}=={about['version']} --hash=sha256:{digest}")
    return sorted(pinned)


if __name__ == "__main__":
    found = lines(resolve(requirements()))
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    TARGET.write_text(HEAD.format(version=version) + "\n".join(found) + "\n")
    print(f"{TARGET}: {len(found)} packages")
