"""Figures of what happened during runs: their losses, and a timeline of some steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from manyhands.record import RunDir, SweepDir, SweepRecord
from manyhands.record.texts import duration
from manyhands.report.drawing import Axis, Bars, Figure, Item, Mark, Series, View
from manyhands.report.figures import row_labels
from manyhands.report.losses import MOST_POINTS, LossCurve, loss_curve
from manyhands.report.palette import DASHES, engine_colour
from manyhands.report.stacks import PARTS, stack_height
from manyhands.report.timeline import Timeline, read_timeline

ALL_POINTS = 15_000
"""Points of all loss curves together; with many runs each has fewer."""
FEWEST_POINTS = 60
MOST_NUMBERS = 12
"""Steps of a timeline that are numbered; of more, none."""


@dataclass(frozen=True)
class Drawn:
    """A run whose history is drawn."""

    name: str
    engine: str
    order: int
    """Which name it is, from 0."""
    first: bool
    """Whether it is the first of its name; others are drawn fainter."""
    run: RunDir


def runs_of(sweep: SweepDir, record: SweepRecord) -> list[Drawn]:
    """Return the runs of a sweep that went well, without its probes; the first repeat of each cell first."""
    rows = {row.cell.key: (row, name) for row, name in zip(record.rows, row_labels(record, record.rows), strict=True)}
    found: list[Drawn] = []
    seen: set[str] = set()
    for measure in sorted(record.measures, key=lambda m: m.repeat):
        if measure.cell in rows and measure.run and not measure.failed:
            row, name = rows[measure.cell]
            order = list(rows).index(measure.cell)
            found.append(
                Drawn(name, row.cell.engine, order, measure.cell not in seen, RunDir(sweep.path / measure.run))
            )
            seen.add(measure.cell)
    return sorted(found, key=lambda drawn: drawn.order)


def losses(runs: Sequence[Drawn]) -> Figure | None:
    """Draw the losses of all runs over each other, by step and by time; None where no run has any."""
    most = max(FEWEST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, len(runs))))
    found = [(drawn, curve) for drawn in runs if (curve := loss_curve(drawn.run, most))]
    if not found:
        return None
    series = [_loss_series(drawn, curve) for drawn, curve in found]
    timed = [replace(each, x=curve.seconds) for each, (_, curve) in zip(series, found, strict=True)]
    y = Axis(title="training loss")
    ends = {drawn.name: curve.loss[-1] for drawn, curve in found if drawn.first}
    return Figure(
        id="loss",
        title="Loss curves",
        about=f"Loss on the training data of every run{'; repeats are fainter' if len(found) > len(ends) else ''}. "
        "Where curves lie over each other, the runs gave the same answer; over time, the faster one falls sooner.",
        says="Training loss. " + "; ".join(f"{name} ends at {loss:.4f}" for name, loss in ends.items()) + ".",
        views=[
            View(label="steps", items=series, x=Axis(title="step"), y=y),
            View(label="time", items=timed, x=Axis(title="seconds of training"), y=y),
        ],
        choose="Over",
        picture="loss",
    )


def _loss_series(drawn: Drawn, curve: LossCurve) -> Series:
    return Series(
        name=drawn.name,
        x=curve.step,
        y=curve.loss,
        colour=engine_colour(drawn.engine),
        # Where curves lie over each other, those below show at the sides and through the gaps.
        width=max(1.5, 3.5 - 0.5 * drawn.order) if drawn.first else 1,
        dash=DASHES[drawn.order % len(DASHES)],
        told=f"{drawn.name}: {{y}} at {{x}}",
        opacity=1 if drawn.first else 0.35,
        in_legend=drawn.first,
    )


def timelines(runs: Sequence[Drawn]) -> Figure | None:
    """Draw a timeline of some steps on every rank, for the first run of each name; None where no run has one."""
    found = [(drawn.name, line) for drawn in runs if drawn.first and (line := read_timeline(drawn.run))]
    if not found:
        return None
    # Most is to be seen where most ranks took part.
    found.sort(key=lambda named: -len(named[1].ranks))
    return Figure(
        id="timeline",
        title="Timeline of some steps",
        about="What every rank did when, in the steps numbered above. Of an exchange, the part that even the last rank "
        "to come took counts as comm, and what others spent before it as wait. Drag to zoom, double-click to go back.",
        says="Timeline of some steps. " + "; ".join(f"{name}: {_told(line)}" for name, line in found) + ".",
        views=[_timeline_view(name, line) for name, line in found],
        choose="Run",
    )


def _timeline_view(label: str, line: Timeline) -> View:
    rows = [f"rank {rank}" for rank in line.ranks]
    number = {rank: i for i, rank in enumerate(line.ranks)}
    few = len(line.starts_ms) <= MOST_NUMBERS
    items: list[Item] = [Mark(at, str(step) if few else "") for step, at in line.starts_ms.items()]
    for kind in PARTS:
        pieces = [(piece, piece.end_ms - piece.start_ms) for piece in line.pieces if piece.kind == kind]
        items.append(
            Bars(
                name=kind,
                rows=[number[piece.rank] for piece, _ in pieces],
                starts=[round(piece.start_ms, 4) for piece, _ in pieces],
                lengths=[round(ms, 4) for _, ms in pieces],
                colour=kind,
                told=[f"rank {p.rank}, step {p.step}\n{p.name}: {duration(ms / 1e3)}" for p, ms in pieces],
            )
        )
    return View(label=label, items=items, x=Axis(title="milliseconds"), rows=rows, height=stack_height(rows) + 36)


def _told(line: Timeline) -> str:
    whole = max(piece.end_ms for piece in line.pieces)
    return f"{len(line.starts_ms)} steps on {len(line.ranks)} ranks in {duration(whole / 1e3)}"
