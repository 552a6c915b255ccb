"""Figures of the course of runs: their losses, and a timeline of some steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from manyhands.record.run import EvaluationRecord, RunDir, RunRecord
from manyhands.record.sweep import SweepDir, SweepRecord
from manyhands.record.texts import milliseconds
from manyhands.report.drawing import Axis, Bars, Figure, Item, Mark, Series, View, listed
from manyhands.report.losses import MOST_POINTS, LossCurve, loss_curve
from manyhands.report.palette import DASHES, engine_colour
from manyhands.report.stacks import PARTS, stack_height
from manyhands.report.sweep_figures import row_labels
from manyhands.report.timeline import Timeline, read_timeline

ALL_POINTS = 15_000
"""Most points of all loss curves together; with many runs each has fewer."""
FEWEST_POINTS = 60
MOST_NUMBERS = 12
"""Most steps of a timeline that are numbered; of more, none is."""

FigureOf = Callable[[EvaluationRecord], float | None]


@dataclass(frozen=True)
class DrawnRun:
    """A run whose history is drawn."""

    name: str
    engine: str
    order: int
    """Index of the name."""
    first: bool
    """Whether it is the first of its name; others are drawn fainter."""
    run: RunDir


def runs_of(sweep: SweepDir, record: SweepRecord) -> list[DrawnRun]:
    """Return the successful runs of a sweep without its probes, cell by cell, the first repeat first."""
    names = row_labels(record, record.rows)
    drawn = []
    for order, (row, name) in enumerate(zip(record.rows, names, strict=True)):
        good = [m for m in record.measures if m.cell == row.cell.key and m.run and not m.failed]
        drawn += [
            DrawnRun(name, row.cell.engine, order, i == 0, RunDir(sweep.path / measure.run))
            for i, measure in enumerate(sorted(good, key=lambda m: m.repeat))
        ]
    return drawn


def losses(runs: Sequence[DrawnRun]) -> list[Figure]:
    """Draw the losses of all runs in one figure, by step and by time; none where no run has any."""
    most = max(FEWEST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, len(runs))))
    curves = [(run, curve) for run in runs if (curve := loss_curve(run.run, most))]
    if not curves:
        return []
    by_step = [_loss_series(run, curve) for run, curve in curves]
    by_time = [replace(series, x=curve.seconds) for series, (_, curve) in zip(by_step, curves, strict=True)]
    y = Axis(title="training loss")
    ends = {run.name: curve.loss[-1] for run, curve in curves if run.first}
    return [
        Figure(
            id="loss",
            title="Loss curves",
            about=f"Loss on the training data of every run{'; repeats are fainter' if len(curves) > len(ends) else ''}."
            " Where curves lie over each other, the runs gave the same answer; over time, the faster one falls sooner.",
            alt=listed("Training loss", [f"{name} ends at {loss:.4f}" for name, loss in ends.items()]),
            views=[
                View(label="steps", items=by_step, x=Axis(title="step"), y=y),
                View(label="time", items=by_time, x=Axis(title="seconds of training"), y=y),
            ],
            choose="Over",
            picture="loss",
        )
    ]


def _loss_series(run: DrawnRun, curve: LossCurve) -> Series:
    return Series(
        name=run.name,
        x=curve.step,
        y=curve.loss,
        colour=engine_colour(run.engine),
        # Where curves lie over each other, those below show at the sides and through the gaps.
        width=max(1.5, 3.5 - 0.5 * run.order) if run.first else 1,
        dash=DASHES[run.order % len(DASHES)],
        hover=f"{run.name}: {{y}} at {{x}}",
        opacity=1 if run.first else 0.35,
        in_legend=run.first,
    )


def evaluations(names: Sequence[str], records: Sequence[RunRecord]) -> list[Figure]:
    """Draw test loss, accuracy and metrics of all runs by epoch; nothing where no run was tested more than once."""
    if not any(len(record.history) > 1 for record in records):
        return []
    runs = list(zip(names, records, strict=True))
    names_of_metrics = dict.fromkeys(name for r in records for e in r.history for name in e.metrics)
    kinds: list[tuple[str, str, FigureOf]] = [
        ("test loss", "", lambda e: e.test_loss),
        ("test accuracy", " %", lambda e: None if e.test_accuracy is None else 100 * e.test_accuracy),
        *((name, "", partial(_metric_of, name)) for name in names_of_metrics),
    ]
    views = []
    for kind, unit, read in kinds:
        items = [_history_series(name, order, record, read, unit) for order, (name, record) in enumerate(runs)]
        if drawn := [series for series in items if series.x]:
            views.append(View(label=kind, items=drawn, x=Axis(title="epoch"), y=Axis(title=kind, unit=unit)))
    ends = [
        f"{name} ends at a test loss of {record.history[-1].test_loss:.4f}" for name, record in runs if record.history
    ]
    return [
        Figure(
            id="history",
            title="Evaluations",
            about="Figures of the test data at every evaluation of every run, over the epochs.",
            alt=listed("Evaluations", ends),
            views=views,
            choose="Figure",
        )
    ]


def _history_series(name: str, order: int, record: RunRecord, read: FigureOf, unit: str) -> Series:
    values = [(evaluation.epoch, read(evaluation)) for evaluation in record.history]
    points = [(epoch, value) for epoch, value in values if value is not None]
    return Series(
        name=name,
        x=[round(epoch, 4) for epoch, _ in points],
        y=[float(f"{value:.6g}") for _, value in points],
        colour=engine_colour(record.engine),
        width=max(1.5, 3.5 - 0.5 * order),
        dash=DASHES[order % len(DASHES)],
        hover=f"{name}: {{y}}{unit} after {{x}} epochs",
    )


def _metric_of(name: str, evaluation: EvaluationRecord) -> float | None:
    return evaluation.metrics.get(name)


def timelines(runs: Sequence[DrawnRun]) -> list[Figure]:
    """Draw a timeline of some steps on every rank, for the first run of each name; none where no run has one."""
    lines = [(run.name, line) for run in runs if run.first and (line := read_timeline(run.run))]
    if not lines:
        return []
    lines.sort(key=lambda named: -len(named[1].ranks))  # the run with most ranks is the most telling
    said = [
        f"{name}: {len(line.starts_ms)} steps on {len(line.ranks)} ranks in "
        f"{milliseconds(max(piece.end_ms for piece in line.pieces))}"
        for name, line in lines
    ]
    title = "Timeline of some steps"
    return [
        Figure(
            id="timeline",
            title=title,
            about="What every rank did when, in the steps numbered above. Of an exchange, the part that even the last "
            "rank to come took counts as comm, and what others spent before it as wait. Drag to zoom, double-click to "
            "go back.",
            alt=listed(title, said),
            views=[_timeline_view(name, line) for name, line in lines],
            choose="Run",
        )
    ]


def _timeline_view(label: str, line: Timeline) -> View:
    rows = [f"rank {rank}" for rank in line.ranks]
    row_of = {rank: i for i, rank in enumerate(line.ranks)}
    few = len(line.starts_ms) <= MOST_NUMBERS
    items: list[Item] = [Mark(at, str(step) if few else "") for step, at in line.starts_ms.items()]
    for kind in PARTS:
        pieces = [(piece, piece.end_ms - piece.start_ms) for piece in line.pieces if piece.kind == kind]
        items.append(
            Bars(
                name=kind,
                rows=[row_of[piece.rank] for piece, _ in pieces],
                starts=[round(piece.start_ms, 4) for piece, _ in pieces],
                lengths=[round(ms, 4) for _, ms in pieces],
                colour=kind,
                hover=[f"rank {p.rank}, step {p.step}\n{p.name}: {milliseconds(ms)}" for p, ms in pieces],
            )
        )
    return View(label=label, items=items, x=Axis(title="milliseconds"), rows=rows, height=stack_height(rows) + 36)
