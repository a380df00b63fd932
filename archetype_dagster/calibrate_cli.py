"""`archetype calibrate`: measure real books, judge what is made of them, and print the tables of the documentation.

What is heavy is imported inside the commands, so that `--help` is immediate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import yaml

from archetype_dagster import cli_options as options
from archetype_dagster.errors import SettingsError

if TYPE_CHECKING:
    import polars as pl

_LARGE: Final = 10.0

app = typer.Typer(help="Measure real order books and judge what is made of them.", no_args_is_help=True)

Output = Annotated[Path | None, typer.Option("--output", help="YAML file to write; printed when left out.")]


@app.command()
def impact(
    books: Annotated[list[Path], typer.Argument(help="Parquet files with bids_px, bids_qty, asks_px and asks_qty.")],
    output: Output = None,
) -> None:
    """Pool deep books into the impact curve, in the form of configs/impact_curve.yaml."""
    from archetype_dagster.market.candles import read_parquet
    from archetype_dagster.market.impact import calibrate_impact_curve

    curve = calibrate_impact_curve(read_parquet(file) for file in books)
    _write(f"{_origin('impact', books)}{curve.to_yaml()}", output)


@app.command()
def book(
    files: Annotated[list[Path], typer.Argument(help="BOOK TRADES [BOOK TRADES ...]: Parquet files of one span each.")],
    output: Output = None,
) -> None:
    """Measure real books and trades for the modelled book, in the form of configs/modelled_book.yaml."""
    from archetype_dagster.market.book_calibration import calibrate_modelled_book

    if len(files) % 2:
        raise SettingsError(f"calibrate book takes a trades file after each book file, got {len(files)} files")
    found = calibrate_modelled_book(list(zip(files[::2], files[1::2], strict=True)))
    _write(_origin("book", files) + yaml.safe_dump(found.as_dict(), sort_keys=False), output)


@app.command()
def judge(
    markets: Annotated[list[str], typer.Argument(help="NAME=FILE of each market's deep books in Parquet.")],
    pair: Annotated[
        str, typer.Option("--pair", help="Pair whose liquidity the shipped curve is stretched to.")
    ] = "BTC",
    level: Annotated[list[int] | None, typer.Option("--level", help="Levels left visible. May be repeated.")] = None,
    quantity: Annotated[
        list[float] | None, typer.Option("--quantity", help="Order size in base units. May be repeated.")
    ] = None,
    profile: options.Profile = "smoke",
) -> None:
    """Hide all but a few levels of deep books and compare each depth policy with the true walk.

    Deep markets (list columns) are judged on their second half, with impact curves made from all of it, from
    the first half and from each other deep market; others as a whole, with the shipped curve.
    """
    from archetype_dagster.market.candles import read_parquet
    from archetype_dagster.market.depth_judging import judge_markets
    from archetype_dagster.settings import load_settings

    named = [market.partition("=") for market in markets]
    for market, (name, separator, file) in zip(markets, named, strict=True):
        if not (name and separator and file):
            raise SettingsError(f"a market to judge is NAME=FILE, got {market!r}")
    if len({name for name, _, _ in named}) < len(named):
        raise SettingsError(f"each market needs a name of its own, got {', '.join(markets)}")
    quantities = tuple(quantity or (1.0, 8.0, 16.0, 50.0))
    if min(quantities) <= 0:
        raise SettingsError(f"quantity must be positive, got {min(quantities):g}")
    liquidity_scale = load_settings(profile).pair(pair).liquidity_scale
    judged = judge_markets(
        {name: read_parquet(Path(file)) for name, _, file in named},
        levels=tuple(level or (5, 25)),
        quantities=quantities,
        liquidity_scale=liquidity_scale,
    )
    for (name,), rows in judged.group_by("market", maintain_order=True):
        orders: list[int] = rows["orders"].to_list()
        snapshots = f"{max(orders)}" if min(orders) == max(orders) else f"{min(orders)} to {max(orders)}"
        typer.echo(f"{name}, {snapshots} snapshots: mean error (mean absolute error) in bp\n")
        typer.echo(f"{_markdown(_judgement_rows(rows))}\n")


@app.command()
def compare(
    pair: options.Pair,
    path: Annotated[Path, typer.Option("--path", help="Books of the source, with their bars or trades.")],
    source: Annotated[
        str, typer.Option("--source", help="Format of the path: bars or any that ingest reads.")
    ] = "bars",
    prices_path: Annotated[Path | None, typer.Option("--prices-path", help="Trades of the same format.")] = None,
    bar_minutes: Annotated[int, typer.Option("--bar-minutes", help="Length of a bar.")] = 10,
    levels: Annotated[int, typer.Option("--levels", help="Most levels read of the real book.")] = 25,
    profile: options.Profile = "smoke",
    assignments: options.Assignments = None,
    seed: options.Seed = None,
) -> None:
    """Give bars whose real book is known a modelled one and compare spread, depth and the cost of m and 2m."""
    from archetype_dagster.market.book_comparison import compare_books
    from archetype_dagster.market.sources import bars_for
    from archetype_dagster.settings import load_settings

    overrides: dict[str, Any] = {"market.bar_minutes": bar_minutes, "market.book_levels": levels}
    if prices_path is not None:
        overrides |= {"market.prices_source": source, "market.prices_path": str(prices_path)}
    settings = load_settings(profile, {**overrides, **options.overrides(source, path, seed, assignments)})
    spec = settings.pair(pair)
    bars = bars_for(settings, pair)
    compared = compare_books(
        bars, settings.market.modelled_book, spec, seed=settings.seed, bar_minutes=settings.market.bar_minutes
    )
    typer.echo(f"{path.name}, {bars.height} {bar_minutes}-minute bars: median [quartiles]\n")
    typer.echo(f"{_markdown(_comparison_rows(compared))}\n")


def _judgement_rows(judged: pl.DataFrame) -> list[dict[str, str]]:
    """A row for each order and one for the mean of all orders at each number of visible levels, policies across."""
    import polars as pl

    numbers = pl.col("true_bps", "visible_share", "bias_bps", "error_bps")
    means = judged.group_by("levels", "policy", maintain_order=True).agg(numbers.mean())
    orders = pl.format("{} {}", "side", pl.col("quantity").cast(pl.String).str.strip_suffix(".0"))
    keys = ["levels", "order", "true_bps", "visible_share"]
    told = judged.select("levels", "policy", orders.alias("order"), numbers)
    averaged = means.select("levels", "policy", pl.lit("mean").alias("order"), numbers)
    rows = []
    for (levels, order, true, seen), group in pl.concat([told, averaged]).group_by(keys, maintain_order=True):
        cells = zip(group["policy"], group["bias_bps"], group["error_bps"], strict=True)
        rows.append(
            {
                "visible levels": f"{levels}",
                "order": f"{order}",
                "filled by them": f"{seen:.0%}",
                "true cost": f"{true:.2f}",
                **{policy: f"{_signed(bias)} ({_signed(error)[1:]})" for policy, bias, error in cells},
            }
        )
    return sorted(rows, key=lambda row: int(row["visible levels"]))


def _signed(error: float) -> str:
    return f"{error:+.2f}" if abs(error) < _LARGE else f"{error:+.0f}"


def _comparison_rows(compared: pl.DataFrame) -> list[dict[str, str]]:
    rows = []
    for row in compared.iter_rows(named=True):
        texts = {
            name: f"{row[name]:.3g} [{row[f'{name}_low']:.3g}, {row[f'{name}_high']:.3g}]"
            for name in ("real", "modelled")
        }
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        rows.append({"measure": row["measure"], **texts, "modelled / real": ratio})
    return rows


def _markdown(rows: Sequence[Mapping[str, str]]) -> str:
    lines = [list(rows[0]), ["--"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _origin(command: str, files: Sequence[Path]) -> str:
    return f"# Made by `archetype calibrate {command}` from {', '.join(file.name for file in files)}.\n"


def _write(text: str, output: Path | None) -> None:
    from archetype_dagster.artifacts import write_bytes_atomically

    if output is None:
        typer.echo(text, nl=False)
    else:
        write_bytes_atomically(output, text.encode())
        typer.echo(f"Written: {output.resolve()}")
