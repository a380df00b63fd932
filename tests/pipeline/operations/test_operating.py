"""The graph operated as a person does it: in a browser, by backfills, and with runs cancelled and killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from archetype_dagster.checkpoints import load_tensors
from archetype_dagster.jobs import MONTHS, TRAINING
from archetype_dagster.pipeline.stages import STAGES
from resources.storage import FOLDERS

GROUPS = {stage.group for stage in STAGES.values()}
EPOCHS = 60
WINDOW = (1800, 1100)


def button(label: str) -> str:
    return f"[...document.querySelectorAll('button')].find(e => e.innerText.startsWith('{label}'))"


def text(label: str) -> str:
    return f"[...document.querySelectorAll('*')].filter(e => e.innerText === '{label}').pop()"


shown_name = "document.body.innerText.includes(name)"


def shown(words: str) -> str:
    return f"document.body.innerText.includes('{words}')"


def open_groups(browser) -> None:
    """Press the key that opens all groups; a page that is still being drawn does not listen."""
    for _ in range(4):
        browser.press("e", "KeyE", alt=True)
        with suppress(TimeoutError):
            # Only what lies inside the window is drawn.
            browser.wait_for(f"{sorted(STAGES)}.filter(name => {shown_name}).length > 4", seconds=15)
            return
    pytest.fail("the groups did not open")


@pytest.fixture(scope="module")
def stack(make_stack: Callable) -> Iterator:
    """Everything running, over settings with a training that is long enough to be interrupted."""
    with make_stack("operating", {"codebook.epochs": EPOCHS}).running() as running:
        yield running


@pytest.mark.slow
def test_the_browser_shows_the_graph_and_materialises_a_pair(stack, browser, tmp_path: Path) -> None:
    browser.open(f"{stack.address}/asset-groups", size=WINDOW)
    for group in GROUPS:
        browser.wait_for(shown(group))
    # Once in the list and once in the drawing, which alone listens to the key that opens all groups.
    browser.wait_for("document.body.innerText.split('discovery').length > 2")
    open_groups(browser)
    browser.picture(tmp_path / "graph.png")

    browser.open(f"{stack.address}/assets/market_bars?view=overview", size=WINDOW)
    for words in ("Validated bars of the pair", "research", "Polars"):
        browser.wait_for(shown(words))
    browser.click(button("Materialize"))
    # The months, which a market without records does not have, are a parent.
    browser.click(button("Confirm"))
    browser.click(text("Select a partition or create one"))
    browser.click(text("ETH"))
    browser.wait_for(f"Boolean({button('Launch 1 run')})")
    browser.picture(tmp_path / "launch.png")
    browser.click(button("Launch 1 run"))
    (run,) = stack.wait(
        lambda: stack.instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.SUCCESS])), "the run from the UI"
    )
    assert run.tags["dagster/partition"] == "ETH"

    browser.open(f"{stack.address}/assets/market_bars?view=checks", size=WINDOW)
    for words in ("bars_sane", "Succeeded", "Passed", "0 of 5724 bars have a spread of zero or less"):
        browser.wait_for(shown(words))
    browser.picture(tmp_path / "checks.png")
    browser.open(f"{stack.address}/assets/market_bars?view=overview", size=WINDOW)
    browser.click("[...document.querySelectorAll('*')].filter(e => e.innerText === '[Show Markdown]').pop()")
    browser.wait_for(
        "[...document.images].some(i => i.src.startsWith('data:image/png') && i.complete && i.naturalWidth > 300)"
    )
    browser.picture(tmp_path / "plot.png")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checks.png", "graph.png", "launch.png", "plot.png"]


PHASE_ONE = ("market_bars", "feature_table", "dp_trajectories", "vq_codebook")


@pytest.mark.endurance
def test_cancelled_and_killed_a_training_goes_on_to_the_same_bytes(
    stack, tmp_path: Path, run_tiny: Callable, differences: Callable
) -> None:
    file = stack.result / "BTC" / ".resume" / "vq_codebook.safetensors"
    first = stack.launch(TRAINING, "BTC", *PHASE_ONE)
    stack.wait(file.exists, "the training's first saved state")
    stack.terminate(first)
    stack.wait(lambda: stack.run(first).status is dg.DagsterRunStatus.CANCELED, "the run's end")
    assert stack.processes() == []
    assert "computed" in stack.log(first)
    _, saved = load_tensors(file)
    assert saved["epochs_done"] < EPOCHS
    assert not list(stack.result.rglob(".staging*"))

    # Again, and this time everything is killed on the way: it is missed, tried again and goes on.
    again = stack.launch(TRAINING, "BTC", *PHASE_ONE)
    (process,) = stack.wait(stack.processes, "the process of the run")
    stack.wait(lambda: load_tensors(file)[1]["epochs_done"] > saved["epochs_done"], "further progress")
    os.kill(process, signal.SIGKILL)
    for name in ("daemon", "web server"):
        stack.services.services[name].process.kill()
    killed, last = stack.wait_for_run(again)
    assert killed.status is dg.DagsterRunStatus.FAILURE
    assert last.status is dg.DagsterRunStatus.SUCCESS
    assert "BTC market_bars: computed" not in stack.log(last.run_id)
    assert "BTC vq_codebook: computed" in stack.log(last.run_id)
    assert {"the daemon", "the web server"} <= {line.partition(" ended")[0] for line in stack.said}
    assert not [path for path in stack.result.rglob(".*") if path.name.startswith(".staging") or path.suffix == ".tmp"]
    assert not file.exists()
    undisturbed = run_tiny(tmp_path, pair="BTC", selection="+vq_codebook", changes={"codebook.epochs": EPOCHS})
    assert undisturbed.success
    for stage in PHASE_ONE:
        assert differences(stack.result / "BTC" / FOLDERS[stage], tmp_path / "BTC" / FOLDERS[stage]) == []


def write_candles(folder: Path, month: datetime, days: int) -> None:
    """Five-minute candles of the first days of a month in the layout of Binance's archive."""
    rows = []
    for number in range(288 * days):
        opened = int((month + timedelta(minutes=5 * number)).timestamp() * 1000)
        price = 1_600 + number % 97 / 7
        rows.append(f"{opened},{price},{price + 1},{price - 1},{price + 0.5},5,{opened + 299_999},0,9,2,0,0")
    (folder / f"ETHUSDT-5m-{month:%Y-%m}.csv").write_text("\n".join(rows))


