"""The main figures of simulations, validations and advice as pictures, for READMEs and papers."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from manyhands.record.advice import AdviceRecord
from manyhands.record.simulation import Estimate, SimulationRecord, SimulationRow, TrainedRow, Validation
from manyhands.report.advice import title as advice_title
from manyhands.report.advice_figures import batches, scale_span
from manyhands.report.advice_figures import strategies as by_strategy
from manyhands.report.drawing import factor_ticks, is_wide
from manyhands.report.palette import LIGHT, MARKERS, series_colour
from manyhands.report.pictures import DASHES, plain, save
from manyhands.report.pictures import MARKERS as SHAPES
from manyhands.report.scatter import Looks, aim_pct, bounds_pct, error_span, looks, span_ms
from manyhands.report.scores import grouped
from manyhands.report.simulation_figures import MOST_POINTS, Strategy, Value, some, strategies, unit, values
from manyhands.report.words import task_name

SQUARE = 6.0
"""Height of the picture of predicted against measured."""


def validation_pictures(rows: Sequence[Validation], to: Path) -> list[Path]:
    """Draw predicted against measured, and the errors; return the files."""
    if not rows:
        return []
    title = plain(", ".join(grouped(rows, lambda row: task_name(row.task))))
    return [
        save(to / "predicted.png", lambda axes: predicted(axes, rows), title, SQUARE),
        save(to / "errors.png", lambda axes: errors(axes, rows), title),
    ]


def predicted(axes: Axes, rows: Sequence[Validation]) -> None:
    """Draw predicted against measured step times around the diagonal."""
    ends = span_ms(rows)
    axes.plot(ends, ends, "--", color=LIGHT["muted"], linewidth=1.2)
    for row in rows:
        bounds = row.predicted_ms
        reach = [[max(0.0, bounds.value - bounds.low)], [max(0.0, bounds.high - bounds.value)]]
        _point(axes, looks(rows)["engine"], row, row.median_ms, bounds.value, reach)
    axes.set(xscale="log", yscale="log", xlabel="measured step (ms)", ylabel="predicted step (ms)", aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        _label_factors(axis)
    _legend(axes, rows)


def _label_factors(axis: Axis) -> None:
    """Put readable ticks at an axis by factors, however near its ends are to each other."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(FixedLocator(factor_ticks(low, high)))
    axis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:,.9g}"))
    axis.set_minor_locator(NullLocator())


def errors(axes: Axes, rows: Sequence[Validation]) -> None:
    """Draw the errors by number of workers, with the predictions' intervals."""
    look = looks(rows)["engine"]
    groups = sorted(grouped(rows, lambda row: row.workers).items())
    axes.axhspan(-aim_pct(rows), aim_pct(rows), color=LIGHT["grid"], alpha=0.6, linewidth=0)
    axes.axhline(0, color=LIGHT["muted"], linewidth=1.2)
    for place, (_, own) in enumerate(groups):
        for order, row in enumerate(sorted(own, key=lambda row: (look.colour(row), row.error_pct))):
            low, high = bounds_pct(row)
            reach = [[max(0.0, row.error_pct - low)], [max(0.0, high - row.error_pct)]]
            _point(axes, look, row, place + 0.8 * ((order + 0.5) / len(own) - 0.5), row.error_pct, reach)
    axes.set_xticks(range(len(groups)), [str(workers) for workers, _ in groups])
    axes.set(xlabel="workers", ylabel="error of the prediction (%)", ylim=error_span(rows))
    _legend(axes, rows)


def _point(axes: Axes, look: Looks, row: Validation, x: float, y: float, reach: Sequence[Sequence[float]]) -> None:
    """Draw one prediction: hollow where ranks shared cores, ringed where its interval was missed."""
    colour = LIGHT[look.colour(row)[1:]]
    axes.errorbar(
        [x],
        [y],
        yerr=reach,
        color=colour,
        marker=SHAPES[MARKERS.index(look.shape(row))],
        markersize=5,
        markerfacecolor="white" if row.oversubscribed else colour,
        elinewidth=0.9,
    )
    if not row.held:
        axes.plot([x], [y], "o", markersize=11, markerfacecolor="none", color=LIGHT["bad"], markeredgewidth=1.3)


