"""A session goes on where its journal ends, stops by the clock while following, and shows what it does."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from archetype_dagster.errors import ArtifactError, MarketDataError
from archetype_dagster.paper_trading import Clock, FeedBar, FileFeed, Journal, PaperSession
from archetype_dagster.paper_trading.display import LineDisplay, LiveDisplay, account_table
from archetype_dagster.settings.paper_trading import PaperTradingSettings

Rows = list[dict[str, Any]]
NO_LIMITS = PaperTradingSettings(limits={"stale_bars": None, "max_drawdown": None})


class Killed(Exception):
    """What a process ends with here."""

    @classmethod
    def throw(cls) -> None:
        raise cls


class Wall:
    """A clock that waiting moves by a minute, and what happens while it does, by the number of waits."""

    def __init__(self, events: dict[int, Callable[[], None]] | None = None, *, begin: datetime | None = None) -> None:
        self.seconds, self.waits, self._events = 0.0, 0, events or {}
        self._begin = begin or datetime(2024, 3, 1, tzinfo=UTC)
        self.clock = Clock(self.now, self.wait, self.utc)

    def now(self) -> float:
        return self.seconds

    def utc(self) -> datetime:
        return self._begin + timedelta(seconds=self.seconds)

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
        stop = start(journal, folder, settings, follow=True).run(seen, wall.clock)
    assert stop is not None
    assert stop.limit == "stale_data"
    assert [record["kind"] for record in seen.records] == ["bar"] * 20 + ["stop"]
    # Files are read one poll after they are first seen, and four bars of ten minutes of silence are 40 waits.
    assert wall.waits == 31 + 41
    with Journal(tmp_path / "journal") as journal:
        session = start(journal, folder, settings, follow=True)
        assert session.run(seen, wall.clock) == stop
        assert journal.state is not None
        assert journal.state["seq"] == 21


class Repeating:
    """A feed that gives the same bar again at every look, as polling an exchange for its newest bar would."""

    ended = False

    def __init__(self, row: dict[str, Any]) -> None:
        self._row, self._polls = row, 0

    def resume(self, cursor: str, end: datetime | None) -> None:
        pass

    def poll(self) -> list[FeedBar]:
        self._polls += 1
        return [FeedBar(self._row, str(self._polls))]


@pytest.mark.parametrize(
    ("change", "after", "kinds"),
    [({}, 0, ["bar", "fault", "stop"]), ({"high": 1.0}, 0, ["fault", "stop"]), ({}, 10, ["stop"])],
)
def test_a_feed_that_only_repeats_itself_is_waited_for_noted_once_and_silent(
    tmp_path: Path,
    make_rows: Callable[..., Rows],
    standin: ModuleType,
    change: dict[str, Any],
    after: int,
    kinds: list[str],
):
    row = {**make_rows(1)[0], **change}
    start = row["timestamp"] + timedelta(minutes=after)
    wall, feed = Wall(), Repeating(row)
    settings = PaperTradingSettings(limits={"stale_bars": 4, "max_drawdown": None}, start=start)
    with Journal(tmp_path) as journal:
        session = PaperSession.start(standin.StandInPolicy(), feed, journal, settings, bundle="stand-in")
        stop = session.run(Seen(), wall.clock)
        records = list(journal.records())
    assert stop is not None
    assert stop.limit == "stale_data"
    assert [record["kind"] for record in records] == kinds
    # One poll takes the bar; each of the others is waited after, for four bars of ten minutes.
    assert 40 <= wall.waits <= 41


class Newest:
    """A feed that gives the newest bars at every look, as a connector that asks an exchange for them would."""

    ended = False

    def __init__(self, rows: Rows, wall: Wall) -> None:
        self._rows, self._wall, self.polls = rows, wall, 0

    def resume(self, cursor: str, end: datetime | None) -> None:
        pass

    def poll(self) -> Sequence[FeedBar]:
        self.polls += 1
        known = [row for row in self._rows if row["timestamp"] <= self._wall.utc()]
        return [FeedBar(row, row["timestamp"].isoformat()) for row in known[-3:]]


def test_bars_that_come_again_are_noted_once_in_every_process_and_together(
    tmp_path: Path, make_rows: Callable[..., Rows], standin: ModuleType
):
    rows = make_rows(5)

    def follow(folder: str, until: list[int]) -> list[dict[str, Any]]:
        minutes = 0
        for end in until:
            wall = Wall({end - minutes: Killed.throw}, begin=rows[0]["timestamp"] + timedelta(minutes=minutes))
            with Journal(tmp_path / folder) as journal:
                feed = Newest(rows, wall)
                session = PaperSession.start(standin.StandInPolicy(), feed, journal, NO_LIMITS, bundle="stand-in")
                with pytest.raises(Killed):
                    session.run(Seen(), wall.clock)
                assert feed.polls <= 2 * wall.waits
                records = list(journal.records())
            minutes = end
        return records

    whole = follow("whole", [45])
    assert [record["bar_end"] for record in whole if record["kind"] == "bar"] == [
        row["timestamp"].isoformat() for row in rows
    ]
    noted = [record["bar_end"] for record in whole if record["kind"] == "fault"]
    assert len(noted) == len(set(noted)) == 5
    follow("cut", [3, 20, 21, 45])
    for name in ("journal.jsonl", "state.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_history_that_is_passed_over_is_not_waited_for(
    tmp_path: Path, make_rows: Callable[..., Rows], start: Callable[..., PaperSession]
):
    rows, folder = make_rows(620), tmp_path / "bars"
    folder.mkdir()
    for name, part in (("a", rows[:600]), ("b", rows[600:])):
        pl.DataFrame(part).write_parquet(folder / f"{name}.parquet")
    settings = PaperTradingSettings(limits={"stale_bars": None, "max_drawdown": None}, start=rows[600]["timestamp"])
    for expected in (20, 0):
        wall = Wall({3: Killed.throw})
        with Journal(tmp_path / "journal") as journal:
            session, seen = start(journal, folder, settings, follow=True), Seen()
            with pytest.raises(Killed):
                session.run(seen, wall.clock)
        assert len(seen.records) == expected


def test_silence_goes_on_over_restarts(
    tmp_path: Path, make_rows: Callable[..., Rows], start: Callable[..., PaperSession]
):
    rows, path = make_rows(5), tmp_path / "bars.parquet"
    pl.DataFrame(rows).write_parquet(path)
    settings = PaperTradingSettings(limits={"stale_bars": 6, "max_drawdown": None})
    last, stop, minutes = rows[-1]["timestamp"], None, []
    begin = last
    while stop is None:
        wall = Wall({59: Killed.throw}, begin=begin)
        with Journal(tmp_path / "journal") as journal, contextlib.suppress(Killed):
            stop = start(journal, path, settings, follow=True).run(Seen(), wall.clock)
        minutes.append(wall.waits)
        begin = wall.utc()
    assert stop.message == f"no usable bar for 6 bar lengths after {last.isoformat()}"
    # A bar length is left to the second process, in which a feed that works gives its next bar.
    assert minutes == [59, 11]


def test_a_machine_that_was_off_for_hours_goes_on_with_bars_that_were_recorded_meanwhile_and_with_no_others(
    tmp_path: Path, make_rows: Callable[..., Rows], start: Callable[..., PaperSession]
):
    rows = make_rows(60)
    settings = PaperTradingSettings(limits={"stale_bars": 6, "max_drawdown": None})
    for name, meanwhile, limit in (("recorded", rows[:50], None), ("lost", rows[:5] + rows[40:50], "stale_data")):
        path = tmp_path / f"{name}.parquet"
        for part, begin in ((rows[:5], rows[4]), (meanwhile, rows[49])):
            pl.DataFrame(part).write_parquet(path)
            wall = Wall({5: Killed.throw}, begin=begin["timestamp"])
            with Journal(tmp_path / name) as journal:
                session, stop = start(journal, path, settings, follow=True), None
                with contextlib.suppress(Killed):
                    stop = session.run(Seen(), wall.clock)
                last = session.trader.last_end
        assert (None if stop is None else stop.limit) == limit
        assert last == (rows[49] if limit is None else rows[4])["timestamp"]


def test_a_trader_told_to_go_on_after_silence_begins_to_count_it_anew(
    tmp_path: Path, make_rows: Callable[..., Rows], start: Callable[..., PaperSession]
):
    path = tmp_path / "bars.parquet"
    pl.DataFrame(make_rows(5)).write_parquet(path)
    settings = PaperTradingSettings(limits={"stale_bars": 6, "max_drawdown": None})
    for go_on, waits in ((False, 61 + 1), (True, 61)):
        wall = Wall()
        with Journal(tmp_path / "journal") as journal:
            stop = start(journal, path, settings, follow=True, go_on=go_on).run(Seen(), wall.clock)
        assert stop is not None
        assert wall.waits == waits


@pytest.mark.parametrize("follow", [False, True])
def test_a_bar_of_the_future_is_noted_and_the_real_ones_after_it_are_traded(
    tmp_path: Path, make_rows: Callable[..., Rows], start: Callable[..., PaperSession], follow: bool
):
    rows = make_rows(40)
    now = rows[-1]["timestamp"]
    wrong = [{**rows[place], "timestamp": now + timedelta(days=days)} for place, days in ((0, 3650), (20, 1))]
    # The next bar's end is no fault: clocks differ by a little.
    early = {**rows[39], "timestamp": now + timedelta(minutes=10)}
    path = tmp_path / "bars.parquet"
    pl.DataFrame([wrong[0], *rows[:20], wrong[1], *rows[20:], early]).write_parquet(path)
    settings = PaperTradingSettings(limits={"stale_bars": 6, "max_drawdown": None})
    wall = Wall({2: Killed.throw}, begin=now)
    with Journal(tmp_path / "journal") as journal:
        session = start(journal, path, settings, follow=follow)
        try:
            # A wait of a minute has passed before a followed file is read.
            assert session.run(Seen(), Clock(wall.now, wall.wait, lambda: now)) is None
        except Killed:
            assert follow
        records = list(journal.records())
    assert [record["kind"] for record in records] == ["fault", *["bar"] * 20, "fault", *["bar"] * 21]
    assert session.trader.counts == {"future_bar": 2}
    assert records[0]["notes"] == ["future_bar: ends more than a bar length ahead of the clock"]
    assert records[-1]["notes"] == []


def test_going_on_after_a_stop_for_a_bar_of_the_future_leaves_that_bar_out(
    tmp_path: Path, make_rows: Callable[..., Rows], start: Callable[..., PaperSession]
):
    rows = make_rows(20)
    now = rows[-1]["timestamp"]
    wrong = {**rows[10], "timestamp": now + timedelta(days=1)}
    path = tmp_path / "bars.parquet"
    pl.DataFrame([*rows[:10], wrong, *rows[10:]]).write_parquet(path)
    limits = {"stale_bars": 6, "max_drawdown": None}
    settings = PaperTradingSettings(limits=limits, faults={"future_bar": "stop"})
    clock = Wall(begin=now).clock
    with Journal(tmp_path / "journal") as journal:
        stop = start(journal, path, settings).run(Seen(), clock)
        assert stop is not None
        assert stop.limit == "future_bar"
    with Journal(tmp_path / "journal") as journal:
        seen = Seen()
        assert start(journal, path, settings, go_on=True).run(seen, clock) is None
    assert [record["bar_end"] for record in seen.records] == [row["timestamp"].isoformat() for row in rows[10:]]


@pytest.mark.parametrize("follow", [False, True])
def test_a_journal_is_not_continued_with_another_feed(
    tmp_path: Path, make_rows: Callable[..., Rows], start: Callable[..., PaperSession], follow: bool
):
    rows = make_rows(40)
    for name, part in (("x", rows[:20]), ("y", rows[20:])):
        (tmp_path / name).mkdir()
        pl.DataFrame(part).write_parquet(tmp_path / name / "bars.parquet")
    with Journal(tmp_path / "journal") as journal:
        start(journal, tmp_path / "x").run(Seen())
    with Journal(tmp_path / "journal") as journal:
        session = start(journal, tmp_path / "y" / "bars.parquet", follow=follow)
        with pytest.raises(MarketDataError, match=r"row 19: the bar read here before ended at 2024-01-01T03:10:00"):
            session.run(Seen(), Wall().clock)
        assert len(list(journal.records())) == 20


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
