"""A real exported bundle on paper earns what the evaluation's ledger says, bar by bar, through every restart."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

from archetype_dagster.artifacts import write_json
from archetype_dagster.backtest.accounts import SplitAccounts
from archetype_dagster.backtest.policy import TradingPolicy, decide
from archetype_dagster.backtest.replay import replay_priced
from archetype_dagster.cli import app
from archetype_dagster.deployment import OnnxPolicy
from archetype_dagster.deployment.bundle import seal_bundle
from archetype_dagster.errors import ArchetypeError, ArtifactError, MarketDataError
from archetype_dagster.market.bars import assign_segments
from archetype_dagster.market.feature_table import build_feature_table
from archetype_dagster.market.scaler import FeatureScaler
from archetype_dagster.market.sources import bars_for
from archetype_dagster.market.splits import split_dataset
from archetype_dagster.paper_cli import STOPPED
from archetype_dagster.paper_trading import FileFeed, Journal, PaperSession
from archetype_dagster.settings import Settings

CAPTURE = "vendor/binance_ws_capture_spot_btcusdt_2024-08-08.gz"
SETTINGS = {
    "market.synthetic.start": "2023-01-01T00:00:00Z",
    "market.synthetic.end": "2023-01-06T06:00:00Z",
    "market.book_levels": 5,
    "splits.train_start": "2023-01-01T00:00:00Z",
    "splits.train_end": "2023-01-04T00:00:00Z",
    "splits.validation_start": "2023-01-04T00:00:00Z",
    "splits.validation_end": "2023-01-05T00:00:00Z",
    "splits.test_start": "2023-01-05T00:00:00Z",
    "splits.test_end": "2023-01-06T06:00:00Z",
    "paper_trading.limits.stale_bars": None,
    "paper_trading.limits.max_drawdown": None,
}


class Recorded:
    """One market, its policy, its bundle and the evaluation's account of the test split."""

    def __init__(self, folder: Path, bundle: Path, make_policy: Callable[..., TradingPolicy], **changes: Any) -> None:
        policy = make_policy({**SETTINGS, **changes})
        self.settings = policy.settings
        whole = bars_for(self.settings, "ETH")
        # An outage within the test split.
        lost = pl.col("timestamp").dt.strftime("%Y-%m-%d %H").is_in(["2023-01-05 08", "2023-01-05 09"])
        self.bars = assign_segments(whole.filter(~lost), bar_minutes=10)
        scaler = FeatureScaler.load(bundle / "scaler.json")
        table = build_feature_table(self.bars, self.settings, "ETH", scaler=scaler)
        self.bundle = _with_execution(folder, bundle, self.settings)
        self.test = split_dataset(table.dataset(self.settings), self.settings.splits).test
        dates = self.settings.splits
        self.accounts = SplitAccounts(self.bars, self.test, self.settings, (dates.test_start, dates.test_end))
        self.actions = decide(policy, self.test).actions
        self.ledger = self.accounts.trade(self.actions)
        self.feed = folder / "feed.parquet"
        self.bars.filter(pl.col("timestamp") < dates.test_end).write_parquet(self.feed)
        self.start = self.test.timestamps[0].item().isoformat() + "+00:00"

    def paper_settings(self) -> Settings:
        """Started where the evaluation first decides, with its capital."""
        values = {"paper_trading.start": self.start, "paper_trading.initial_capital": self.ledger.initial_capital}
        return self.settings.changed(values)

    def session(self, journal: Journal, feed: FileFeed | None = None) -> PaperSession:
        policy = OnnxPolicy.load(self.bundle)
        feed = feed or FileFeed(self.feed, follow=False)
        settings = self.paper_settings().paper_trading
        return PaperSession.start(policy, feed, journal, settings, bundle=policy.bundle.hash)


def _with_execution(folder: Path, bundle: Path, settings: Settings) -> Path:
    """A bundle of the same graphs under other execution rules."""
    copy = Path(shutil.copytree(bundle, folder / "bundle"))
    manifest = json.loads((copy / "policy.json").read_text())
    execution = settings.execution
    manifest["execution_delay_bars"] = execution.execution_delay_bars
    manifest["horizon_boundary"] = execution.horizon_boundary
    write_json(copy / "policy.json", manifest)
    seal_bundle(copy, [path.name for path in copy.iterdir() if path.name != "checksums.json"])
    return copy


class Silent:
    def show(self, trader: object, record: object) -> None:
        pass


Make = Callable[..., TradingPolicy]


