"""Feeds deliver every bar once, in every process, and never a half-written one."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from archetype_dagster.errors import MarketDataError
from archetype_dagster.market.sources import bars_for, load_bars
from archetype_dagster.paper_trading import CaptureFeed, FileFeed, MarketFeed, MessageBars
from archetype_dagster.paper_trading.admission import look_at
from archetype_dagster.paper_trading.source_feed import SourceFeed
from archetype_dagster.settings import MarketSettings, load_settings

Rows = list[dict[str, Any]]
CAPTURE = "vendor/binance_ws_capture_spot_btcusdt_2024-08-08.gz"
MINUTE = 60_000_000


def drained(feed: MarketFeed) -> list[Any]:
    bars = []
    while batch := feed.poll():
        bars += batch
    return bars


def times(bars: list[Any]) -> list[Any]:
    return [bar.row["timestamp"] for bar in bars]


def resumed(feed: Any, bars: list[Any]) -> Any:
    """The feed, told of bars as a journal tells it."""
    for bar in bars:
        feed.resume(bar.cursor, bar.row["timestamp"])
    return feed


def later(rows: Rows, **by: float) -> Rows:
    return [{**row, "timestamp": row["timestamp"] + timedelta(**by)} for row in rows]


def parquet(rows: Rows) -> bytes:
    buffer = io.BytesIO()
    pl.DataFrame(rows).write_parquet(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_a_folder_is_read_by_name_and_resumed_at_any_bar(tmp_path: Path, make_rows: Callable[..., Rows], suffix: str):
    rows = make_rows(30)
    for name, part in (("a", rows[:12]), ("b", rows[12:13]), ("c", rows[13:])):
        table = pl.DataFrame(part)
        if suffix == ".csv":
            table.write_csv(tmp_path / f"{name}.csv")
        else:
            table.write_parquet(tmp_path / f"{name}.parquet")
    (tmp_path / "README.md").write_text("not bars")
    whole = drained(FileFeed(tmp_path, follow=False))
    assert times(whole) == [row["timestamp"] for row in rows]
    assert [seen.broken for seen in look_at(whole, bar_minutes=10)] == [None] * 30
    assert [bar.row["close"] for bar in whole] == [row["close"] for row in rows]
    for done in (0, 1, 12, 13, 30):
        assert drained(resumed(FileFeed(tmp_path, follow=False), whole[:done])) == whole[done:]


def test_following_takes_files_as_they_appear_and_rows_as_they_are_added(
    tmp_path: Path, make_rows: Callable[..., Rows]
):
    rows = make_rows(12)
    feed = FileFeed(tmp_path, follow=True)
    assert not feed.ended
    assert drained(feed) == []
    (tmp_path / "a.parquet").write_bytes(parquet(rows[:3]))
    # Whether a file is still being written shows at the next poll only.
    assert list(feed.poll()) == []
    assert times(drained(feed)) == [row["timestamp"] for row in rows[:3]]
    lines = pl.DataFrame(rows[3:8]).write_csv().splitlines(keepends=True)
    growing = tmp_path / "b.csv"
    growing.write_text("".join(lines[:3]) + lines[3][:20])
    assert list(feed.poll()) == []
    assert times(drained(feed)) == [row["timestamp"] for row in rows[3:5]]
    growing.write_text("".join(lines))
    assert list(feed.poll()) == []
    assert times(drained(feed)) == [row["timestamp"] for row in rows[5:8]]
    assert list(feed.poll()) == []


def test_following_waits_for_a_file_that_is_half_written(tmp_path: Path, make_rows: Callable[..., Rows]):
    content = parquet(make_rows(4))
    feed = FileFeed(tmp_path, follow=True)
    (tmp_path / "a.parquet").write_bytes(content[: len(content) // 2])
    (tmp_path / ".b.parquet").write_bytes(content)
    (tmp_path / "c.parquet.tmp").write_bytes(content)
    for _ in range(3):
        assert list(feed.poll()) == []
    assert list(feed.unreadable) == ["a.parquet"]
    (tmp_path / "a.parquet").write_bytes(content)
    assert list(feed.poll()) == []
    assert len(feed.poll()) == 4
    assert feed.unreadable == {}


def test_a_file_waits_for_the_one_before_it_to_be_whole(tmp_path: Path, make_rows: Callable[..., Rows]):
    rows = make_rows(9)
    content = parquet(rows[:4])
    feed = FileFeed(tmp_path, follow=True)
    (tmp_path / "a.parquet").write_bytes(content[: len(content) // 2])
    (tmp_path / "b.parquet").write_bytes(parquet(rows[4:]))
    for _ in range(4):
        assert list(feed.poll()) == []
    (tmp_path / "a.parquet").write_bytes(content)
    assert list(feed.poll()) == []
    # Once each has been seen twice they are read one after the other without another look.
    assert times(drained(feed)) == [row["timestamp"] for row in rows]


def test_a_replay_refuses_what_it_cannot_read(tmp_path: Path, make_rows: Callable[..., Rows]):
    with pytest.raises(MarketDataError, match="does not exist"):
        FileFeed(tmp_path / "none", follow=False)
    with pytest.raises(MarketDataError, match=r"must hold \.parquet or \.csv files"):
        FileFeed(tmp_path, follow=False)
    (tmp_path / "a.parquet").write_bytes(parquet(make_rows(4))[:100])
    with pytest.raises(MarketDataError, match="not a readable table of bars"):
        FileFeed(tmp_path, follow=False).poll()
    (tmp_path / "a.parquet").write_bytes(parquet(make_rows(4)))
    feed = FileFeed(tmp_path, follow=False)
    feed.resume("a.parquet:6", make_rows(7)[6]["timestamp"])
    with pytest.raises(MarketDataError, match="has 4 rows, 7 were read of it before"):
        feed.poll()


@pytest.mark.parametrize(
    "cursor", ["2024-01-01", "2024-01-01T00:10:00+00:00", "a.parquet", "a.parquet:-1", "a.csv:07", "a.csv:²", ":3", ""]
)
def test_a_file_feed_refuses_a_cursor_that_is_no_file_and_row(tmp_path: Path, cursor: str):
    with pytest.raises(MarketDataError, match="a cursor of files of bars is NAME:ROW, the journal has"):
        FileFeed(tmp_path, follow=True).resume(cursor, None)


@pytest.mark.parametrize("cursor", ["bars.parquet:19", "2024-01-01T00:10:00", "2024-01-01T00:20:00+00:00", ""])
def test_a_feed_whose_cursors_are_times_refuses_any_other(tmp_path: Path, make_rows: Callable[..., Rows], cursor: str):
    path = tmp_path / "capture.gz"
    path.write_bytes(gzip.compress(b"1723161600001658384 {}\n"))
    span = {"market.synthetic.start": "2024-01-01T00:00:00Z", "market.synthetic.end": "2024-01-01T06:00:00Z"}
    end = make_rows(2)[1]["timestamp"]
    feeds = CaptureFeed(path, MessageBars("BTCUSDT", bar_minutes=1)), SourceFeed(load_settings("smoke", span), "ETH")
    for feed in feeds:
        with pytest.raises(MarketDataError, match="a cursor of this feed is its bar's end in ISO 8601 with its zone"):
            feed.resume(cursor, end)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("single", [False, True])
def test_a_file_that_is_another_feeds_is_refused(
    tmp_path: Path, make_rows: Callable[..., Rows], follow: bool, single: bool
):
    rows = make_rows(20)
    for name, part in (("x", rows), ("y", later(rows, hours=9)), ("z", rows)):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("other.parquet" if name == "z" else "bars.parquet")).write_bytes(parquet(part))
    delivered = drained(FileFeed(tmp_path / "x", follow=False))

    def opened(name: str) -> FileFeed:
        (file,) = (tmp_path / name).iterdir()
        feed = resumed(FileFeed(file if single else file.parent, follow=follow), delivered)
        if follow:
            assert list(feed.poll()) == [] or name == "z"
        return feed

    assert drained(opened("x")) == []
    before = r"the bar read here before ended at 2024-01-01T03:10:00\+00:00"
    feed = opened("y")
    with pytest.raises(MarketDataError, match=rf"y/bars\.parquet, row 19: {before}, the one here now ends at .*T12:10"):
        feed.poll()
    with pytest.raises(MarketDataError, match=r"no file bars\.parquet is there, after whose bars the journal goes on"):
        opened("z").poll()


def test_a_folder_goes_on_where_files_grew_were_added_or_were_cleared_away(
    tmp_path: Path, make_rows: Callable[..., Rows]
):
    rows = make_rows(12)
    rows[4]["timestamp"] = None
    for name, part in (("a", rows[:2]), ("b", rows[2:5])):
        (tmp_path / f"{name}.parquet").write_bytes(parquet(part))
    delivered = drained(FileFeed(tmp_path, follow=False))
    (tmp_path / "a.parquet").unlink()
    (tmp_path / "b.parquet").write_bytes(parquet(rows[2:8]))
    (tmp_path / "c.parquet").write_bytes(parquet(rows[8:]))
    feed = resumed(FileFeed(tmp_path, follow=True), delivered)
    assert list(feed.poll()) == []
    assert times(drained(feed)) == [row["timestamp"] for row in rows[5:]]


def test_a_file_that_is_replaced_while_it_is_followed_must_have_the_bars_delivered(
    tmp_path: Path, make_rows: Callable[..., Rows]
):
    rows, path = make_rows(12), tmp_path / "a.parquet"
    path.write_bytes(parquet(rows[:5]))
    feed = FileFeed(path, follow=True)
    assert list(feed.poll()) == []
    assert len(drained(feed)) == 5
    # A window of the newest bars, as some writers keep it.
    path.write_bytes(parquet(rows[2:9]))
    assert list(feed.poll()) == []
    with pytest.raises(MarketDataError, match="row 4: the bar read here before ended at"):
        feed.poll()


@pytest.mark.parametrize("restarted", [False, True])
def test_following_waits_for_a_file_that_is_written_anew_in_its_place(
    tmp_path: Path, make_rows: Callable[..., Rows], restarted: bool
):
    rows, path = make_rows(14), tmp_path / "a.csv"
    lines = pl.DataFrame(rows).write_csv().splitlines(keepends=True)
    path.write_text("".join(lines[:11]))
    feed = FileFeed(tmp_path, follow=True)
    assert list(feed.poll()) == []
    delivered = drained(feed)
    assert len(delivered) == 10
    if restarted:
        feed = resumed(FileFeed(tmp_path, follow=True), delivered)
    (tmp_path / "b.csv").write_text("".join(lines[:1] + lines[13:]))
    path.write_text("".join(lines[:5]))
    for _ in range(3):
        assert list(feed.poll()) == []
    assert feed.unreadable == {"a.csv": "has 4 rows, 10 were read of it before"}
    path.write_text("".join(lines[:13]))
    assert list(feed.poll()) == []
    assert times(drained(feed)) == [row["timestamp"] for row in rows[10:]]
    assert feed.unreadable == {}


def test_two_looks_at_a_file_have_a_wait_between_them_after_bars_too(tmp_path: Path, make_rows: Callable[..., Rows]):
    rows = make_rows(6)
    (tmp_path / "a.parquet").write_bytes(parquet(rows[:3]))
    feed = FileFeed(tmp_path, follow=True)
    assert list(feed.poll()) == []
    (tmp_path / "b.parquet").write_bytes(parquet(rows[3:]))
    assert len(feed.poll()) == 3
    # A poll that gives none is what a session waits after.
    assert list(feed.poll()) == []
    assert times(drained(feed)) == [row["timestamp"] for row in rows[3:]]


def test_a_bad_cell_of_a_csv_is_one_bars_fault(tmp_path: Path, make_rows: Callable[..., Rows]):
    path = tmp_path / "bars.csv"
    text = pl.DataFrame(make_rows(5)).write_csv().splitlines()
    text[2] = text[2].replace("2024-01-01", "2024-99-01", 1)
    cells = text[3].split(",")
    text[3] = ",".join([cells[0], "n/a", *cells[2:]])
    path.write_text("\n".join(text))
    seen = look_at(drained(FileFeed(path, follow=False)), bar_minutes=10)
    assert [bar.broken is None for bar in seen] == [True, False, False, True, True]
    assert "must be a datetime with its time zone" in str(seen[1].broken)
    assert "price must be finite and positive, got open=None" in str(seen[2].broken)


def test_any_recorded_source_is_a_feed():
    changes = {"market.synthetic.start": "2023-01-01T00:00:00Z", "market.synthetic.end": "2023-01-02T00:00:00Z"}
    settings = load_settings("smoke", changes)
    whole = drained(SourceFeed(settings, "ETH"))
    assert times(whole) == bars_for(settings, "ETH")["timestamp"].to_list()
    assert drained(resumed(SourceFeed(settings, "ETH"), whole[:100])) == whole[100:]
    feed = SourceFeed(settings, "ETH")
    strange = later([whole[99].row], days=40)[0]["timestamp"]
    feed.resume(strange.isoformat(), strange)
    with pytest.raises(MarketDataError, match=r"no bar ends at 2023-02-10T.*, after which the journal goes on"):
        feed.poll()


def test_messages_of_a_real_capture_give_the_bars_of_the_ingestion(shared_data: Path):
    feed = CaptureFeed(shared_data / CAPTURE, MessageBars("BTCUSDT", bar_minutes=1))
    bars = drained(feed)
    assert feed.messages > 50_000
    settings = MarketSettings(source="binance-capture", path=shared_data / CAPTURE, bar_minutes=1)
    expected = load_bars(settings, "BTC").drop("segment")
    assert len(bars) == expected.height >= 3
    for bar, row in zip(bars, expected.iter_rows(named=True), strict=True):
        assert bar.row.keys() == row.keys()
        volumes = {name: pytest.approx(row[name], rel=1e-12) for name in ("volume", "taker_buy_volume")}
        assert dict(bar.row) == {**row, **volumes}


def test_a_capture_goes_on_after_any_of_its_bars_and_after_no_other(shared_data: Path):
    def feed() -> CaptureFeed:
        return CaptureFeed(shared_data / CAPTURE, MessageBars("BTCUSDT", bar_minutes=1))

    whole = drained(feed())
    assert drained(resumed(feed(), whole[:1])) == whole[1:]
    other = feed()
    strange = later([whole[0].row], seconds=1)[0]["timestamp"]
    other.resume(strange.isoformat(), strange)
    with pytest.raises(MarketDataError, match="00:00, after which the journal goes on; another feed needs a journal"):
        other.poll()


def depth(first: int, last: int, bids: list[list[str]], asks: list[list[str]]) -> dict[str, Any]:
    return {"e": "depthUpdate", "s": "BTCUSDT", "U": first, "u": last, "b": bids, "a": asks}


def trade(number: int, price: str, size: str, *, maker_buys: bool = False) -> dict[str, Any]:
    return {"e": "trade", "s": "BTCUSDT", "t": number, "p": price, "q": size, "m": maker_buys}


def test_a_bar_holds_what_was_received_by_its_end_and_nothing_later():
    bars = MessageBars("BTCUSDT", bar_minutes=1, levels=5, warm_up_seconds=0)
    levels = [[f"{100 - place}", "1"] for place in range(6)], [[f"{101 + place}", "2"] for place in range(6)]
    assert bars.push(0, depth(1, 2, *levels)) == []
    assert bars.push(MINUTE - 1, trade(1, "100.5", "3")) == []
    # Known at the bar's very end: of this bar a book, of the next one a trade.
    assert bars.push(MINUTE, depth(3, 3, [["100", "9"]], [["101", "0"]])) == []
    assert bars.push(MINUTE, trade(2, "90", "4", maker_buys=True)) == []
    (bar,) = bars.push(MINUTE + 1, depth(4, 4, [["100", "0"]], []))
    assert (bar["close"], bar["volume"], bar["bid1_size"], bar["ask1_price"]) == (100.5, 3.0, 9.0, 102.0)
    assert [bar[f"ask{level}_price"] for level in range(1, 6)] == [102.0, 103.0, 104.0, 105.0, 106.0]
    (bar,) = bars.push(2 * MINUTE + 1, trade(3, "91", "1"))
    assert (bar["open"], bar["close"], bar["volume"], bar["bid1_price"]) == (90.0, 90.0, 4.0, 99.0)
    # A break in the numbers makes the book unknown; it is learned anew.
    assert bars.push(3 * MINUTE, depth(9, 9, [["50", "1"]], [["51", "1"]])) == []
    (bar,) = bars.push(3 * MINUTE + 1, trade(4, "50", "1"))
    assert (bar["bid1_price"], bar["bid2_price"]) == (50.0, None)
    with pytest.raises(MarketDataError, match="not a depthUpdate message"):
        bars.push(3 * MINUTE + 2, {"e": "depthUpdate", "s": "BTCUSDT"})


def test_a_capture_names_the_line_that_is_none(tmp_path: Path):
    path = tmp_path / "capture.gz"
    path.write_bytes(gzip.compress(b'1723161600001658384 {"e":"x"}\nno line\n'))
    with pytest.raises(MarketDataError, match=r"row 1: a line must be nanoseconds, a space and a JSON object"):
        CaptureFeed(path, MessageBars("BTCUSDT", bar_minutes=1)).poll()
