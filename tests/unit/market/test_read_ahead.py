"""Items made ahead arrive in order, at most one too many is made, and errors come in their place."""

import threading
from collections.abc import Iterator

import pytest

from archetype_dagster.market.read_ahead import ahead


def test_items_and_errors_come_in_their_places() -> None:
    def items() -> Iterator[int | None]:
        yield from (1, None, 3)
        raise ValueError("after three")

    stream = ahead(items())
    assert [next(stream) for _ in range(3)] == [1, None, 3]
    with pytest.raises(ValueError, match="after three"):
        next(stream)
    assert list(ahead(iter([]))) == []


def test_no_more_than_one_item_is_made_ahead() -> None:
    made = threading.Semaphore(0)
    count = []

    def items() -> Iterator[int]:
        for number in range(10):
            count.append(number)
            made.release()
            yield number

    stream = ahead(items())
    for number in range(3):
        assert next(stream) == number
    for _ in range(4):
        assert made.acquire(timeout=10)
    stream.close()
    assert len(count) == 4
