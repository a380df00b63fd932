"""How certain the results are: intervals, odds, seeds, alignments, sensitivities and walk-forward, where given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from archetype_dagster.backtest.alignments import EQUAL_WEIGHT
from archetype_dagster.reporting.content import METRIC_COLUMNS
from archetype_dagster.reporting.paper.inputs import PairResults
from archetype_dagster.reporting.paper.sheets import Block, Cell, Line, Sheet, metric_cells, metric_heads, value_cell
from archetype_dagster.reporting.paper.table_sheets import heading
from archetype_dagster.reporting.rendering import NOT_AVAILABLE, count, percent, ratio, ruin_text
from archetype_dagster.studies.comparison import METHODS, POLICY
from archetype_dagster.types import JsonDict

_SIX: Final = tuple(name for _, name, _ in METRIC_COLUMNS)
_QUANTILES: Final = {
    "q0.00": "Lowest",
    "q0.50": "Median",
    "q1.00": "Highest",
    "mean": "Mean",
    EQUAL_WEIGHT: "Equal weight",
}
_SEED_METRICS: Final = ("sharpe", "total_return")


def certainty_sheets(results: Mapping[str, PairResults], profile: str) -> list[Sheet]:
    """Sheets of what was given for at least one pair; `profile` names the budgets."""
    sheets = (
        _sheet(
            results,
            profile,
            "intervals",
            "Intervals of ArchetypeTrader's metrics",
            _intervals,
            "Metric",
            ("Low", "Measured", "High", "Defined %"),
            "Stationary block bootstrap of the per-bar returns, TR, AVOL and MDD in percent; defined: share of the "
            "resamples in which the metric is.",
        ),
        _sheet(
            results,
            profile,
            "odds",
            "Odds that its Sharpe ratio is luck",
            _odds,
            "Probability",
            ("Independent returns, %", "Dependent returns, %"),
            "PSR: the true Sharpe ratio is positive. DSR: it beats the best that as many useless trials would show. "
            "PBO: choosing the best of the trials picks one that is worse than the median on other bars.",
        ),
        _sheet(
            results,
            profile,
            "leads",
            "ArchetypeTrader against others on the same bars",
            _leads,
            "Against",
            ("Sharpe lead", "Low", "High", "Ahead, % of resamples"),
            "Both accounts resampled with the same blocks, and judged over all bars: a ruined one earns nothing more.",
        ),
        _sheet(
            results,
            profile,
            "seeds",
            "Seeds",
            _seeds,
            "",
            ("Sharpe", "TR %"),
            "Spread of ArchetypeTrader over seeds, and the share of the pairs of one of its seeds with one of each "
            "method's that its own wins. A ruined seed counts below every other, whatever it earned before.",
        ),
        _sheet(
            results,
            profile,
            "alignments",
            "Where the horizons begin",
            _alignments,
            "Over all alignments",
            (*metric_heads(_SIX), "Trades"),
            "The frozen policy once for each bar at which its first horizon may begin; quantiles are of each metric "
            "alone, ACR of the means is that of their row. Equal weight splits the capital over all alignments.",
        ),
        _sheet(
            results,
            profile,
            "sensitivities",
            "Other costs, delays and capitals",
            _sensitivities,
            "Setting",
            (*metric_heads(_SIX), "Trades"),
            "The frozen policy judged again with one setting changed; the run's own value is marked.",
        ),
        _sheet(
            results,
            profile,
            "walk-forward",
            "Walk-forward",
            _walk_forward,
            "",
            metric_heads(_SIX),
            "Trained again before each window of the test span, and the windows' accounts stitched into one.",
        ),
    )
    return [sheet for sheet in sheets if sheet.blocks]


def policy_reads_future(result: PairResults) -> bool:
    """True where the comparison's policy reads prices it could not have known."""
    method = result.comparison.methods.get(POLICY)
    return method is not None and method.hindsight


def _sheet(
    results: Mapping[str, PairResults],
    profile: str,
    anchor: str,
    title: str,
    lines: Callable[[PairResults], Iterable[Line]],
    label: str,
    heads: tuple[str, ...],
    remark: str,
) -> Sheet:
    blocks = [
        (policy_reads_future(result), pair, found)
        for pair, result in results.items()
        if (found := tuple(lines(result)))
    ]
    return Sheet(
        anchor=anchor,
        title=title,
        facts=heading({pair: results[pair] for _, pair, _ in blocks}, profile),
        remarks=(remark,),
        label=label,
        heads=heads,
        blocks=tuple(
            Block(found, title=pair, hindsight=hindsight)
            for hindsight, pair, found in sorted(blocks, key=lambda block: block[0])
        ),
    )


def _intervals(result: PairResults) -> Iterable[Line]:
    if result.certainty is None:
        return
    for head, name, scale in METRIC_COLUMNS:
        interval = result.certainty["intervals"][name]
        cells = (value_cell(interval[end], scale) for end in ("low", "estimate", "high"))
        yield Line(head, (*cells, _share(interval["defined_share"])), lead=name == "sharpe")


