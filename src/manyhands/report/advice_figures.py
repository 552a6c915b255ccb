"""Figures of advice: all ways that were looked at, and how many steps a batch takes beside the noise scale."""

import math
from collections.abc import Sequence
from dataclasses import replace

from manyhands.record.advice import AdvicePoint, AdviceRecord, AdviceRow
from manyhands.record.texts import count, duration, figure, workers_name
from manyhands.report.drawing import (
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
from manyhands.report.palette import MARKERS, series_colour
from manyhands.report.scores import grouped

HEIGHT = 420
SCALE = "noise scale"


def advice_figures(record: AdviceRecord) -> list[Figure]:
    """Return all figures that the record can fill."""
    if not record.looked_at:
        return []
    return [ways_figure(record), *([batch_figure(record)] if batches(record) else [])]


def way_name(way: AdvicePoint | AdviceRow) -> str:
    """Name a way: `mpi ×4 allreduce, batch 256`; one worker has no strategy."""
    sync = f" {way.sync}" if way.workers > 1 else ""
    return f"{workers_name(way.engine, way.workers)}{sync}, batch {way.batch_size:,}"


def strategies(record: AdviceRecord) -> dict[str, list[AdvicePoint]]:
    """Gather what was looked at by strategy; one worker comes by itself."""
    return grouped(record.looked_at, lambda way: way.sync if way.workers > 1 else "one worker")


def is_priced(record: AdviceRecord) -> bool:
    """Tell whether ways have a cost."""
    return bool(record.currency) and all(way.cost is not None for way in record.looked_at)


def ways_figure(record: AdviceRecord) -> Figure:
    """Draw the time of every way against its efficiency, and against its cost where there is a price."""
    times = [way.time_s for way in record.looked_at]
    axes = {"efficiency": decades_axis("efficiency", [100 * way.efficiency for way in record.looked_at], " %")}
    if is_priced(record):
        axes["cost"] = decades_axis(record.currency, [way.cost or 0.0 for way in record.looked_at])
    time = decades_axis("predicted time to the accuracy (s)", times)
    hollow = (
        "" if all(way.trained for way in record.looked_at) else "; of hollow points the noise scale tells the steps"
    )
    return Figure(
        id="ways",
        title="All ways",
        about=f"Predicted time until {100 * record.target_accuracy:g} % against how well the workers are used"
        f"{', or what it costs' if is_priced(record) else ''}: the further left the sooner. Ringed and numbered are "
        f"the best{hollow}.",
        says=f"Predicted time against efficiency of {count(len(times), 'way')}. {_said(record)}",
        views=[
            View(label=name, items=_ways(record, name), x=time, y=axis, height=HEIGHT) for name, axis in axes.items()
        ],
        choose="Against",
        picture="ways",
    )


def _said(record: AdviceRecord) -> str:
    told = [f"{way_name(row)}: {duration(row.time_s.value)}, {_percent(row.efficiency.value)}" for row in record.best]
    return "The best are " + "; ".join(told) + "."


def _percent(share: float) -> str:
    return f"{figure(100 * share)} %"


def _height(way: AdvicePoint | AdviceRow, against: str) -> float:
    if against == "efficiency":
        share = way.efficiency if isinstance(way, AdvicePoint) else way.efficiency.value
        return 100 * share
    cost = way.cost if isinstance(way, AdvicePoint) else way.cost and way.cost.value
    return cost or math.nan


def _ways(record: AdviceRecord, against: str) -> list[Item]:
    found = [_points(record, name, i, own, against) for i, (name, own) in enumerate(strategies(record).items())]
    if against == "cost" and record.max_cost is not None:
        times = [way.time_s for way in record.looked_at]
        found.append(dashed("the most that it may cost", [min(times), max(times)], [record.max_cost] * 2))
    best = Series(
        name="the best",
        x=[row.time_s.value for row in record.best],
        y=[_height(row, against) for row in record.best],
        colour="text",
        marker="ring",
        size=16,
        labels=[str(number) for number, _ in enumerate(record.best, 1)],
    )
    return [*found, best]


def _points(record: AdviceRecord, name: str, number: int, own: Sequence[AdvicePoint], against: str) -> Series:
    return Series(
        name=name,
        x=[way.time_s for way in own],
        y=[_height(way, against) for way in own],
        colour=series_colour(number),
        marker=MARKERS[number % len(MARKERS)],
        size=7,
        hollow=[not way.trained for way in own],
        told=[f"{way_name(way)}\n{_told(way, record.currency)}" for way in own],
    )


def _told(way: AdvicePoint, currency: str) -> str:
    cost = "" if way.cost is None else f", {figure(way.cost)} {currency}"
    steps = f"{figure(way.steps)} steps of {duration(way.step_ms / 1e3)}"
    return f"{duration(way.time_s)}, {_percent(way.efficiency)} efficient{cost}\n{steps}"


def batches(record: AdviceRecord) -> list[AdvicePoint]:
    """Return the ways of one worker, which tell the steps of each batch; the smallest first."""
    return sorted((way for way in record.looked_at if way.workers == 1), key=lambda way: way.batch_size)


def scale_span(record: AdviceRecord) -> tuple[float, float]:
    """Return between which batches the noise scale lies, as far as a figure of the batches reaches."""
    reach = max(2.0 * max(way.batch_size for way in batches(record)), 2 * record.critical_low)
    return max(1.0, record.critical_low), record.critical_high if record.critical_high is not None else reach


def batch_figure(record: AdviceRecord) -> Figure:
    """Draw the steps, and the samples, that each batch takes, beside the noise scale of the gradient."""
    own = batches(record)
    sizes = [way.batch_size for way in own]
    wide = counts_axis("batch", [*sizes, *(math.ceil(each) for each in scale_span(record))])
    heights = {"steps": [way.steps for way in own], "samples": [way.steps * way.batch_size for way in own]}
    x = replace(wide, ticks=sizes)
    return Figure(
        id="batch",
        title="Batch and noise scale",
        about="What a batch takes to the accuracy. Below the noise scale of the gradient, whose 90 % interval is grey, "
        "twice the batch takes nearly half the steps; far beyond it, no fewer. Of hollow points that scale tells the "
        "steps, the others were trained.",
        says="Steps by batch. " + "; ".join(f"{way.batch_size:,}: {figure(way.steps)}" for way in own) + ".",
        views=[
            View(
                label=name,
                items=_batches(record, values),
                x=x,
                y=value_axis(f"{name} to the accuracy", values),
                height=HEIGHT,
            )
            for name, values in heights.items()
        ],
        choose="In",
        picture="batch",
    )


def _batches(record: AdviceRecord, values: Sequence[float]) -> list[Item]:
    own, middle = batches(record), record.critical_batch
    bottom, top = 1e-6 * min(values), 2 * max(values)  # beyond what is shown, on either kind of axis
    scale = Band(
        name=f"{SCALE}, 90 %",
        x=scale_span(record),
        low=[bottom, bottom],
        high=[top, top],
        colour="muted",
        opacity=0.2,
    )
    line = Series(
        name="one worker",
        x=[way.batch_size for way in own],
        y=values,
        colour=series_colour(0),
        width=2.2,
        marker="circle",
        hollow=[not way.trained for way in own],
        told=[f"batch {way.batch_size:,}: {figure(value)}" for way, value in zip(own, values, strict=True)],
    )
    return [scale, *([dashed(SCALE, [middle, middle], [bottom, top])] if middle is not None else []), line]
