"""A session goes on where its journal ends, stops by the clock while following, and shows what it does."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from archetype_dagster.errors import ArtifactError
from archetype_dagster.paper_trading import Clock, FeedBar, FileFeed, Journal, PaperSession
from archetype_dagster.paper_trading.display import LineDisplay, LiveDisplay, account_table
from archetype_dagster.settings.paper_trading import PaperTradingSettings

Rows = list[dict[str, Any]]
NO_LIMITS = PaperTradingSettings(limits={"stale_bars": None, "max_drawdown": None})


class Wall:
    """A clock that waiting moves, and what happens while it does."""

    def __init__(self, events: dict[int, Callable[[], None]] | None = None) -> None:
        self.seconds, self.waits, self._events = 0.0, 0, events or {}

    def now(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.waits += 1
        self.seconds += 60.0
        self._events.get(self.waits, lambda: None)()


class Seen:
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def show(self, trader: object, record: dict[str, Any]) -> None:
        self.records.append(record)


@pytest.fixture
def start(standin: ModuleType) -> Callable[..., PaperSession]:
    def begin(journal: Journal, path: Path, settings: PaperTradingSettings = NO_LIMITS, **options: Any) -> PaperSession:
        feed = FileFeed(path, follow=options.pop("follow", False))
        return PaperSession.start(standin.StandInPolicy(), feed, journal, settings, **{"bundle": "stand-in", **options})

    return begin


def test_silence_is_measured_by_the_clock_while_following(
    tmp_path: Path, make_rows: Callable[..., Rows], start: Callable[..., PaperSession]
):
    rows, folder = make_rows(20), tmp_path / "bars"
    folder.mkdir()
    wall = Wall(
        {
            3: lambda: pl.DataFrame(rows[:12]).write_parquet(folder / "a.parquet"),
            30: lambda: pl.DataFrame(rows[12:]).write_parquet(folder / "b.parquet"),
        }
    )
    settings = PaperTradingSettings(limits={"stale_bars": 4, "max_drawdown": None})
    with Journal(tmp_path / "journal") as journal:
        seen = Seen()
        stop = start(journal, folder, settings, follow=True).run(seen, Clock(wall.now, wall.wait))
    assert stop is not None
    assert stop.limit == "stale_data"
    assert [record["kind"] for record in seen.records] == ["bar"] * 20 + ["stop"]
    # Files are read one poll after they are first seen, and four bars of ten minutes of silence are 40 waits.
    assert wall.waits == 31 + 41
    with Journal(tmp_path / "journal") as journal:
        session = start(journal, folder, settings, follow=True)
        assert session.run(seen, Clock(wall.now, wall.wait)) == stop
        assert journal.state is not None
        assert journal.state["seq"] == 21


class Repeating:
    """A feed that gives the same bar again at every look, as polling an exchange for its newest bar would."""

    ended = False

    def __init__(self, row: dict[str, Any]) -> None:
        self._row, self._polls = row, 0

    def resume(self, cursor: str) -> None:
        pass

    def poll(self) -> list[FeedBar]:
        self._polls += 1
        return [FeedBar(self._row, str(self._polls))]


def test_a_feed_that_only_repeats_itself_is_silent(tmp_path: Path, make_rows: Callable[..., Rows], standin: ModuleType):
    times = itertools.count(step=600.0)
    clock = Clock(lambda: next(times), lambda seconds: None)
    settings = PaperTradingSettings(limits={"stale_bars": 4, "max_drawdown": None})
    with Journal(tmp_path) as journal:
        feed = Repeating(make_rows(1)[0])
        session = PaperSession.start(standin.StandInPolicy(), feed, journal, settings, bundle="stand-in")
        stop = session.run(Seen(), clock)
        kinds = [record["kind"] for record in journal.records()]
    assert stop is not None
    assert stop.limit == "stale_data"
    assert kinds == ["bar", *["fault"] * (len(kinds) - 2), "stop"]
    assert len(kinds) < 10


def test_after_a_stop_trading_goes_on_only_when_told_to(
    tmp_path: Path, make_rows: Callable[..., Rows], start: Callable[..., PaperSession]
):
    rows = make_rows(60)
    pl.DataFrame([*rows[:30], *rows[35:]]).write_parquet(tmp_path / "bars.parquet")
    settings = PaperTradingSettings(limits={"stale_bars": 5, "max_drawdown": None})
    for go_on, kinds in ((False, []), (True, ["bar"] * 25)):
        with Journal(tmp_path / "journal") as journal:
            seen = Seen()
            stop = start(journal, tmp_path / "bars.parquet", settings, go_on=go_on).run(seen)
            expected = ["bar"] * 30 + ["stop"] if not go_on else kinds
            assert [record["kind"] for record in seen.records] == expected
            assert (stop is None) == go_on
    with Journal(tmp_path / "journal") as journal:
        records = list(journal.records())
    assert [record["kind"] for record in records[29:33]] == ["bar", "stop", "resumed", "bar"]
    assert records[32]["notes"] == ["5 bars missing before"]


def test_other_settings_need_to_be_told_to_go_on(
    tmp_path: Path, make_rows: Callable[..., Rows], start: Callable[..., PaperSession]
):
    path = tmp_path / "bars.parquet"
    pl.DataFrame(make_rows(10)).write_parquet(path)
    with Journal(tmp_path / "journal") as journal:
        start(journal, path).run(Seen())
    other = PaperTradingSettings(limits={"stale_bars": 7})
    with Journal(tmp_path / "journal") as journal:
        with pytest.raises(ArtifactError, match="begun with other paper_trading settings"):
            start(journal, path, other)
        start(journal, path, other, go_on=True).run(Seen())
    with Journal(tmp_path / "journal") as journal:
        assert start(journal, path, other).run(Seen()) is None


def test_without_a_terminal_trades_and_faults_are_lines(
    tmp_path: Path,
    make_rows: Callable[..., Rows],
    with_faults: Callable[[Rows], Rows],
    start: Callable[..., PaperSession],
):
    path = tmp_path / "bars.parquet"
    pl.DataFrame(with_faults(make_rows(60))).write_parquet(path)
    text = io.StringIO()
    console = Console(file=text, width=200)
    with Journal(tmp_path / "journal") as journal, LineDisplay(console, every_bar=False) as display:
        session = start(journal, path)
        session.run(display)
        records = list(journal.records())
    shown = [
        record
        for record in records
        if record["kind"] == "fault" or record["notes"] or record["position"] != record["position_before"]
    ]
    lines = text.getvalue().splitlines()
    assert len(lines) == len(shown) < len(records)
    assert any("late_bar: the last bar used ended at" in line for line in lines)
    assert any("position 2 at " in line for line in lines)


def test_the_live_table_shows_the_account_and_the_faults(
    tmp_path: Path,
    make_rows: Callable[..., Rows],
    with_faults: Callable[[Rows], Rows],
    start: Callable[..., PaperSession],
):
    path = tmp_path / "bars.parquet"
    pl.DataFrame(with_faults(make_rows(60))).write_parquet(path)
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=100)
    with Journal(tmp_path / "journal") as journal:
        session = start(journal, path)
        with LiveDisplay(console, pair="ETH", quote="USDT") as display:
            session.run(display)
        last = list(journal.records())[-1]
        table = account_table(session.trader, pair="ETH", quote="USDT", last=last)
    shown = text.getvalue()
    for words in ("ETH paper trading", "last bar used", "net value", "profit", "late bar", "missing bar"):
        assert words in shown
    cells = dict(zip(table.columns[0].cells, table.columns[1].cells, strict=True))
    assert cells["net value"] == f"{last['net_value']:,.2f} USDT"
    assert cells["missing bar"] == "2"
    assert cells["last decision"].startswith(last["decision"]["action"])
