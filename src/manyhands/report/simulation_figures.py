"""Figures of a simulation: step time, speed-up, efficiency and cost against nodes, and where a step's time goes."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from manyhands.record.simulation import Estimate, SimulationRecord, SimulationRow, Unit
from manyhands.record.texts import duration, figure, percent, with_bounds
from manyhands.report.drawing import (
    Axis,
    Band,
    Figure,
    Item,
    Series,
    View,
    counts_axis,
    dashed,
    decades_axis,
    value_axis,
)
from manyhands.report.palette import DASHES, MARKERS, SERIES, series_colour
from manyhands.report.scores import grouped
from manyhands.report.stacks import PARTS, stack_view, stacked

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
    items = [
        dashed("ideal", sorted(ideal), [ideal[n] for n in sorted(ideal)]),
        *_curves(drawn, _speed, lambda value: f"{figure(value)}×"),
    ]
    return Figure(
        id="speed-up",
        title="Speed-up",
        about="Samples per second against one worker alone; the band holds 90 % of what is expected, the dashed line "
        f"is the ideal{_by_formula(drawn)}.",
        says=f"Predicted speed-up over {unit(drawn)}. " + _said(drawn, _speed, lambda value: f"{figure(value)} times"),
        views=[View(items=items, x=_numbers_axis(drawn), y=_powers_axis("speed-up over one worker", shown))],
        picture="speed-up",
    )


def _efficiency(drawn: Sequence[Strategy]) -> Figure:
    top = max([1.0, *values(drawn, lambda row: row.efficiency)])
    return Figure(
        id="efficiency",
        title="Efficiency",
        about="Speed-up as a share of the number of workers: 100 % is the ideal, what is missing is lost.",
        says=f"Predicted efficiency over {unit(drawn)}. "
        + _said(drawn, lambda row: row.efficiency, lambda value: f"{100 * value:.0f} percent"),
        views=[
            View(
                items=_curves(drawn, lambda row: row.efficiency, lambda value: percent(100 * value), 100),
                x=_numbers_axis(drawn),
                y=Axis(title="efficiency", span=(0, 106 * top), unit=" %"),
            )
        ],
        picture="efficiency",
    )


def _times(drawn: Sequence[Strategy]) -> Figure:
    """Draw the time of a step, and that of an epoch."""
    shown: dict[str, tuple[str, Value, Callable[[float], str]]] = {
        "step": ("step (ms)", lambda row: row.step_ms, _ms),
        "epoch": ("epoch (s)", lambda row: row.epoch_s, duration),
    }
    return Figure(
        id="time",
        title="Time",
        about="What a step takes, and what an epoch takes, in which every sample is seen once: with failures, where "
        "the cluster has some.",
        says=f"Predicted time of a step over {unit(drawn)}. " + _said(drawn, lambda row: row.step_ms, _ms),
        views=[
            View(
                label=label,
                items=_curves(drawn, value, text),
                x=_numbers_axis(drawn),
                y=value_axis(title, values(drawn, value)),
            )
            for label, (title, value, text) in shown.items()
        ],
        choose="Of",
        picture="step",
    )


def _cost(drawn: Sequence[Strategy], currency: str) -> Figure:
    return Figure(
        id="cost",
        title="Cost of an epoch",
        about=f"What an epoch costs in {currency}: all nodes are paid for as long as it takes, so that what they lose "
        "in efficiency is what it costs more.",
        says=f"Predicted cost of an epoch over {unit(drawn)}. "
        + _said(drawn, lambda row: row.cost, lambda value: f"{figure(value)} {currency}"),
        views=[
            View(
                items=_curves(drawn, lambda row: row.cost, lambda value: f"{figure(value)} {currency}"),
                x=_numbers_axis(drawn),
                y=value_axis(f"{currency} an epoch", values(drawn, lambda row: row.cost)),
            )
        ],
        picture="cost",
    )


def split_figure(record: SimulationRecord) -> Figure:
    """Draw where a step's time goes, strategy by strategy, as a stack for each number of nodes."""
    drawn = strategies(record)
    return Figure(
        id="split",
        title="Where a step's time goes",
        about="Compute is shared out over the workers; update is what every worker repeats, mostly the optimiser's "
        "step; comm is what the exchanges take; wait is time spent waiting for the slowest worker.",
        says="Where a step's time goes. " + "; ".join(_most(strategy) for strategy in drawn) + ".",
        views=[_split_view(strategy) for strategy in drawn],
        choose="Strategy",
    )


