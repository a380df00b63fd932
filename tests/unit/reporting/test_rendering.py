"""Numbers as people read them, and templates that refuse gaps."""

import pytest
from jinja2 import UndefinedError

from archetype_dagster.reporting.rendering import count, money, money_decimals, percent, ratio, render, times

MINUS, SPACE = "\u2212", "\u202f"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (percent(0.12345), f"12.35{SPACE}%"),
        (percent(-0.05, True), f"{MINUS}5.00{SPACE}%"),
        (percent(0.05, True), f"+5.00{SPACE}%"),
        (percent(-0.000001, True), f"0.00{SPACE}%"),
        (percent(None), "n/a"),
        (percent(0.5, False, 1), f"50.0{SPACE}%"),
        (ratio(1.005), "1.00"),
        (ratio(-2.5), f"{MINUS}2.50"),
        (ratio(None), "n/a"),
        (money(1234567.8, 0), "1,234,568"),
        (money(-12.345, 2, True), f"{MINUS}12.35"),
        (money(0.0, 2, True), "0.00"),
        (times(3.04), "3.0\u00d7"),
        (count(35136), "35,136"),
        (count(None), "n/a"),
    ],
)
def test_numbers_read_like_this(text, expected):
    assert text == expected


def test_large_accounts_show_no_cents():
    assert (money_decimals(260_000.0), money_decimals(900.0)) == (0, 2)


def test_a_template_refuses_an_undefined_name():
    with pytest.raises(UndefinedError):
        render("report.html", {})