def _odds(result: PairResults) -> Iterable[Line]:
    found = result.certainty
    if found is None:
        return
    if evidence := found["sharpe"]:
        yield Line("PSR", (_share(evidence["probabilistic"]), _share(evidence["probabilistic_robust"])))
        best = ratio(evidence["expected_maximum"])
        trials = f"{count(evidence['trials'])} trials, the best of which would show {best} without any skill"
        yield Line("DSR", (_share(evidence["deflated"]), _share(evidence["deflated_robust"])), trials, lead=True)
        needed, bars = evidence["minimum_bars"], count(found["bars"])
        wanted = count(round(needed)) if needed is not None else NOT_AVAILABLE
        yield Line("Bars needed", (Cell(wanted, "none" if needed is None else "", 2),), f"of {bars} there are")
    if overfitting := found["overfitting"]:
        note = f"{count(overfitting['trials'])} trials, {count(overfitting['combinations'])} combinations"
        yield Line("PBO", (Cell(**vars(_share(overfitting["pbo"])) | {"span": 2}),), note)


def _leads(result: PairResults) -> Iterable[Line]:
    for name, comparison in (result.certainty or {"comparisons": {}})["comparisons"].items():
        sharpe = comparison["sharpe"]
        cells = (value_cell(sharpe[end]) for end in ("estimate", "low", "high"))
        rival = result.comparison.methods.get(name)
        tags = ("ruined",) if rival and rival.performance.ruined else ()
        yield Line(METHODS.get(name, name), (*cells, _share(comparison["sharpe_ahead"])), tags=tags)


def _seeds(result: PairResults) -> Iterable[Line]:
    if result.seeds is None:
        return
    scales = {name: scale for _, name, scale in METRIC_COLUMNS}
    parts = [(result.seeds.summary[metric], scales[metric]) for metric in _SEED_METRICS]
    runs = list(result.seeds.policy.runs.values())
    seeds, lost = ", ".join(str(run["seed"]) for run in runs), ruin_text(sum(run["ruined"] for run in runs), len(runs))
    for label, name in (("Mean", "mean"), ("Deviation", "std"), ("Lowest", "minimum"), ("Highest", "maximum")):
        cells = tuple(value_cell(summary[name], scale) for summary, scale in parts)
        is_mean = name == "mean"
        tags = (lost,) if is_mean and lost else ()
        yield Line(label, cells, f"seeds {seeds}" if is_mean else "", lead=is_mean, tags=tags)
    for name in METHODS:
        if name in parts[0][0]["beats"]:
            shares = tuple(_share(summary["beats"][name]) for summary, _ in parts)
            rivals = result.by_seed(name).values()
            loss = ruin_text(sum(run.ruined for run in rivals), len(rivals))
            yield Line(f"Ahead of {METHODS[name]}, %", shares, tags=(loss,) if loss else ())


def _alignments(result: PairResults) -> Iterable[Line]:
    frame = result.alignments
    for row in frame.iter_rows(named=True) if frame is not None else ():
        name = row["row"]
        label = _QUANTILES.get(name, percent(float(name.removeprefix("q")), decimals=0) if name[0] == "q" else name)
        trades = Cell(count(round(row["trades"])))
        yield Line(label, (*metric_cells(row, _SIX), trades), lead=name == EQUAL_WEIGHT)


def _sensitivities(result: PairResults) -> Iterable[Line]:
    frame = result.sensitivities
    for row in frame.iter_rows(named=True) if frame is not None else ():
        label = f"{row['setting'].replace('_', ' ')} {row['value'].replace('_', ' ')}"
        tags = (*(("this run",) if row["base"] else ()), *(("ruined",) if row["ruined"] else ()))
        if row["refused"] is None:
            yield Line(label, (*metric_cells(row, _SIX), Cell(count(row["trades"]))), lead=row["base"], tags=tags)
        else:
            yield Line(label, (Cell("refused", "none", 7),), row["refused"], tags=tags)


def _walk_forward(result: PairResults) -> Iterable[Line]:
    if result.walk_forward is None:
        return
    once = result.comparison.methods.get(POLICY)
    if once:
        yield _metrics_line("Trained once", once.performance.as_dict())
    yield _metrics_line("Trained before each window", result.walk_forward.performance.as_dict(), lead=True)
    for name, window in result.walk_forward.windows.items():
        yield _metrics_line(f"Window from {name.replace('T', ' ')}", window.as_dict())


def _metrics_line(label: str, metrics: JsonDict, *, lead: bool = False) -> Line:
    return Line(label, metric_cells(metrics, _SIX), lead=lead, tags=("ruined",) if metrics["ruined"] else ())


def _share(value: float | None) -> Cell:
    return value_cell(value, 100)
