"""Who is told of changes in the order books, and what happens when one of them fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Literal, get_args

from archetype_dagster.backtest.engine.book_diff import BookSnapshot, L3BookDiff, diff
from archetype_dagster.backtest.engine.instruments import Instrument
from archetype_dagster.backtest.engine.order_book import OrderBook
from archetype_dagster.errors import ArchetypeError
from archetype_dagster.settings.engine import ErrorPolicy

Kind = Literal["per_bar", "per_fill", "both"]
Moment = Literal["per_bar", "per_fill"]
Callback = Callable[[L3BookDiff], None]


class SubscriberError(ArchetypeError):
    """A subscriber raised; the message names it and its own exception is the cause."""


@dataclass(frozen=True)
class Subscriber:
    """Who wants which diffs.

    Attributes:
        name: what errors call it.
        kind: when it is told.
        callback: what is called.
        seen: by instrument the book it knows, i.e. the one that its next diff starts from.
    """

    name: str
    kind: Kind
    callback: Callback
    seen: dict[Instrument, BookSnapshot] = field(default_factory=dict)


class Subscriptions:
    """All subscribers of an engine, told in the order they came."""

    def __init__(self, policy: ErrorPolicy) -> None:
        self._policy = policy
        self._subscribers: dict[int, Subscriber] = {}
        self._next = 1
        self.errors: list[tuple[datetime, str, str]] = []

    def __len__(self) -> int:
        return len(self._subscribers)

    def add(self, callback: Callback, kind: Kind, name: str | None) -> int:
        """Register a subscriber and give its number.

        Raises:
            ValueError: an unknown kind, or a callback that cannot be called.
        """
        if kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {get_args(Kind)}, got kind={kind!r}")
        if not callable(callback):
            raise ValueError(f"callback must be callable, got callback={callback!r}")
        number = self._next
        self._next += 1
        shown = name or str(getattr(callback, "__qualname__", type(callback).__qualname__))
        self._subscribers[number] = Subscriber(shown, kind, callback)
        return number

    def remove(self, number: int) -> None:
        """Forget a subscriber; `ValueError` where there is none of that number."""
        if number not in self._subscribers:
            raise ValueError(f"no subscription {number}; there are {sorted(self._subscribers)}")
        del self._subscribers[number]

    def begin(self, books: Sequence[tuple[Instrument, OrderBook]]) -> None:
        """Start a run: everyone knows the books as they are now."""
        self.errors = []
        for subscriber in self._subscribers.values():
            subscriber.seen.clear()
            self._start(subscriber, books)

    def join(self, number: int, books: Sequence[tuple[Instrument, OrderBook]]) -> None:
        """Let one who came during a run start from the books as they are now."""
        self._start(self._subscribers[number], books)

    def tell(self, moment: Moment, instrument: Instrument, book: OrderBook, now: datetime) -> None:
        """Hand each subscriber of this moment what changed in a book since it was last told.

        Raises:
            SubscriberError: a subscriber raised and the policy is `stop`.
        """
        wanting = [
            (number, subscriber)
            for number, subscriber in self._subscribers.items()
            if subscriber.kind in (moment, "both") and instrument in subscriber.seen
        ]
        if not wanting:
            return
        after = book.snapshot()
        changes: dict[int, tuple[BookSnapshot, L3BookDiff]] = {}
        for number, subscriber in wanting:
            if number not in self._subscribers:
                continue
            before = subscriber.seen[instrument]
            if id(before) not in changes:
                # The snapshot is kept beside its diff, so that no other one gets its id.
                changes[id(before)] = before, diff(before, after, instrument=instrument, timestamp=now)
            subscriber.seen[instrument] = after
            with _Guard(subscriber.name, self._policy, self.errors, now):
                subscriber.callback(changes[id(before)][1])

    @staticmethod
    def _start(subscriber: Subscriber, books: Sequence[tuple[Instrument, OrderBook]]) -> None:
        subscriber.seen.update((instrument, book.snapshot()) for instrument, book in books)


class _Guard:
    """Names the subscriber of an exception; records and swallows it where the policy is `continue`."""

    def __init__(self, name: str, policy: ErrorPolicy, errors: list[tuple[datetime, str, str]], now: datetime) -> None:
        self._name, self._policy, self._errors, self._now = name, policy, errors, now

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        said = f"{type(error).__name__}: {error}"
        if self._policy == "continue":
            self._errors.append((self._now, self._name, said))
            return True
        raise SubscriberError(f"subscriber {self._name!r} raised {said}") from error