def shares(row: SimulationRow) -> dict[str, float]:
    """Return the parts of a step as percentages of it."""
    parts = {part: float(getattr(row, f"{part}_ms")) for part in PARTS}
    whole = sum(parts.values()) or 1.0
    return {part: 100 * ms / whole for part, ms in parts.items()}


def _split_view(strategy: Strategy) -> View:
    rows = some(strategy.rows, MOST_BARS)
    names = [row.many for row in rows]
    items = []
    for part in PARTS:
        percents = [round(shares(row)[part], 3) for row in rows]
        times = [_ms(getattr(row, f"{part}_ms")) for row in rows]
        told = [f"{share:.1f} % · {time}" for share, time in zip(percents, times, strict=True)]
        items.append(stacked(PART_NAMES[part], part, names, percents, told))
    return stack_view(items, names, Axis(span=(0, 101), unit=" %"), strategy.name)


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


def _curves(drawn: Sequence[Strategy], value: Value, text: Callable[[float], str], factor: float = 1.0) -> list[Item]:
    """Draw every strategy as a line in its band; hollow where there was a formula only."""
    found: list[Item] = []
    for strategy in drawn:
        rows = [(row, each) for row in some(strategy.rows, MOST_POINTS) if (each := value(row))]
        found += [_band(strategy, rows, factor), _curve(strategy, rows, text, factor)] if rows else []
    return found


def _band(strategy: Strategy, rows: Sequence[tuple[SimulationRow, Estimate]], factor: float) -> Band:
    return Band(
        name=strategy.name,
        x=[row.number for row, _ in rows],
        low=[factor * each.low for _, each in rows],
        high=[factor * each.high for _, each in rows],
        colour=strategy.colour,
        opacity=0.18,
        in_legend=False,
    )


def _curve(
    strategy: Strategy,
    rows: Sequence[tuple[SimulationRow, Estimate]],
    text: Callable[[float], str],
    factor: float,
) -> Series:
    return Series(
        name=strategy.name,
        x=[row.number for row, _ in rows],
        y=[factor * each.value for _, each in rows],
        colour=strategy.colour,
        width=2.2,
        dash=strategy.dash,
        marker=MARKERS[strategy.number % len(MARKERS)],
        size=7,
        hollow=[row.method == "closed form" for row, _ in rows],
        told=[f"{strategy.name}, {row.many}: {with_bounds(each, text)}" for row, each in rows],
    )


def _numbers_axis(drawn: Sequence[Strategy]) -> Axis:
    return counts_axis(unit(drawn), [row.number for strategy in drawn for row in strategy.rows])


def _powers_axis(title: str, shown: Iterable[float]) -> Axis:
    """Return an axis on which every doubling takes the same room, with at most a dozen ticks."""
    axis = decades_axis(title, shown)
    low, high = (math.log2(end) for end in axis.span or (1, 2))
    by = 1 if high - low < 8 else 2
    return replace(axis, ticks=[2.0**power for power in range(by * math.ceil(low / by), math.floor(high) + 1, by)])


def _by_formula(drawn: Sequence[Strategy]) -> str:
    some_are = any(row.method == "closed form" for strategy in drawn for row in strategy.rows)
    return "; hollow points come from a formula, the others from following events" if some_are else ""


def _said(drawn: Sequence[Strategy], value: Value, words: Callable[[float], str]) -> str:
    told = []
    for strategy in drawn:
        points = [(row, each) for row in some(strategy.rows, MOST_BARS) if (each := value(row))]
        told.append(f"{strategy.name}: " + ", ".join(f"{words(each.value)} on {row.number:,}" for row, each in points))
    return "; ".join(told) + "."
