"""The Tardis archive on loopback: the key's way, and files that have no checksum."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path

import numpy as np
import pytest

from archetype_dagster.errors import SettingsError
from archetype_dagster.market.fetching import TARDIS_KEY_VARIABLE, ArchiveKey, FetchReport, TardisSeries, fetch_files
from archetype_dagster.settings import FetchSettings

KEY = "TD.secret-key"
PATH = "/v1/binance/trades/2024/01/01/BTCUSDT.csv.gz"
SERIES = TardisSeries("binance", "trades", "BTCUSDT")
RAW = b"exchange,symbol,timestamp\n" + np.random.default_rng(0).bytes(60_000)


@pytest.fixture(autouse=True)
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TARDIS_KEY_VARIABLE, raising=False)


def fetch(server, output: Path, base_url: str = "") -> FetchReport:
    files = SERIES.files(base_url or f"{server.url}/v1", date(2024, 1, 1), date(2024, 1, 2))
    key = ArchiveKey(TARDIS_KEY_VARIABLE)
    return fetch_files(files, output, FetchSettings(), key=key, sleep=lambda _: None)


def test_the_key_goes_from_the_environment_into_the_header_and_nowhere_else(
    server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.files[PATH] = gzip.compress(RAW)
    monkeypatch.setenv(TARDIS_KEY_VARIABLE, KEY)
    report = fetch(server, tmp_path)
    assert [request.authorization for request in server.requests] == [f"Bearer {KEY}"]
    assert [(o.status, o.reason) for o in report.outcomes] == [("fetched", "unpacks without error")]
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert file == tmp_path / SERIES.folder / "binance_trades_2024-01-01_BTCUSDT.csv.gz"
    assert gzip.decompress(file.read_bytes()) == RAW
    assert KEY not in repr(report)
    assert KEY not in repr(vars(ArchiveKey(TARDIS_KEY_VARIABLE)))


def test_without_a_key_none_is_sent_not_even_from_a_netrc(
    server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password mine\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    server.files[PATH] = gzip.compress(RAW)
    fetch(server, tmp_path / "out")
    assert [request.authorization for request in server.requests] == [None]


@pytest.mark.parametrize(("key", "problem"), [(None, "is not set"), (KEY, "was not accepted for it")])
def test_refused_access_names_the_variable(
    server, fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None, problem: str
) -> None:
    if key:
        monkeypatch.setenv(TARDIS_KEY_VARIABLE, key)
    server.faults[PATH] = [fault(status=401)]
    (outcome,) = fetch(server, tmp_path).outcomes
    assert (outcome.status, outcome.reason) == ("failed", f"access refused (401): TARDIS_API_KEY {problem}")


def test_a_key_that_the_server_echoes_is_struck_out(
    server, fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TARDIS_KEY_VARIABLE, KEY)
    server.faults[PATH] = [fault(status=400, body=f"bad key {KEY}".encode())]
    (outcome,) = fetch(server, tmp_path).outcomes
    assert outcome.reason == "the archive answered 400: bad key ***"


def test_a_key_no_header_can_hold_is_refused_without_being_shown(
    server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TARDIS_KEY_VARIABLE, "TD.secret\nX-Other: 1")
    with pytest.raises(SettingsError, match="TARDIS_API_KEY holds spaces or control characters") as caught:
        fetch(server, tmp_path)
    assert "secret" not in str(caught.value)
    assert server.requests == []


def test_a_key_does_not_travel_unencrypted_to_another_machine(
    server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TARDIS_KEY_VARIABLE, KEY)
    with pytest.raises(SettingsError, match=r"TARDIS_API_KEY is sent over https only, got http://archive\.invalid"):
        fetch(server, tmp_path, "http://archive.invalid/v1")


def test_a_gzip_that_ends_early_without_saying_so_is_refused(server, fault, tmp_path: Path) -> None:
    server.files[PATH] = gzip.compress(RAW)
    server.faults[PATH] = [fault(unsized=20_000)]
    (outcome,) = fetch(server, tmp_path).outcomes
    assert outcome.status == "refused"
    assert outcome.reason.startswith("it cannot be unpacked (Compressed file ended before")
    assert list(tmp_path.rglob("*")) == []


def test_a_content_encoding_is_kept_as_stored(server, fault, tmp_path: Path) -> None:
    server.files[PATH] = gzip.compress(RAW)
    server.headers[PATH] = {"Content-Encoding": "gzip"}
    server.faults[PATH] = [fault(cut=20_000)]
    (outcome,) = fetch(server, tmp_path).outcomes
    assert (outcome.status, server.ranges(PATH)) == ("fetched", [None, "bytes=20000-"])
    assert (tmp_path / outcome.file.path).read_bytes() == server.files[PATH]


def test_a_day_without_data_is_told_apart(server, tmp_path: Path) -> None:
    server.files[PATH] = b""
    (outcome,) = fetch(server, tmp_path).outcomes
    assert (outcome.status, outcome.reason) == ("fetched", "empty: no data that day")