@pytest.fixture(scope="module")
def recorded(small_bundle: Path, small_policy: Make, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return Recorded(tmp_path_factory.mktemp("recorded"), small_bundle, small_policy)


@pytest.fixture(scope="module")
def settled(small_bundle: Path, small_policy: Make, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    changes = {"execution.horizon_boundary": "settle", "execution.execution_delay_bars": 1}
    return Recorded(tmp_path_factory.mktemp("settled"), small_bundle, small_policy, **changes)


@pytest.mark.parametrize("name", ["recorded", "settled"])
def test_the_net_value_is_the_ledgers(name: str, request: pytest.FixtureRequest, tmp_path: Path):
    recorded: Recorded = request.getfixturevalue(name)
    with Journal(tmp_path / "journal") as journal:
        assert recorded.session(journal).run(Silent()) is None
        records = [record for record in journal.records() if record["kind"] == "bar"]
    first = int(np.searchsorted(recorded.accounts.priced.timestamps, recorded.test.timestamps[0]))
    ledger = recorded.ledger
    # The ledger trades nothing on its last bar, which a trader cannot know to be the last.
    last = -1 - recorded.settings.execution.execution_delay_bars
    net_value = np.array([record["net_value"] for record in records])
    np.testing.assert_allclose(net_value[:last], ledger.net_value[first:last], rtol=1e-9)
    whole = replay_priced(
        recorded.accounts.every_bar(recorded.actions),
        recorded.accounts.priced,
        settings=recorded.settings.execution,
        initial_capital=ledger.initial_capital,
        horizon_starts=recorded.accounts.horizon_starts,
    )
    for name in ("net_value", "cash", "position", "fee", "slippage"):
        found = np.array([record[name] for record in records])
        np.testing.assert_allclose(found, getattr(whole, name)[first:], rtol=1e-9, atol=1e-9, err_msg=name)
    assert len({record["position"] for record in records}) == 3
    assert any(record["decision"] and record["decision"]["overridden"] for record in records)
    assert sum(note.endswith("bars missing before") for record in records for note in record["notes"]) == 1


def test_a_trader_restarted_in_the_middle_of_a_horizon_goes_on_as_if_never_stopped(recorded: Recorded, tmp_path: Path):
    with Journal(tmp_path / "whole") as journal:
        recorded.session(journal).run(Silent())
    rows = pl.read_parquet(recorded.feed)
    for stop in (rows.height - 150, rows.height - 29, rows.height):
        rows.head(stop).write_parquet(tmp_path / "feed.parquet")
        with Journal(tmp_path / "cut") as journal:
            recorded.session(journal, FileFeed(tmp_path / "feed.parquet", follow=False)).run(Silent())
    cut, whole = ((tmp_path / name / "state.json").read_text() for name in ("cut", "whole"))
    assert json.loads(cut) == json.loads(whole)
    assert (tmp_path / "cut" / "journal.jsonl").read_bytes() == (tmp_path / "whole" / "journal.jsonl").read_bytes()


def test_another_bundles_journal_is_refused(recorded: Recorded, tmp_path: Path):
    with Journal(tmp_path) as journal:
        journal.commit({"kind": "bar", "cursor": "a:0"}, {"identity": {"bundle": "another", "settings": ""}})
        with pytest.raises(ArtifactError, match="is the journal of bundle another, not of"):
            recorded.session(journal)


def paper(recorded: Recorded, journal: Path, *options: str) -> Any:
    command = ["paper", "--bundle", str(recorded.bundle), "--feed", str(recorded.feed), "--journal", str(journal)]
    return CliRunner().invoke(app, [*command, "--start", recorded.start, *options])


def test_the_command_trades_goes_on_and_tells_a_stop_by_its_exit_code(recorded: Recorded, tmp_path: Path):
    off = ["--set", "paper_trading.limits.stale_bars=null", "--set", "paper_trading.limits.max_drawdown=null"]
    whole = paper(recorded, tmp_path / "whole", *off)
    assert whole.exit_code == 0, whole.output
    assert "net value" in whole.output
    records = (tmp_path / "whole" / "journal.jsonl").read_text().splitlines()
    again = paper(recorded, tmp_path / "whole", *off)
    assert again.exit_code == 0
    assert f"ETH: going on after record {len(records)} of" in again.output
    assert (tmp_path / "whole" / "journal.jsonl").read_text().splitlines() == records
    stopped = paper(recorded, tmp_path / "stopped")
    assert stopped.exit_code == STOPPED
    assert "stopped: no usable bar for 6 bar lengths after 2023-01-05T07:50:00+00:00" in stopped.output
    assert paper(recorded, tmp_path / "stopped").exit_code == STOPPED
    assert paper(recorded, tmp_path / "stopped", "--go-on").exit_code == 0


@pytest.mark.slow
def test_the_command_trades_a_recorded_websocket_and_goes_on_where_it_was_cut(
    recorded: Recorded, tmp_path: Path, shared_data: Path
):
    bundle = Path(shutil.copytree(recorded.bundle, tmp_path / "bundle"))
    manifest = json.loads((bundle / "policy.json").read_text())
    write_json(bundle / "policy.json", {**manifest, "pair": "BTC", "bar_minutes": 1})
    seal_bundle(bundle, [path.name for path in bundle.iterdir() if path.name != "checksums.json"])
    lines = gzip.decompress((shared_data / CAPTURE).read_bytes()).splitlines(keepends=True)
    begun = int(lines[0].split()[0])
    second_bar = next(place for place, line in enumerate(lines) if int(line.split()[0]) > begun + 270 * 10**9)

    def traded(journal: str, part: list[bytes]) -> Any:
        capture = tmp_path / "capture.gz"
        capture.write_bytes(gzip.compress(b"".join(part), compresslevel=1))
        options = ["--feed", str(capture), "--source", "binance-capture", "--journal", str(tmp_path / journal)]
        return CliRunner().invoke(app, ["paper", "--bundle", str(bundle), *options])

    counts = []
    for journal, part in (("cut", lines[:second_bar]), ("cut", lines), ("whole", lines)):
        done = traded(journal, part)
        assert done.exit_code == 0, done.output
        counts.append((tmp_path / journal / "journal.jsonl").read_bytes().count(b"\n"))
    assert counts == [2, 3, 3]
    cut, whole = ((tmp_path / name / "journal.jsonl").read_bytes() for name in ("cut", "whole"))
    assert cut == whole
    refused = traded("whole", lines[:second_bar])
    assert isinstance(refused.exception, MarketDataError)
    assert "after which the journal goes on; another feed needs a journal of its own" in str(refused.exception)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--provider", "NoneSuch"), "NoneSuch"),
        (("--source", "candles", "--follow"), "only files of bars can be followed, got --source candles"),
        (("--set", "paper_trading.limits.max_drawdown=2"), "paper_trading.limits.max_drawdown"),
    ],
)
def test_the_command_refuses_in_one_line(recorded: Recorded, tmp_path: Path, options: tuple[str, ...], message: str):
    refused = paper(recorded, tmp_path, *options)
    assert isinstance(refused.exception, ArchetypeError)
    assert message in str(refused.exception)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_followed_folder_is_traded_as_files_appear_until_interrupted(
    recorded: Recorded, tmp_path: Path, ending: signal.Signals
):
    rows, folder, journal = pl.read_parquet(recorded.feed), tmp_path / "feed", tmp_path / "journal"
    folder.mkdir()
    cuts = [0, rows.height - 60, rows.height - 30, rows.height]
    options = ["--feed", str(folder), "--journal", str(journal), "--start", recorded.start]
    chosen = {"poll_seconds": 0.05, "limits.stale_bars": "null", "limits.max_drawdown": "null"}
    options += [part for name, value in chosen.items() for part in ("--set", f"paper_trading.{name}={value}")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    code = "import sys; from archetype_dagster.cli import main; sys.argv[0] = 'archetype'; main()"
    command = [sys.executable, "-c", code, "paper", "--bundle", str(recorded.bundle), "--follow", *options]
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A suite in a shell's background has this signal ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:
        for number, (begin, end) in enumerate(itertools.pairwise(cuts)):
            rows[begin:end].write_parquet(folder / f".{number}.tmp")
            (folder / f".{number}.tmp").rename(folder / f"{number}.parquet")
            last = rows["timestamp"][end - 1].isoformat()
            while not (journal / "state.json").exists() or last not in (journal / "state.json").read_text():
                assert process.poll() is None, process.communicate()[0]
                time.sleep(0.02)
        process.send_signal(ending)
        output = process.communicate()[0]
    assert process.returncode == 130, output
    assert "interrupted; the same command goes on from the journal" in output
    with Journal(journal) as book:
        ends = [record["bar_end"] for record in book.records()]
    first = int(rows["timestamp"].search_sorted(datetime.fromisoformat(recorded.start)))
    assert ends == [end.isoformat() for end in rows["timestamp"][first:]]
