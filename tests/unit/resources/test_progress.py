from __future__ import annotations

import io
import logging

import dagster as dg
import pytest
from rich.console import Console
from rich.progress import Progress as Bars
from rich.progress import TextColumn

from resources.progress import BarProgress, ConsoleProgressResource, LogProgress, ProgressResource, format_metrics


@pytest.fixture
def log() -> logging.Logger:
    return logging.getLogger("test_progress")


def test_log_lines_are_throttled(log: logging.Logger, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "test_progress")
    often, seldom = (LogProgress(log, title, min_seconds=s) for title, s in (("often", 0.0), ("seldom", 3600.0)))
    for progress in (often, seldom):
        progress.start("epochs", 3)
        for done in (1, 2, 3):
            progress.advance(done, {"loss": 0.123456})
        progress.finish()
    assert caplog.messages == [f"often: epochs {done}/3 loss 0.1235" for done in (1, 2, 3)]


def test_bars_show_the_newest_metrics_and_vanish_when_finished():
    shown = io.StringIO()
    bars = Bars(
        TextColumn("{task.description} {task.completed} {task.fields[metrics]}"),
        console=Console(file=shown, force_terminal=True, width=100),
        auto_refresh=False,
    )
    with bars:
        progress = BarProgress(bars, "ETH vq_codebook")
        progress.start("epochs", 5)
        progress.advance(2, {"loss": 1.5})
        bars.refresh()
        assert bars.tasks[0].completed == 2
        progress.finish()
        assert bars.tasks == []
    assert "ETH vq_codebook: epochs 2 loss 1.5" in shown.getvalue()


def test_without_a_terminal_notes_are_plain_lines(
    log: logging.Logger, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    caplog.set_level(logging.INFO, "test_progress")
    with dg.build_resources({"progress": ConsoleProgressResource()}) as resources:
        resources.progress.open(log, "ETH").start("epochs", 1)
        resources.progress.note(log, "ETH market_bars: computed")
    assert capfd.readouterr().err == "ETH market_bars: computed\n"
    assert "ETH market_bars: computed" in caplog.messages


def test_progress_in_the_log_is_the_default(log: logging.Logger):
    assert isinstance(ProgressResource().open(log, "x"), LogProgress)


def test_metrics_are_short():
    assert format_metrics({"codebook/loss": 123456.789, "kl": 0.5}) == "loss 1.235e+05 kl 0.5"
    assert format_metrics(dict.fromkeys("abcd", 1.0)) == "a 1 b 1"
    assert format_metrics(None) == ""
