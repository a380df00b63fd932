"""What a page and a Markdown file both show: tables whose every cell is already text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from archetype_dagster.reporting.content import METRIC_COLUMNS
from archetype_dagster.reporting.rendering import NOT_AVAILABLE, Picture, ratio

NOT_RUN: Final = "not run"
HINDSIGHT: Final = "Hindsight. The rows below read prices they could not have known and are not ranked."


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: what it reads.
        tone: classes of the page's style: gain, loss, none, printed; empty for plain.
        span: columns it covers.
    """

    text: str
    tone: str = ""
    span: int = 1


@dataclass(frozen=True)
class Line:
    """One row: its label, its cells, a remark below the label, and short tags beside it such as `ruined`."""

    label: str
    cells: tuple[Cell, ...]
    note: str = ""
    lead: bool = False
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """Rows under a title of their own; hindsight ones are set apart."""

    lines: tuple[Line, ...]
    title: str = ""
    hindsight: bool = False


@dataclass(frozen=True)
class Sheet:
    """One table, or one figure, with what was run in its heading.

    Attributes:
        anchor: name within the page.
        title: heading.
        facts: data, books, span, seeds, profile and settings, a line per group of pairs.
        remarks: sentences below.
        label: heading of the first column.
        heads: headings of the other columns.
        groups: headings above those, each with the columns it covers; empty for none.
        blocks: the rows; empty where nothing was run.
        pictures: pictures by caption.
    """

    anchor: str
    title: str
    facts: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    label: str = ""
    heads: tuple[str, ...] = ()
    groups: tuple[tuple[str, int], ...] = ()
    blocks: tuple[Block, ...] = ()
    pictures: tuple[tuple[str, Picture], ...] = ()


def value_cell(value: float | None, scale: float = 1, *, tone: str = "", signed: bool = False) -> Cell:
    """A number with two decimals after scaling; undefined ones read n/a, gains and losses are coloured if `signed`."""
    text = ratio(None if value is None else scale * value)
    if text == NOT_AVAILABLE:
        return Cell(text, f"{tone} none".strip())
    if signed and value:
        tone = "gain" if value > 0 else "loss"
    return Cell(text, tone)


def metric_cells(metrics: Mapping[str, Any], names: Sequence[str], *, printed: bool = False) -> tuple[Cell, ...]:
    """Cells of the metrics called `names`, in percent or as plain ratios as the paper prints them."""
    scales = {name: scale for _, name, scale in METRIC_COLUMNS}
    return tuple(
        value_cell(
            metrics[name],
            scales[name],
            tone="printed" if printed else "",
            signed=name == "total_return" and not printed,
        )
        for name in names
    )


def metric_heads(names: Iterable[str]) -> tuple[str, ...]:
    """The paper's abbreviations of metrics, with their unit."""
    heads = {name: head for head, name, _ in METRIC_COLUMNS}
    return tuple(heads[name] for name in names)


def markdown(sheet: Sheet) -> str:
    """The sheet as GitHub-flavoured Markdown; pictures are named, not shown."""
    parts = [
        f"## {sheet.title}",
        "\n".join(f"- {_escaped(fact)}" for fact in sheet.facts),
        *map(_escaped, sheet.remarks),
    ]
    parts += [f"{_escaped(caption)}: drawn on the page." for caption, _ in sheet.pictures]
    text = "".join(f"{part}\n\n" for part in parts if part)
    if not sheet.blocks:
        return text
    above = [name for name, span in sheet.groups for _ in range(span)] or [""] * len(sheet.heads)
    heads = [f"{group.lower()} {head}".strip() for group, head in zip(above, sheet.heads, strict=True)]
    lines = [_row([sheet.label, *heads]), _row(["--", *["--:"] * len(heads)])]
    for block in sheet.blocks:
        for title in filter(None, (HINDSIGHT if block.hindsight else "", block.title)):
            lines.append(_row([f"**{_escaped(title)}**", *[""] * len(heads)]))
        lines += [_row([_label(line), *_spread(line.cells)]) for line in block.lines]
    return text + "\n".join(lines) + "\n"


def _label(line: Line) -> str:
    tags = f" ({', '.join(line.tags)})" if line.tags else ""
    label = f"**{_escaped(line.label)}**" if line.lead else _escaped(line.label)
    return f"{label}{tags}" + (f", {_escaped(line.note)}" if line.note else "")


def _spread(cells: Iterable[Cell]) -> list[str]:
    return [text for cell in cells for text in (_escaped(cell.text), *[""] * (cell.span - 1))]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
