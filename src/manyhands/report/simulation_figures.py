"""Figures of a simulation: step time, speed-up, efficiency and cost against nodes, and where a step's time goes."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from manyhands.record.simulation import Estimate, SimulationRecord, SimulationRow, Unit
from manyhands.record.texts import duration, figure, percent, with_bounds
from manyhands.report.drawing import (
    Figure,
    Layout,
    Trace,
    View,
    counts_axis,
    decades_axis,
    layout,
    safe,
    straight,
    value_axis,
)
from manyhands.report.palette import DASHES, MARKERS, SERIES, series_colour
from manyhands.report.scores import grouped
from manyhands.report.stacks import PARTS, stack_height, stack_layout, stack_trace

MOST_POINTS = 60
"""Points of a curve; of more, some are drawn."""
MOST_BARS = 12
"""Bars of one strategy."""
PART_NAMES = {part: "update" if part == "serial" else part for part in PARTS}
"""How a simulation calls the parts of a step: what every worker repeats is mostly the update of the weights."""

Value = Callable[[SimulationRow], Estimate | None]


@dataclass(frozen=True)
class Strategy:
    """One strategy over the number of nodes."""

    name: str
    number: int
    rows: list[SimulationRow]

    @property
    def colour(self) -> str:
        """Its colour in all figures."""
        return series_colour(self.number)

    @property
    def dash(self) -> str:
        """Its line, which tells strategies apart that have the same colour."""
        return DASHES[self.number // len(SERIES) % len(DASHES)]


def strategies(record: SimulationRecord) -> list[Strategy]:
    """Gather the rows by strategy, the fewest nodes first."""
    groups = grouped(record.rows, lambda row: row.sync)
    return [
        Strategy(name, number, sorted(rows, key=lambda row: row.number))
        for number, (name, rows) in enumerate(groups.items())
    ]


def unit(drawn: Sequence[Strategy]) -> Unit:
    """Return what is counted along the axis."""
    return drawn[0].rows[0].by


def some(rows: Sequence[SimulationRow], most: int) -> list[SimulationRow]:
    """Return some of very many rows, evenly spread, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def scaling_figures(record: SimulationRecord) -> list[Figure]:
    """Draw speed-up, efficiency, step time, epoch time and cost against nodes."""
    drawn = strategies(record)
    found = [_speed_up(drawn), _efficiency(drawn), _times(drawn)]
    if any(row.cost for row in record.rows):
        found.append(_cost(drawn, record.currency))
    return found


def _speed_up(drawn: Sequence[Strategy]) -> Figure:
    ideal = {row.number: float(row.workers) for strategy in drawn for row in strategy.rows}
    shown = [*values(drawn, _speed), *ideal.values()]
    return Figure(
        id="speed-up",
        title="Speed-up",
        about="Samples per second against one worker alone; the band holds 90 % of what is expected, the dashed line "
        f"is the ideal{_by_formula(drawn)}.",
        says=f"Predicted speed-up over {unit(drawn)}. " + _said(drawn, _speed, lambda value: f"{figure(value)} times"),
        data=[
            straight("ideal", [float(n) for n in sorted(ideal)], [ideal[n] for n in sorted(ideal)]),
            *_curves(drawn, _speed, lambda value: f"{figure(value)}×"),
        ],
        layout=layout(_numbers_axis(drawn), _powers_axis("speed-up over one worker", shown)),
    )


def _efficiency(drawn: Sequence[Strategy]) -> Figure:
    top = max([1.0, *values(drawn, lambda row: row.efficiency)])
    return Figure(
        id="efficiency",
        title="Efficiency",
        about="Speed-up as a share of the number of workers: 100 % is the ideal, what is missing is lost.",
        says=f"Predicted efficiency over {unit(drawn)}. "
        + _said(drawn, lambda row: row.efficiency, lambda value: f"{100 * value:.0f} percent"),
        data=_curves(drawn, lambda row: row.efficiency, lambda value: percent(100 * value), 100),
        layout=layout(_numbers_axis(drawn), {"title": "efficiency", "range": [0, 106 * top], "ticksuffix": " %"}),
    )