@pytest.mark.endurance
def test_a_backfill_over_months_is_finished_by_the_daemon(stack, tmp_path: Path) -> None:
    months = [datetime(2023, month, 1, tzinfo=UTC) for month in (1, 2, 3)]
    for month in months:
        write_candles(tmp_path, month, days=2)
    source = {"market.source": "binance-klines", "market.path": str(tmp_path), "market.by_month": True}
    partitions = [f"{month:%Y-%m-%d}|ETH" for month in months]
    backfill = stack.backfill(MONTHS, partitions, source, archetype__reason="test")
    runs = stack.wait_for_backfill(backfill, count=len(months))
    assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}
    assert {run.tags["dagster/partition"] for run in runs} == set(partitions)
    assert {run.tags["archetype/reason"] for run in runs} == {"test"}
    made = {path.name for path in (stack.result / "ETH" / "raw_bars").iterdir()}
    assert made == {f"{month:%Y-%m}" for month in months}


@pytest.mark.endurance
def test_a_run_beyond_its_time_is_stopped_and_what_it_saved_stays(stack) -> None:
    stack.wait(lambda: not stack.processes(), "an idle machine")
    run = stack.launch(TRAINING, "DOT", *PHASE_ONE, dagster__max_runtime="1", dagster__max_retries="0")
    stack.wait(lambda: stack.run(run).is_finished, "the run's end")
    assert stack.run(run).status in (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
    assert "Exceeded maximum runtime of 1 seconds" in stack.log(run) or "exceeding maximum runtime" in stack.log(run)
    stack.wait(lambda: not stack.processes(), "the end of its process")
