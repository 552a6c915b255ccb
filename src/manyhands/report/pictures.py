"""The main figures as pictures, for READMEs and papers."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from manyhands.record import Interval, Row, SweepDir, SweepRecord
from manyhands.report.columns import split_percent
from manyhands.report.curves import Curve, curves, fitted_speed_up, reach
from manyhands.report.figures import REACH, row_labels
from manyhands.report.histories import Drawn, runs_of
from manyhands.report.losses import loss_curve
from manyhands.report.palette import LIGHT, engine_colour
from manyhands.report.runs import Stored, drawn_runs, parts_ms, run_names
from manyhands.report.stacks import PARTS
from manyhands.report.words import task_name

DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "D", "^", "X", "P")


def sweep_pictures(sweep: SweepDir, record: SweepRecord, to: Path) -> list[Path]:
    """Draw the pictures of a sweep that its record can fill; return their files."""
    drawn = [curve for curve in curves(record) if curve.rows]
    rows = [row for row in record.rows if row.repeats]
    runs = runs_of(sweep, record)
    title = plain(f"{task_name(record.task)}, {record.kind} scaling")
    found = []
    if any(row.speed_up for curve in drawn for row in curve.rows):
        found += [
            save(to / "speed-up.png", lambda axes: speed_up(axes, drawn), title),
            save(to / "efficiency.png", lambda axes: efficiency(axes, drawn), title),
        ]
    if record.kind == "weak" and drawn:
        found.append(save(to / "weak.png", lambda axes: weak(axes, drawn), title))
    if rows:
        labels = row_labels(record, rows)
        shares = [[split_percent(row, part) or 0.0 for part in PARTS] for row in rows]
        found.append(save(to / "split.png", lambda axes: split(axes, labels, shares), title, _high(len(rows))))
    if any(loss_curve(drawn_run.run) for drawn_run in runs if drawn_run.first):
        found.append(save(to / "loss.png", lambda axes: losses(axes, runs), title))
    return found


def run_pictures(runs: Sequence[Stored], to: Path) -> list[Path]:
    """Draw the pictures of some runs; return their files."""
    records = [record for _, record in runs]
    names, drawn = run_names(records), drawn_runs(runs)
    title = plain(", ".join(dict.fromkeys(task_name(record.task) for record in records)))
    parts = [parts_ms(record) for record in records]
    shares = [[100 * ms / (sum(row.values()) or 1.0) for ms in row.values()] for row in parts]
    found = [save(to / "split.png", lambda axes: split(axes, names, shares), title, _high(len(names)))]
    if any(loss_curve(run.run) for run in drawn):
        found.append(save(to / "loss.png", lambda axes: losses(axes, drawn), title))
    return found


def _high(rows: int) -> float:
    return 1.6 + 0.36 * rows


def save(path: Path, draw: Callable[[Axes], None], title: str, height: float = 4.2) -> Path:
    """Draw one picture and keep it."""
    figure = Figure(figsize=(6.4, height), layout="constrained")
    axes = figure.subplots()
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(color=LIGHT["grid"])
    axes.set_axisbelow(True)
    axes.set_title(title, loc="left", fontsize=11)
    draw(axes)
    figure.savefig(path, dpi=160)
    return path


def speed_up(axes: Axes, drawn: Sequence[Curve]) -> None:
    """Draw speed-up against workers, with intervals, the ideal, and one fitted law a curve."""
    most = _workers(axes, drawn)
    axes.plot([1, most], [1, most], "--", color=LIGHT["muted"], linewidth=1.2, label="ideal")
    for curve in drawn:
        _points(axes, curve, lambda row: row.speed_up)
        if fitting := [fit for fit in curve.fits if fit.describes]:
            fit = fitting[-1]
            xs = [1 + i * (most * REACH - 1) / 60 for i in range(61)]
            axes.plot(xs, [fitted_speed_up(fit, x) for x in xs], ":", color=_colour(curve.engine), linewidth=1.2)
    axes.set(ylabel="speed-up over one worker", **({"yscale": "log"} if most > 8 else {"ylim": (0, None)}))
    axes.legend(frameon=False)


def efficiency(axes: Axes, drawn: Sequence[Curve]) -> None:
    """Draw efficiency against workers."""
    most = _workers(axes, drawn)
    axes.plot([1, most], [100, 100], "--", color=LIGHT["muted"], linewidth=1.2, label="ideal")
    for curve in drawn:
        _points(axes, curve, lambda row: row.efficiency, 100)
    axes.set(ylabel="efficiency (%)", ylim=(0, None))
    axes.legend(frameon=False)


def weak(axes: Axes, drawn: Sequence[Curve]) -> None:
    """Draw the time of a step against workers that each have a batch of their own."""
    _workers(axes, drawn)
    for curve in drawn:
        _points(axes, curve, lambda row: row.step_ms)
    axes.set(ylabel="time per step (ms)", ylim=(0, None))
    axes.legend(frameon=False)


def split(axes: Axes, labels: Sequence[str], shares: Sequence[Sequence[float]]) -> None:
    """Draw where a step's time goes, as a stack for each row."""
    left = [0.0] * len(labels)
    for number, part in enumerate(PARTS):
        widths = [row[number] for row in shares]
        axes.barh(range(len(labels)), widths, left=left, height=0.7, color=LIGHT[part], label=part)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(labels)), [plain(label) for label in labels])
    axes.set(xlabel="percent of a step's time", xlim=(0, 100))
    axes.invert_yaxis()
    axes.figure.legend(frameon=False, ncols=4, loc="outside lower center")


def losses(axes: Axes, runs: Sequence[Drawn]) -> None:
    """Draw the losses of the first run of each name over each other."""
    for drawn in runs:
        if drawn.first and (curve := loss_curve(drawn.run)):
            style = DASHES[drawn.order % len(DASHES)]
            axes.plot(
                curve.step,
                curve.loss,
                style,
                color=_colour(drawn.engine),
                label=plain(drawn.name),
                linewidth=max(1.2, 3 - 0.5 * drawn.order),
            )
    axes.set(xlabel="step", ylabel="training loss")
    axes.legend(frameon=False)


def _points(axes: Axes, curve: Curve, value: Callable[[Row], Interval | None], factor: float = 1.0) -> None:
    """Draw one curve, hollow where ranks had to share cores."""
    found = [(row, i) for row in curve.with_baseline if (i := value(row)) is not None]
    colour, marker = _colour(curve.engine), MARKERS[curve.style % len(MARKERS)]
    axes.errorbar(
        [row.cell.size for row, _ in found],
        [factor * i.value for _, i in found],
        yerr=reach((i for _, i in found), factor),
        color=colour,
        linestyle=DASHES[curve.style % len(DASHES)],
        marker=marker,
        capsize=3,
        label=plain(curve.name),
    )
    shared = [(row.cell.size, factor * i.value) for row, i in found if row.oversubscribed]
    if shared:
        sizes, values = zip(*shared, strict=True)
        axes.plot(sizes, values, marker, color=colour, markerfacecolor="white", linestyle="none", zorder=3)


def _workers(axes: Axes, drawn: Sequence[Curve]) -> int:
    """Set the axis of workers; return the most of them."""
    counts = sorted({1, *(row.cell.size for curve in drawn for row in curve.rows)})
    if counts[-1] > 8:
        axes.set_xscale("log")
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.set(xlabel="workers")
    return counts[-1]


def _colour(engine: str) -> str:
    return LIGHT[engine_colour(engine)[1:]]


def plain(text: str) -> str:
    """Escape what matplotlib would set as a formula."""
    return text.replace("$", r"\$")
