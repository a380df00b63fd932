"""Errors shown by Dagster as one line instead of a stack, and those that are worth another try."""

import errno
import os
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import dagster as dg
import polars as pl

from archetype_dagster.errors import ArchetypeError

MAX_RETRIES: Final = 3
_FIRST_WAIT_SECONDS: Final = 5.0
_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EACCES, errno.EPERM})
_NUMBER: Final = re.compile(r"\(os error (\d+)\)")
_PASSING: Final = frozenset(
    {
        errno.ECONNREFUSED,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
        errno.ENETDOWN,
        errno.ETIMEDOUT,
        errno.ESTALE,
        errno.EAGAIN,
    }
)


@contextmanager
def clear_failure(context: dg.AssetExecutionContext | None = None) -> Iterator[None]:
    """Turn what is raised inside into what it means for the run.

    An `ArchetypeError`, or a disk that is full or cannot be written, becomes a `dagster.Failure` with its
    message: trying again is no use. A fault that may pass becomes a `dagster.RetryRequested` where there is a
    `context`. Anything else is a fault of the program and is raised as it is.
    """
    try:
        yield
    except ArchetypeError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
    except (OSError, pl.exceptions.PolarsError) as error:
        number = error_number(error)
        if number in _UNWRITABLE:
            place = f" at {error.filename}" if isinstance(error, OSError) and error.filename else ""
            raise dg.Failure(
                f"cannot write{place}: {os.strerror(number)}; make room or grant access and run again, "
                "which goes on from what was saved",
                allow_retries=False,
            ) from error
        if context is not None and isinstance(error, OSError) and may_pass(error):
            wait = wait_before(context.retry_number)
            raise dg.RetryRequested(max_retries=MAX_RETRIES, seconds_to_wait=wait) from error
        raise


def error_number(error: Exception) -> int | None:
    """The operating system's number of an error; Polars names it in its message alone."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    found = _NUMBER.search(str(error))
    return int(found.group(1)) if found else None


def may_pass(error: OSError) -> bool:
    """True for faults of a network that another try may not meet: refused, reset, unreachable or timed out."""
    return isinstance(error, ConnectionError | TimeoutError) or error.errno in _PASSING


def wait_before(retry: int) -> float:
    """Seconds before a retry, counted from 0: doubled each time, and spread so that runs do not return together."""
    return float(_FIRST_WAIT_SECONDS * 2**retry * random.uniform(0.5, 1.5))
