"""Figures of a simulation: step time, speed-up, efficiency and cost against nodes, and where a step's time goes."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from manyhands.record.simulation import Estimate, SimulationRecord, SimulationRow
from manyhands.record.texts import duration, factor, figure, milliseconds, percent, with_bounds
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
    listed,
    value_axis,
)
from manyhands.report.palette import DASHES, MARKERS, SERIES, series_colour
from manyhands.report.scores import grouped
from manyhands.report.stacks import PARTS, parts_ms, split_bars, stack_view

MOST_POINTS = 60
"""Most points of a curve; of more rows, some are drawn."""
MOST_BARS = 12
"""Most bars of one strategy."""
PART_NAMES = {part: "update" if part == "serial" else part for part in PARTS}
"""Names of a step's parts: in a simulation, the serial part is mostly the update of the weights."""

Text = Callable[[float], str]


def strategies(record: SimulationRecord) -> dict[str, list[SimulationRow]]:
    """Group the rows by strategy, the fewest nodes first."""
    groups = grouped(record.rows, lambda row: row.sync)
    return {sync: sorted(rows, key=lambda row: row.number) for sync, rows in groups.items()}


def some(rows: Sequence[SimulationRow], most: int) -> list[SimulationRow]:
    """Return at most `most` rows, evenly spread, the first and the last among them."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


def scaling_figures(record: SimulationRecord) -> list[Figure]:
    """Draw speed-up, efficiency, step time, epoch time and cost against nodes; nothing without rows."""
    if not record.rows:
        return []
    figures = [_speed_up(record), _efficiency(record), _times(record)]
    return [*figures, _cost(record)] if any(row.cost for row in record.rows) else figures


def _speed_up(record: SimulationRecord) -> Figure:
    workers = {row.number: float(row.workers) for row in record.rows}
    ideal = dashed("ideal", sorted(workers), [workers[n] for n in sorted(workers)])
    y = _powers_axis("speed-up over one worker", [*_values(record, "speed_up"), *workers.values()])
    view = _view(record, "speed_up", factor, y)
    formula = any(row.method == "closed form" for row in record.rows)
    hollow = "; hollow points come from a formula, the others from following events" if formula else ""
    return Figure(
        id="speed-up",
        title="Speed-up",
        about="Samples per second against one worker alone; the band holds 90 % of what is expected, the dashed line "
        f"is the ideal{hollow}.",
        alt=_listed("speed-up", record, "speed_up", lambda value: f"{figure(value)} times"),
        views=[replace(view, items=[ideal, *view.items])],
        picture="speed-up",
    )


def _efficiency(record: SimulationRecord) -> Figure:
    y = Axis(title="efficiency", span=(0, 106 * max([1.0, *_values(record, "efficiency")])), unit=" %")
    return Figure(
        id="efficiency",
        title="Efficiency",
        about="Speed-up as a share of the ranks, servers included: 100 % is the ideal, what is missing is lost.",
        alt=_listed("efficiency", record, "efficiency", lambda value: f"{100 * value:.0f} percent"),
        views=[_view(record, "efficiency", lambda value: percent(100 * value), y, scale=100)],
        picture="efficiency",
    )


def _times(record: SimulationRecord) -> Figure:
    steps = value_axis("step (ms)", _values(record, "step_ms"))
    epochs = value_axis("epoch (s)", _values(record, "epoch_s"))
    return Figure(
        id="time",
        title="Time",
        about="What a step takes, and what an epoch takes, in which every sample is seen once: with failures, where "
        "the cluster has some.",
        alt=_listed("time of a step", record, "step_ms", milliseconds),
        views=[
            _view(record, "step_ms", milliseconds, steps, label="step"),
            _view(record, "epoch_s", duration, epochs, label="epoch"),
        ],
        choose="Of",
        picture="step",
    )


def _cost(record: SimulationRecord) -> Figure:
    def text(value: float) -> str:
        return f"{figure(value)} {record.currency}"

    return Figure(
        id="cost",
        title="Cost of an epoch",
        about=f"What an epoch costs in {record.currency}: all nodes are paid for as long as it takes, so that what "
        "they lose in efficiency is what it costs more.",
        alt=_listed("cost of an epoch", record, "cost", text),
        views=[_view(record, "cost", text, value_axis(f"{record.currency} an epoch", _values(record, "cost")))],
        picture="cost",
    )


def split_figure(record: SimulationRecord) -> Figure:
    """Draw where a step's time goes, strategy by strategy, as a stack for each number of nodes."""
    last_rows = {sync: rows[-1] for sync, rows in strategies(record).items()}
    said = {
        f"{sync} on {row.many}": [f"{PART_NAMES[part]} {share:.0f} percent" for part, share in shares(row).items()]
        for sync, row in last_rows.items()
    }
    title = "Where a step's time goes"
    return Figure(
        id="split",
        title=title,
        about="Compute is shared out over the workers; update is what every worker repeats, mostly the optimiser's "
        "step; comm is what the exchanges take; wait is time spent waiting for the slowest worker.",
        alt=listed(title, [f"{name}: {', '.join(parts)}" for name, parts in said.items()]),
        views=[_split_view(sync, some(rows, MOST_BARS)) for sync, rows in strategies(record).items()],
        choose="Strategy",
    )