def _legend(axes: Axes, rows: Sequence[Validation]) -> None:
    look = looks(rows)["engine"]
    found = [_entry(name, "o", LIGHT[colour[1:]]) for name, colour in look.colours.items()]
    if len(look.shapes) > 1:
        found += [_entry(task, SHAPES[MARKERS.index(shape)], LIGHT["muted"]) for task, shape in look.shapes.items()]
    if any(row.oversubscribed for row in rows):
        found.append(_entry("more ranks than cores", "o", LIGHT["muted"], hollow=True))
    if not all(row.held for row in rows):
        found.append(_entry("interval missed", "o", LIGHT["bad"], hollow=True))
    axes.figure.legend(handles=found, frameon=False, ncols=4, loc="outside lower center", fontsize=8)


def _entry(name: str, marker: str, colour: str, hollow: bool = False) -> Line2D:
    face = "white" if hollow else colour
    return Line2D([], [], color=colour, marker=marker, linestyle="none", markerfacecolor=face, label=plain(name))


def simulation_pictures(record: SimulationRecord, to: Path) -> list[Path]:
    """Draw the curves of a simulation, and what was trained; return the files."""
    title = plain(f"{task_name(record.task)} on {record.cluster}, predicted")
    drawn = strategies(record)
    wanted: dict[str, tuple[Value, str, float]] = {
        "speed-up": (lambda row: row.speed_up, "speed-up over one worker", 1),
        "efficiency": (lambda row: row.efficiency, "efficiency (%)", 100),
        "step": (lambda row: row.step_ms, "step (ms)", 1),
        "cost": (lambda row: row.cost, f"{record.currency} an epoch", 1),
    }
    found = []
    for name, (value, label, factor) in wanted.items():
        if values(drawn, value):
            found.append(save(to / f"{name}.png", _curves(drawn, value, plain(label), factor), title))
    trained = [row for row in record.trained if row.points]
    if trained:
        found.append(save(to / "accuracy.png", lambda axes: accuracy(axes, record, trained), title))
    return found


def _curves(drawn: Sequence[Strategy], value: Value, label: str, factor: float) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        if label.startswith("speed-up"):
            ideal = sorted({(row.number, row.workers) for strategy in drawn for row in strategy.rows})
            axes.plot(*zip(*ideal, strict=True), "--", color=LIGHT["muted"], linewidth=1.2, label="ideal")
        for strategy in drawn:
            rows = [(row, each) for row in some(strategy.rows, MOST_POINTS) if (each := value(row))]
            _curve(axes, strategy, rows, factor)
        _numbers(axes, drawn)
        wide = label.startswith("speed-up") or (factor == 1 and is_wide(values(drawn, value)))
        axes.set(ylabel=label, **({"yscale": "log"} if wide else {"ylim": (0, None)}))
        if wide:
            _label_factors(axes.yaxis)
        axes.legend(frameon=False, fontsize=8)

    return draw


def _curve(axes: Axes, strategy: Strategy, rows: Sequence[tuple[SimulationRow, Estimate]], factor: float) -> None:
    numbers, colour = [row.number for row, _ in rows], LIGHT[strategy.colour[1:]]
    low, middle, high = ([factor * getattr(each, bound) for _, each in rows] for bound in ("low", "value", "high"))
    axes.fill_between(numbers, low, high, color=colour, alpha=0.18, linewidth=0)
    marker = SHAPES[strategy.number % len(SHAPES)]
    axes.plot(numbers, middle, color=colour, marker=marker, markersize=4, label=plain(strategy.name))