def _times(drawn: Sequence[Strategy]) -> Figure:
    """Draw the time of a step, and that of an epoch."""
    step = _curves(drawn, lambda row: row.step_ms, _ms)
    epoch = _curves(drawn, lambda row: row.epoch_s, duration)
    axes = {
        "step": value_axis("step (ms)", values(drawn, lambda row: row.step_ms)),
        "epoch": value_axis("epoch (s)", values(drawn, lambda row: row.epoch_s)),
    }
    views = [
        View(label, data=data, layout={"yaxis": layout({}, axes[label])["yaxis"]})
        for label, data in (("step", step), ("epoch", epoch))
    ]
    return Figure(
        id="time",
        title="Time",
        about="What a step takes, and what an epoch takes, in which every sample is seen once: with failures, where "
        "the cluster has some.",
        says=f"Predicted time of a step over {unit(drawn)}. " + _said(drawn, lambda row: row.step_ms, _ms),
        data=step,
        layout=layout(_numbers_axis(drawn), axes["step"]),
        choose="Of",
        views=views,
    )


def _cost(drawn: Sequence[Strategy], currency: str) -> Figure:
    return Figure(
        id="cost",
        title="Cost of an epoch",
        about=f"What an epoch costs in {currency}: all nodes are paid for as long as it takes, so that what they lose "
        "in efficiency is what it costs more.",
        says=f"Predicted cost of an epoch over {unit(drawn)}. "
        + _said(drawn, lambda row: row.cost, lambda value: f"{figure(value)} {currency}"),
        data=_curves(drawn, lambda row: row.cost, lambda value: f"{figure(value)} {safe(currency)}"),
        layout=layout(
            _numbers_axis(drawn), value_axis(f"{safe(currency)} an epoch", values(drawn, lambda row: row.cost))
        ),
    )


def split_figure(record: SimulationRecord) -> Figure:
    """Draw where a step's time goes, strategy by strategy, as a stack for each number of nodes."""
    drawn = strategies(record)
    views = []
    for strategy in drawn:
        rows = some(strategy.rows, MOST_BARS)
        names = [row.many for row in rows]
        left = stack_layout("stack", names)["margin"]["l"]
        size = {"height": stack_height(names), "margin.l": left, "xaxis.range": [0, 101]}
        views.append(View(strategy.name, data=_stacks(rows, names), layout=size))
    names = [row.many for row in some(drawn[0].rows, MOST_BARS)]
    return Figure(
        id="split",
        title="Where a step's time goes",
        about="Compute is shared out over the workers; update is what every worker repeats, mostly the optimiser's "
        "step; comm is what the exchanges take; wait is time spent waiting for the slowest worker.",
        says="Where a step's time goes. " + "; ".join(_most(strategy) for strategy in drawn) + ".",
        data=[],
        layout=stack_layout("stack", names),
        height=stack_height(names),
        choose="Strategy",
        views=views,
    )


def shares(row: SimulationRow) -> dict[str, float]:
    """Return the parts of a step as percentages of it."""
    parts = {part: float(getattr(row, f"{part}_ms")) for part in PARTS}
    whole = sum(parts.values()) or 1.0
    return {part: 100 * ms / whole for part, ms in parts.items()}


def _stacks(rows: Sequence[SimulationRow], names: Sequence[str]) -> list[Trace]:
    found = []
    for part in PARTS:
        percents = [round(shares(row)[part], 3) for row in rows]
        trace = stack_trace(PART_NAMES[part], part, names, percents)
        trace["customdata"] = [_ms(getattr(row, f"{part}_ms")) for row in rows]
        trace["hovertemplate"] = f"%{{y}}<br>{trace['name']}: %{{x:.1f}} % · %{{customdata}}<extra></extra>"
        found.append(trace)
    return found


def _most(strategy: Strategy) -> str:
    last = strategy.rows[-1]
    told = ", ".join(f"{PART_NAMES[part]} {share:.0f} percent" for part, share in shares(last).items())
    return f"{strategy.name} on {last.many}: {told}"


