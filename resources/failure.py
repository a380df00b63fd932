"""Errors that a user can mend, shown by Dagster as one line instead of a stack."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from archetype_dagster.errors import ArchetypeError


@contextmanager
def clear_failure() -> Iterator[None]:
    """Turn an `ArchetypeError` raised inside into a `dagster.Failure` with its message; trying again is no use."""
    try:
        yield
    except ArchetypeError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