def _numbers(axes: Axes, drawn: Sequence[Strategy]) -> None:
    counts = sorted({row.number for strategy in drawn for row in strategy.rows})
    ticks = counts[:: -(-len(counts) // 12)]
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes.set(xlabel=unit(drawn))


def accuracy(axes: Axes, record: SimulationRecord, trained: Sequence[TrainedRow]) -> None:
    """Draw accuracy against the nodes' time."""
    syncs = list(dict.fromkeys([*(row.sync for row in record.rows), *(row.sync for row in trained)]))
    counts = sorted({row.number for row in trained})
    for row in trained:
        axes.plot(
            [row.time_at(point).value for point in row.points],
            [100 * point.accuracy for point in row.points],
            DASHES[counts.index(row.number) % len(DASHES)],
            color=LIGHT[series_colour(syncs.index(row.sync))[1:]],
            label=plain(f"{row.sync}, {row.number:,}"),
        )
    wide = is_wide([row.time_at(point).value for row in trained for point in row.points])
    axes.set(xlabel="time on the simulated nodes (s)", ylabel="test accuracy (%)", xscale="log" if wide else "linear")
    if wide:
        _label_factors(axes.xaxis)
    axes.legend(frameon=False, fontsize=8, title=f"strategy, {record.by}", title_fontsize=8)


def advice_pictures(record: AdviceRecord, to: Path) -> list[Path]:
    """Draw all ways that were looked at, and the batches beside the noise scale; return the files."""
    if not record.looked_at:
        return []
    title = plain(f"{advice_title(record)}, predicted")
    found = [save(to / "ways.png", lambda axes: ways(axes, record), title)]
    return [*found, *([save(to / "batch.png", lambda axes: batch(axes, record), title)] if batches(record) else [])]


def ways(axes: Axes, record: AdviceRecord) -> None:
    """Draw time against efficiency of all ways, the best ringed and numbered."""
    for number, (name, own) in enumerate(by_strategy(record).items()):
        colour, marker = LIGHT[series_colour(number)[1:]], SHAPES[number % len(SHAPES)]
        faces = [colour if way.trained else "white" for way in own]
        xs, ys = [way.time_s for way in own], [100 * way.efficiency for way in own]
        axes.scatter(xs, ys, s=18, c=faces, edgecolors=colour, marker=marker, label=plain(name))
    for number, row in enumerate(record.best, 1):
        x, y = row.time_s.value, 100 * row.efficiency.value
        axes.plot([x], [y], "o", markersize=11, markerfacecolor="none", color=LIGHT["text"])
        axes.annotate(str(number), (x, y), xytext=(-9, 0), textcoords="offset points", ha="right", va="center")
    axes.set(xscale="log", yscale="log", xlabel="time to the accuracy (s)", ylabel="efficiency (%)")
    for axis in (axes.xaxis, axes.yaxis):
        _label_factors(axis)
    axes.figure.legend(frameon=False, ncols=3, loc="outside lower center", fontsize=8)


def batch(axes: Axes, record: AdviceRecord) -> None:
    """Draw the steps that each batch takes, beside the noise scale of the gradient."""
    own, colour = batches(record), LIGHT[series_colour(0)[1:]]
    sizes = [way.batch_size for way in own]
    axes.axvspan(*scale_span(record), color=LIGHT["muted"], alpha=0.2, linewidth=0, label="noise scale, 90 %")
    if record.critical_batch is not None:
        axes.axvline(record.critical_batch, color=LIGHT["muted"], linestyle="--", linewidth=1.2)
    axes.plot(sizes, [way.steps for way in own], color=colour)
    faces = [colour if way.trained else "white" for way in own]
    axes.scatter(sizes, [way.steps for way in own], c=faces, edgecolors=colour, zorder=3, label="one worker")
    axes.set(xscale="log", yscale="log", xlabel="batch", ylabel="steps to the accuracy")
    _label_factors(axes.yaxis)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.legend(frameon=False, fontsize=8)
