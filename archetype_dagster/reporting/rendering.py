"""Templates to HTML text: number formats and pictures inside the page, so that it needs no other file."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from archetype_dagster.reporting.plots import DARK, LIGHT, Theme

NOT_AVAILABLE: Final = "n/a"
_MINUS: Final = "\u2212"
_NARROW_SPACE: Final = "\u202f"


@dataclass(frozen=True)
class Picture:
    """A PNG in both themes as data addresses.

    Attributes:
        alt: what the picture shows, for those who do not see it.
        light: `data:` address for a light page.
        dark: `data:` address for a dark page.
        width: pixels.
        height: pixels.
    """

    alt: str
    light: str
    dark: str
    width: int
    height: int


def draw(alt: str, plot: Callable[..., bytes], *data: Any, **options: Any) -> Picture:
    """Draw `plot(*data, **options, theme=...)` in both themes."""

    def address(theme: Theme) -> tuple[str, bytes]:
        png = plot(*data, **options, theme=theme)
        return f"data:image/png;base64,{base64.b64encode(png).decode()}", png

    (light, png), (dark, _) = address(LIGHT), address(DARK)
    # A PNG's header chunk states width and height right after its signature.
    width, height = struct.unpack(">II", png[16:24])
    return Picture(alt, light, dark, width, height)


def percent(value: float | None, signed: bool = False, decimals: int = 2) -> str:
    """A fraction as percent: 0.1234 -> `12.34 %`."""
    return NOT_AVAILABLE if value is None else f"{_number(100.0 * value, decimals, signed)}{_NARROW_SPACE}%"


def ratio(value: float | None) -> str:
    """A plain number with two decimals."""
    return NOT_AVAILABLE if value is None else _number(value, 2)


def times(value: float | None) -> str:
    """A multiple: 12.34 -> `12.3` and the multiplication sign."""
    return NOT_AVAILABLE if value is None else f"{_number(value, 1)}\u00d7"


def money(value: float | None, decimals: int, signed: bool = False) -> str:
    """An amount of money with as many decimals as its column has."""
    return NOT_AVAILABLE if value is None else _number(value, decimals, signed)


def money_decimals(capital: float) -> int:
    """Decimals for amounts of an account of this size: cents matter below 10,000."""
    return 0 if capital >= 10_000 else 2


def count(value: int | None) -> str:
    """A whole number with thousands separators."""
    return NOT_AVAILABLE if value is None else f"{value:,}"


def ruin_text(lost: int, runs: int, noun: str = "seeds") -> str:
    """How many of repeated runs lost everything: `ruined`, `1 of 3 seeds ruined`, or nothing."""
    if not lost:
        return ""
    return "ruined" if lost == runs else f"{lost} of {runs} {noun} ruined"


def render(template: str, content: dict[str, Any]) -> str:
    """Fill a template of this package; an undefined name is an error, all text is escaped."""
    environment = Environment(
        loader=PackageLoader("archetype_dagster.reporting", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for filter_ in (percent, ratio, times, money, count):
        environment.filters[filter_.__name__] = filter_
    return environment.get_template(template).render(content)


def _number(value: float, decimals: int, signed: bool = False) -> str:
    text = f"{value:,.{decimals}f}"
    # A value that rounds to zero has no sign.
    zero = not any(digit in text for digit in "123456789")
    if zero:
        return text.removeprefix("-")
    return text.replace("-", _MINUS) if value < 0 else f"+{text}" if signed else text