def _speed(row: SimulationRow) -> Estimate:
    return row.speed_up


def _ms(milliseconds: float) -> str:
    return duration(milliseconds / 1e3)


def values(drawn: Iterable[Strategy], value: Value) -> list[float]:
    """Return all values and bounds that are numbers."""
    found = [value(row) for strategy in drawn for row in strategy.rows]
    return [bound for each in found if each for bound in (each.low, each.value, each.high) if math.isfinite(bound)]


def _curves(drawn: Sequence[Strategy], value: Value, text: Callable[[float], str], factor: float = 1.0) -> list[Trace]:
    """Draw every strategy as a line in its band; hollow where there was a formula only."""
    found = []
    for strategy in drawn:
        rows = [(row, each) for row in some(strategy.rows, MOST_POINTS) if (each := value(row))]
        found += [_band(strategy, rows, factor), _curve(strategy, rows, text, factor)] if rows else []
    return found


def _band(strategy: Strategy, rows: Sequence[tuple[SimulationRow, Estimate]], factor: float) -> Trace:
    numbers = [row.number for row, _ in rows]
    low, high = ([factor * getattr(each, bound) for _, each in rows] for bound in ("low", "high"))
    return {
        "type": "scatter",
        "mode": "lines",
        "name": safe(strategy.name),
        "legendgroup": safe(strategy.name),
        "showlegend": False,
        "x": [*numbers, *reversed(numbers)],
        "y": [*high, *reversed(low)],
        "fill": "toself",
        "fillcolor": strategy.colour,
        "opacity": 0.18,
        "line": {"width": 0, "color": strategy.colour},
        "hoverinfo": "skip",
    }


def _curve(
    strategy: Strategy,
    rows: Sequence[tuple[SimulationRow, Estimate]],
    text: Callable[[float], str],
    factor: float,
) -> Trace:
    name = safe(strategy.name)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "legendgroup": name,
        "x": [row.number for row, _ in rows],
        "y": [factor * each.value for _, each in rows],
        "line": {"color": strategy.colour, "width": 2.2, "dash": strategy.dash},
        "marker": {
            "color": ["@panel" if row.method == "closed form" else strategy.colour for row, _ in rows],
            "size": 7,
            "symbol": MARKERS[strategy.number % len(MARKERS)],
            "line": {"color": strategy.colour, "width": 1.6},
        },
        "customdata": [[row.many, with_bounds(each, text)] for row, each in rows],
        "hovertemplate": f"{name}, %{{customdata[0]}}: %{{customdata[1]}}<extra></extra>",
    }


def _numbers_axis(drawn: Sequence[Strategy]) -> Layout:
    return counts_axis(unit(drawn), [row.number for strategy in drawn for row in strategy.rows])


def _powers_axis(title: str, shown: Iterable[float]) -> Layout:
    """Return an axis on which every doubling takes the same room, with at most a dozen ticks."""
    axis = decades_axis(title, shown)
    low, high = axis["range"]
    by = 1 if high - low < 2.5 else 2
    powers = range(by * math.floor(low / math.log10(2) / by), math.ceil(high / math.log10(2)) + 1, by)
    return {
        **axis,
        "tickvals": [2.0**power for power in powers],
        "ticktext": [f"{2.0**power:,.5g}" for power in powers],
    }


def _by_formula(drawn: Sequence[Strategy]) -> str:
    some_are = any(row.method == "closed form" for strategy in drawn for row in strategy.rows)
    return "; hollow points come from a formula, the others from following events" if some_are else ""


def _said(drawn: Sequence[Strategy], value: Value, words: Callable[[float], str]) -> str:
    told = []
    for strategy in drawn:
        points = [(row, each) for row in some(strategy.rows, MOST_BARS) if (each := value(row))]
        told.append(f"{strategy.name}: " + ", ".join(f"{words(each.value)} on {row.number:,}" for row, each in points))
    return "; ".join(told) + "."
