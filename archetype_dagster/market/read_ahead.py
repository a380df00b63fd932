"""Making the next piece of a stream while the one before is used."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items in the same order, one of them made ahead by a thread; an error comes where it came.

    Worth it where making an item runs outside the interpreter's lock, as unpacking and parsing do.
    """

    def one() -> list[Item]:
        return list(islice(items, 1))

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(one)
        while piece := coming.result():
            coming = pool.submit(one)
            yield from piece
