from __future__ import annotations

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import numpy as np
import polars as pl
import pytest
import requests

from archetype_dagster.artifacts import write_bytes_atomically
from archetype_dagster.errors import SettingsError
from resources import failure
from resources.failure import clear_failure, error_number, may_pass, wait_before

# Too random to be packed.
TABLE = pl.DataFrame({"number": np.random.default_rng(0).random(50_000)})


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """No file of this process may grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("write", ["table", "text", "bytes"])
def test_a_full_disk_is_one_line_and_no_reason_to_try_again(tmp_path: Path, write: str):
    with (
        small_disk(20_000),
        pytest.raises(dg.Failure, match=r"cannot write.*: File too large; make room") as raised,
        clear_failure(),
    ):
        if write == "table":
            TABLE.write_parquet(tmp_path / "table.parquet")
        elif write == "text":
            TABLE.write_csv(tmp_path / "table.csv")
        else:
            write_bytes_atomically(tmp_path / "state", b"0" * 50_000)
    assert raised.value.allow_retries is False
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_refused_connection_is_tried_again_after_a_spread_wait(monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"

        @dg.asset(retry_policy=None)
        def reads(context) -> None:
            with clear_failure(context):
                if context.retry_number == 0:
                    socket.create_connection(closed.getsockname(), timeout=5)

        monkeypatch.setattr(failure, "_FIRST_WAIT_SECONDS", 0.01)
        result = dg.materialize([reads])
        assert result.success
        retried = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_UP_FOR_RETRY]
        assert len(retried) == 1
        with pytest.raises(requests.ConnectionError), clear_failure():
            requests.get(address, timeout=5)
    monkeypatch.undo()
    waits = {wait_before(2) for _ in range(20)}
    assert len(waits) > 1
    assert all(10 <= wait <= 30 for wait in waits)


def test_only_faults_of_a_network_may_pass():
    passing = [ConnectionResetError(), TimeoutError(), OSError(errno.ENETUNREACH, "x"), OSError(errno.ESTALE, "x")]
    lasting = [FileNotFoundError(errno.ENOENT, "x"), OSError(errno.EIO, "x"), OSError(errno.ENOSPC, "x")]
    assert all(map(may_pass, passing))
    assert not any(map(may_pass, lasting))


def test_what_a_user_can_mend_is_not_tried_again_and_a_fault_of_the_program_is_left_as_it_is():
    with pytest.raises(dg.Failure, match="no such pair") as raised, clear_failure(dg.build_asset_context()):
        raise SettingsError("no such pair")
    assert raised.value.allow_retries is False
    with pytest.raises(ZeroDivisionError), clear_failure(dg.build_asset_context()):
        raise ZeroDivisionError


def test_the_number_of_an_error_is_found_in_the_words_of_polars_too():
    assert error_number(OSError(errno.EROFS, os.strerror(errno.EROFS))) == errno.EROFS
    assert error_number(pl.exceptions.ComputeError("parquet: underlying IO error: No space (os error 28)")) == 28
    assert error_number(pl.exceptions.ComputeError("no such column")) is None
