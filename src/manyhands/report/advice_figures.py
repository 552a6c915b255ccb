"""Figures of advice: all ways that were looked at, and the steps of each batch beside the noise scale."""

import math
from dataclasses import replace

from manyhands.record.advice import AdvicePoint, AdviceRecord, AdviceRow
from manyhands.record.texts import count, duration, figure, figure_percent, milliseconds, workers_name
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
from manyhands.report.palette import MARKERS, series_colour
from manyhands.report.scores import grouped

HEIGHT = 420
SCALE = "noise scale"


def advice_figures(record: AdviceRecord) -> list[Figure]:
    """Return the figures that the record has data for."""
    if not record.looked_at:
        return []
    return [ways_figure(record), *([batch_figure(record)] if _batches(record) else [])]


def way_name(way: AdvicePoint | AdviceRow) -> str:
    """Return a way's name: `mpi ×4 allreduce, batch 256`; one worker has no strategy."""
    sync = f" {way.sync}" if way.workers > 1 else ""
    return f"{workers_name(way.engine, way.workers)}{sync}, batch {way.batch_size:,}"


def ways_figure(record: AdviceRecord) -> Figure:
    """Draw the time of every way against its efficiency, and against its cost where there is a price."""
    ways = record.looked_at
    time = decades_axis("predicted time to the accuracy (s)", [way.time_s for way in ways])
    efficiency = decades_axis("efficiency", [100 * way.efficiency for way in ways], " %")
    is_priced = bool(record.currency) and all(way.cost is not None for way in ways)
    cost = decades_axis(record.currency, [way.cost or 0.0 for way in ways])
    hollow = "" if all(way.trained for way in ways) else "; of hollow points the noise scale tells the steps"
    best = [
        f"{way_name(row)}: {duration(row.time_s.value)}, {figure_percent(row.efficiency.value)}" for row in record.best
    ]
    return Figure(
        id="ways",
        title="All ways",
        about=f"Predicted time until {100 * record.target_accuracy:g} % against how well the workers are used"
        f"{', or what it costs' if is_priced else ''}: the further left the sooner. Ringed and numbered are "
        f"the best{hollow}.",
        alt=f"Predicted time against efficiency of {count(len(ways), 'way')}. The best are {'; '.join(best)}.",
        views=[
            _ways_view(record, "efficiency", time, efficiency),
            *([_ways_view(record, "cost", time, cost)] if is_priced else []),
        ],
        choose="Against",
        picture="ways",
    )


def _height(way: AdvicePoint | AdviceRow, against: str) -> float:
    """Return the place of a way along y: its efficiency in percent, or its cost."""
    value = getattr(way, against)
    number = value if isinstance(way, AdvicePoint) else value and value.value
    return 100 * number if against == "efficiency" else number or math.nan


def _ways_view(record: AdviceRecord, against: str, x: Axis, y: Axis) -> View:
    """Draw all ways by strategy, one worker for itself, with rings around the best."""
    items: list[Item] = []
    groups = grouped(record.looked_at, lambda way: way.sync if way.workers > 1 else "one worker")
    for number, (name, ways) in enumerate(groups.items()):
        points = Series(
            name=name,
            x=[way.time_s for way in ways],
            y=[_height(way, against) for way in ways],
            colour=series_colour(number),
            marker=MARKERS[number % len(MARKERS)],
            size=7,
            hollow=[not way.trained for way in ways],
            hover=[_hover(way, record.currency) for way in ways],
        )
        items.append(points)
    if against == "cost" and record.max_cost is not None:
        times = [way.time_s for way in record.looked_at]
        items.append(dashed("the most that it may cost", [min(times), max(times)], [record.max_cost] * 2))
    best = Series(
        name="the best",
        x=[row.time_s.value for row in record.best],
        y=[_height(row, against) for row in record.best],
        colour="text",
        marker="ring",
        size=16,
        labels=[str(number) for number, _ in enumerate(record.best, 1)],
    )
    return View(label=against, items=[*items, best], x=x, y=y, height=HEIGHT)


def _hover(way: AdvicePoint, currency: str) -> str:
    cost = "" if way.cost is None else f", {figure(way.cost)} {currency}"
    steps = f"{figure(way.steps)} steps of {milliseconds(way.step_ms)}"
    return f"{way_name(way)}\n{duration(way.time_s)}, {figure_percent(way.efficiency)} efficient{cost}\n{steps}"


def _batches(record: AdviceRecord) -> list[AdvicePoint]:
    """Return the ways of one worker, which have the steps of each batch; the smallest batch first."""
    return sorted((way for way in record.looked_at if way.workers == 1), key=lambda way: way.batch_size)


def batch_figure(record: AdviceRecord) -> Figure:
    """Draw the steps, and the samples, that each batch takes, beside the noise scale of the gradient."""
    ways = _batches(record)
    sizes = [way.batch_size for way in ways]
    reach = max(2.0 * max(sizes), 2 * record.critical_low)
    scale = (max(1.0, record.critical_low), reach if record.critical_high is None else record.critical_high)
    x = replace(counts_axis("batch", [*sizes, *map(math.ceil, scale)]), ticks=sizes)
    samples = [way.steps * way.batch_size for way in ways]
    return Figure(
        id="batch",
        title="Batch and noise scale",
        about="What a batch takes to the accuracy. Below the noise scale of the gradient, whose 90 % interval is grey, "
        "twice the batch takes nearly half the steps; far beyond it, no fewer. Of hollow points that scale tells the "
        "steps, the others were trained.",
        alt=listed("Steps by batch", [f"{way.batch_size:,}: {figure(way.steps)}" for way in ways]),
        views=[
            _batch_view(record, "steps", [way.steps for way in ways], scale, x),
            _batch_view(record, "samples", samples, scale, x),
        ],
        choose="In",
        picture="batch",
    )


def _batch_view(record: AdviceRecord, label: str, values: list[float], scale: tuple[float, float], x: Axis) -> View:
    ways, middle = _batches(record), record.critical_batch
    bottom, top = 1e-6 * min(values), 2 * max(values)  # beyond what is shown, on either kind of axis
    low, high = [bottom, bottom], [top, top]
    interval = Band(name=f"{SCALE}, 90 %", x=scale, low=low, high=high, colour="muted", opacity=0.2)
    line = Series(
        name="one worker",
        x=[way.batch_size for way in ways],
        y=values,
        colour=series_colour(0),
        width=2.2,
        marker="circle",
        hollow=[not way.trained for way in ways],
        hover=[f"batch {way.batch_size:,}: {figure(value)}" for way, value in zip(ways, values, strict=True)],
    )
    centre = [dashed(SCALE, [middle, middle], [bottom, top])] if middle is not None else []
    return View(
        label=label,
        items=[interval, *centre, line],
        x=x,
        y=value_axis(f"{label} to the accuracy", values),
        height=HEIGHT,
    )