def shares(row: SimulationRow) -> dict[str, float]:
    """Return each part of a step as a percentage of the step."""
    whole = sum(parts_ms(row).values()) or 1.0
    return {part: 100 * ms / whole for part, ms in parts_ms(row).items()}


def _split_view(sync: str, rows: Sequence[SimulationRow]) -> View:
    items = split_bars([(row.many, parts_ms(row)) for row in rows], PART_NAMES)
    return stack_view(items, [row.many for row in rows], Axis(span=(0, 101), unit=" %"), sync)


def _estimates(rows: Iterable[SimulationRow], name: str) -> list[tuple[SimulationRow, Estimate]]:
    """Return the rows with their estimate `name`, without rows that have none."""
    return [(row, estimate) for row in rows if (estimate := getattr(row, name))]


def _values(record: SimulationRecord, name: str) -> list[float]:
    """Return all finite values and bounds of the estimate `name`."""
    estimates = [estimate for _, estimate in _estimates(record.rows, name)]
    return [bound for e in estimates for bound in (e.low, e.value, e.high) if math.isfinite(bound)]


def _view(record: SimulationRecord, name: str, text: Text, y: Axis, *, label: str = "", scale: float = 1.0) -> View:
    """Draw the estimate `name` of every strategy as a line in its band; hollow where there was a formula only."""
    items: list[Item] = []
    for number, (sync, rows) in enumerate(strategies(record).items()):
        points = _estimates(some(rows, MOST_POINTS), name)
        xs, colour = [row.number for row, _ in points], series_colour(number)
        band = Band(
            name=sync,
            x=xs,
            low=[scale * estimate.low for _, estimate in points],
            high=[scale * estimate.high for _, estimate in points],
            colour=colour,
            opacity=0.18,
            in_legend=False,
        )
        line = Series(
            name=sync,
            x=xs,
            y=[scale * estimate.value for _, estimate in points],
            colour=colour,
            width=2.2,
            dash=DASHES[number // len(SERIES) % len(DASHES)],  # tells strategies of the same colour apart
            marker=MARKERS[number % len(MARKERS)],
            size=7,
            hollow=[row.method == "closed form" for row, _ in points],
            hover=[f"{sync}, {row.many}: {with_bounds(estimate, text)}" for row, estimate in points],
        )
        items += [band, line] if points else []
    x = counts_axis(record.by, [row.number for row in record.rows])
    return View(label=label, items=items, x=x, y=y)


def _powers_axis(title: str, values: Iterable[float]) -> Axis:
    """Return a logarithmic axis with at most a dozen ticks, at powers of two."""
    axis = decades_axis(title, values)
    low, high = (math.log2(end) for end in axis.span or (1, 2))
    by = 1 if high - low < 8 else 2
    return replace(axis, ticks=[2.0**power for power in range(by * math.ceil(low / by), math.floor(high) + 1, by)])


def _listed(what: str, record: SimulationRecord, name: str, text: Text) -> str:
    texts = []
    for sync, rows in strategies(record).items():
        points = _estimates(some(rows, MOST_BARS), name)
        texts.append(f"{sync}: " + ", ".join(f"{text(estimate.value)} on {row.number:,}" for row, estimate in points))
    return listed(f"Predicted {what} over {record.by}", texts)
