"""`archetype fetch` as users run it, against an archive on loopback."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from archetype_dagster.cli import main

COMMAND = [sys.executable, "-c", "from archetype_dagster.cli import main; main()", "fetch"]
DAILY = ["--symbol", "BTCUSDT", "--period", "daily", "--start", "2020-01-01", "--output", "copy"]


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[4]), "COLUMNS": "120", **variables}
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A suite in a shell's background has Ctrl-C's signal ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run(folder: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    with start(folder, *arguments, **variables) as process:
        output, errors = process.communicate()
    return process.returncode, output, errors


@pytest.mark.parametrize("archive", ["made"], indirect=True)
def test_a_range_with_a_missing_day_is_fetched_and_told(archive, days, tmp_path: Path) -> None:
    code, output, errors = run(tmp_path, "binance", *DAILY, "--end", "2020-01-04", "--base-url", archive.url)
    assert code == 0, errors
    assert errors == "warning: missing: BTCUSDT-1m-2020-01-03.zip: the archive has no such file (404)\n"
    folder = tmp_path / "copy" / days[0].path.parent
    assert f"Files: {folder}" in output
    assert sorted(path.name for path in folder.glob("*.zip")) == [file.path.name for file in days]


@pytest.mark.parametrize("archive", ["made"], indirect=True)
def test_a_refused_file_ends_in_an_error(archive, days, tmp_path: Path) -> None:
    archive.files[f"/{days[0].path}"] = b"something else"
    settings = ["--set", f"fetch.binance_url={archive.url}"]
    code, _, errors = run(tmp_path, "binance", *DAILY, "--end", "2020-01-03", *settings)
    assert code == 1
    assert "warning: refused: BTCUSDT-1m-2020-01-01.zip: its SHA-256 is" in errors
    assert errors.splitlines()[-1] == "error: 1 of 2 files could not be fetched"


@pytest.mark.parametrize("archive", ["made"], indirect=True)
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_goes_on_where_it_was(archive, fault, days, tmp_path: Path, ending: signal.Signals) -> None:
    path = f"/{days[0].path}"
    archive.faults[path] = [fault(stall=30_000)]
    arguments = ["binance", *DAILY, "--end", "2020-01-02", "--base-url", archive.url]
    part = tmp_path / "copy" / ".partial" / path[1:].replace("/", "+")
    with start(tmp_path, *arguments) as victim:
        while not (part.exists() and part.stat().st_size):
            assert victim.poll() is None, "the run ended before it could be killed"
        victim.send_signal(ending)
    size = part.stat().st_size
    code, _, errors = run(tmp_path, *arguments)
    assert code == 0, errors
    assert archive.ranges(path) == [None, f"bytes={size}-"]
    assert (tmp_path / "copy" / days[0].path).read_bytes() == archive.files[path]


def test_tardis_reads_its_key_from_the_environment_and_never_shows_it(server, fault, tmp_path: Path) -> None:
    for day, payload in (("01", gzip.compress(b"exchange,symbol\n")), ("02", b"not gzip")):
        server.files[f"/v1/binance/trades/2024/01/{day}/ETHUSDT.csv.gz"] = payload
    server.faults["/v1/binance/trades/2024/01/03/ETHUSDT.csv.gz"] = [fault(status=401)]
    arguments = ["--pair", "ETH", "--data", "trades", "--start", "2024-01-01", "--end", "2024-01-04"]
    arguments += ["--output", "copy", "--base-url", f"{server.url}/v1"]
    code, output, errors = run(tmp_path, "tardis", *arguments, TARDIS_API_KEY="TD.secret")
    assert code == 1
    assert {request.authorization for request in server.requests} == {"Bearer TD.secret"}
    assert "refused: binance_trades_2024-01-02_ETHUSDT.csv.gz: it cannot be unpacked" in errors
    assert "access refused (401): TARDIS_API_KEY was not accepted" in errors
    assert errors.splitlines()[-1] == "error: 2 of 3 files could not be fetched"
    written = "".join(path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file())
    assert "TD.secret" not in output + errors + written


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--end", "2020-01-01"], "end must be after start, got 2020-01-01 to 2020-01-01"),
        (["--end", "soon"], "--end must be YYYY-MM-DD or YYYY-MM, got 'soon'"),
        (["--end", "2020-02", "--pair", "BTC"], "name either --pair or --symbol"),
        (["--end", "2020-02", "--base-url", "ftp://x"], "fetch.binance_url: Value error, must be an http or https URL"),
        (["--end", "2020-02", "--set", "fetch.connections=0"], "fetch.connections: Input should be greater than 0"),
    ],
)
def test_bad_input_is_one_clear_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["archetype", "fetch", "binance", *DAILY, *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    output, errors = capsys.readouterr()
    (line,) = errors.splitlines()
    assert (ended.value.code, output) == (1, "")
    assert line.startswith("error: ")
    assert message in line
    assert not (tmp_path / "copy").exists()
