"""Trying again: which faults pass by themselves, how long to wait, and when to give up."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Event
from typing import TypeVar

import requests

from archetype_dagster.settings import FetchSettings

T = TypeVar("T")


class FileFailed(Exception):
    """A final fault of this file; others may still be fetched."""


class Interrupted(Exception):
    """The run was stopped; what has arrived is kept for the next one."""


class TransientFault(Exception):
    """A fault that may pass by itself.

    Args:
        reason: what happened, in words.
        retry_after: seconds the server asks to wait, where it does.
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        self.retry_after = retry_after
        super().__init__(reason)


class Retries:
    """Exponential back-off with jitter, shared by the threads of a run.

    Args:
        settings: attempts, first and longest wait.
        sleep: waits that many seconds; by default on an event that `interrupt` sets.
        jitter: a fraction in [0, 1) that spreads the waits of many clients; not seeded, for that reason.
    """

    def __init__(
        self, settings: FetchSettings, sleep: Callable[[float], object] | None, jitter: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._stop = Event()
        self._sleep = sleep or self._stop.wait
        self._jitter = jitter

    def run(self, attempt: Callable[[], T]) -> T:
        """The attempt's result, trying again after each `TransientFault`.

        Raises:
            FileFailed: the attempts were used up, or the server asks for a longer wait than is set.
            Interrupted: `interrupt` was called.
        """
        number = 1
        while True:
            self.check()
            try:
                return attempt()
            except TransientFault as fault:
                if number == self._settings.attempts:
                    raise FileFailed(f"{fault}; gave up after {number} attempts") from fault
                self._wait(number, fault)
            number += 1

    def interrupt(self) -> None:
        """End every wait, and let every `check` of any thread raise."""
        self._stop.set()

    def check(self) -> None:
        """Raise `Interrupted` after `interrupt`."""
        if self._stop.is_set():
            raise Interrupted

    def _wait(self, number: int, fault: TransientFault) -> None:
        limit, first = self._settings.max_wait_seconds, self._settings.backoff_seconds
        if fault.retry_after is None:
            seconds = min(limit, first * 2.0 ** (number - 1)) * (1 + self._jitter()) / 2
        elif fault.retry_after > limit:
            raise FileFailed(f"{fault} and asks for {fault.retry_after:g} s, fetch.max_wait_seconds is {limit:g}")
        else:
            seconds = fault.retry_after + first * self._jitter()
        self._sleep(seconds)


def retry_after(response: requests.Response) -> float | None:
    """Seconds a server asks to wait, from its number or its date; None where it says nothing readable."""
    text = response.headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        until = parsedate_to_datetime(text)
        now = parsedate_to_datetime(response.headers["Date"]) if "Date" in response.headers else datetime.now(UTC)
        return max(0.0, (until - now).total_seconds())
    except (ValueError, TypeError):
        return None
