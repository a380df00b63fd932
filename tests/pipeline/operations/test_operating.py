"""The graph operated as a person does it: in a browser, by backfills, and with runs cancelled and killed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import dagster as dg
import pytest

from archetype_dagster.pipeline.stages import STAGES

GROUPS = {stage.group for stage in STAGES.values()}
EPOCHS = 400


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
    browser.size(1800, 1100)
    browser.open(f"{stack.address}/asset-groups")
    for group in GROUPS:
        browser.wait_for(shown(group))
    # Once in the list and once in the drawing, which alone listens to the key that opens all groups.
    browser.wait_for("document.body.innerText.split('discovery').length > 2")
    open_groups(browser)
    browser.picture(tmp_path / "graph.png")

    browser.open(f"{stack.address}/assets/market_bars?view=overview")
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

    browser.open(f"{stack.address}/assets/market_bars?view=checks")
    for words in ("bars_sane", "Succeeded", "Passed", "0 of 5724 bars have a spread of zero or less"):
        browser.wait_for(shown(words))
    browser.picture(tmp_path / "checks.png")
    browser.open(f"{stack.address}/assets/market_bars?view=overview")
    browser.click("[...document.querySelectorAll('*')].filter(e => e.innerText === '[Show Markdown]').pop()")
    browser.wait_for(
        "[...document.images].some(i => i.src.startsWith('data:image/png') && i.complete && i.naturalWidth > 300)"
    )
    browser.picture(tmp_path / "plot.png")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["checks.png", "graph.png", "launch.png", "plot.png"]
