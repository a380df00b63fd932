"""The pages in a real headless Chromium: nothing is logged, and nothing is asked of the outside."""

import pytest

from archetype_dagster.reporting import write_leaderboard
from archetype_dagster.reporting.content import variant_rows
from archetype_dagster.reporting.report import summarise

COMPLAINTS = {"Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"}


def complaints(events):
    return [event["params"] for event in events if event["method"] in COMPLAINTS]


def outside(events, page):
    sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert page in sent, "the page itself was not seen"
    return [address for address in sent if address != page and not address.startswith("data:")]


@pytest.fixture(scope="module")
def folder(written, results, make_evaluation, settings):
    folder = written[0]
    evaluation = make_evaluation()
    write_leaderboard({"ETH": summarise(evaluation, variant_rows(evaluation), settings)}, folder, results)
    return folder


@pytest.mark.parametrize("name", ["tables.html", "leaderboard.html"])
def test_a_page_loads_in_silence_and_asks_for_nothing(browser, folder, name):
    address = (folder / name).as_uri()
    events = browser.open(address)
    assert complaints(events) == []
    assert outside(events, address) == []


def test_pictures_are_there_and_nothing_overflows_the_page(browser, folder):
    browser.open((folder / "tables.html").as_uri())

    def asked(expression):
        return browser.page("Runtime.evaluate", expression=expression)["result"]["value"]

    assert asked("[...document.images].every(image => image.complete && image.naturalWidth > 0)") is True
    assert asked("document.images.length") == 2
    assert asked("document.documentElement.scrollWidth <= window.innerWidth") is True
    assert asked("[...document.querySelectorAll('nav a')].every(a => document.querySelector(a.hash))") is True


def test_a_page_that_reaches_out_is_caught(browser, tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<script>console.error('oops')</script><img src='http://127.0.0.1:9/picture.png'>")
    events = browser.open(page.as_uri())
    assert any("oops" in str(complaint) for complaint in complaints(events))
    assert outside(events, page.as_uri()) == ["http://127.0.0.1:9/picture.png"]


def test_what_the_page_before_still_says_is_not_held_against_the_next(browser, tmp_path):
    noisy, silent = tmp_path / "noisy.html", tmp_path / "silent.html"
    noisy.write_text("<script>setInterval(() => console.error('oops'), 1)</script>")
    silent.write_text("<p>nothing</p>")
    assert complaints(browser.open(noisy.as_uri()))
    assert complaints(browser.open(silent.as_uri())) == []
