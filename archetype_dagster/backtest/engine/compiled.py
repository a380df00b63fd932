"""One way of compiling hot loops, safe on installs and home folders that nobody may write to.

Numba notices a changed file only for the functions in it: after editing a compiled function that another file
calls, delete the `__pycache__` folder of the package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def compiled(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function compiled at its first call: one thread, IEEE arithmetic, kept on disk where a folder allows it."""
    try:
        return cast(Callable[Parameters, Result], numba.njit(cache=True)(function))
    except RuntimeError:
        # Numba raises here when neither the package nor the user's cache folder can be written.
        return cast(Callable[Parameters, Result], numba.njit(function))
