"""Figures of what happened during runs: their losses, and a timeline of some steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from manyhands.record import RunDir, SweepDir, SweepRecord
from manyhands.record.texts import duration
from manyhands.report.drawing import Figure, Trace, View, layout, safe
from manyhands.report.figures import row_labels
from manyhands.report.losses import MOST_POINTS, LossCurve, loss_curve
from manyhands.report.palette import DASHES, engine_colour
from manyhands.report.stacks import PARTS, stack_height
from manyhands.report.timeline import Timeline, read_timeline

ALL_POINTS = 15_000
"""Points of all loss curves together; with many runs each has fewer."""
FEWEST_POINTS = 60


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
    data = [_loss_trace(drawn, curve) for drawn, curve in found]
    ends = {drawn.name: curve.loss[-1] for drawn, curve in found if drawn.first}
    return Figure(
        id="loss",
        title="Loss curves",
        about=f"Loss on the training data of every run{'; repeats are fainter' if len(found) > len(ends) else ''}. "
        "Where curves lie over each other, the runs gave the same answer; over time, the faster one falls sooner.",
        says="Training loss. " + "; ".join(f"{name} ends at {loss:.4f}" for name, loss in ends.items()) + ".",
        data=data,
        layout=layout({"title": "step"}, {"title": "training loss"}),
        choose="Over",
        views=[
            View("steps", {"x": [curve.step for _, curve in found]}, {"xaxis.title.text": "step"}),
            View("time", {"x": [curve.seconds for _, curve in found]}, {"xaxis.title.text": "seconds of training"}),
        ],
    )


def _loss_trace(drawn: Drawn, curve: LossCurve) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines" if len(curve.step) > 1 else "markers",
        "name": safe(drawn.name),
        "legendgroup": safe(drawn.name),
        "showlegend": drawn.first,
        "opacity": 1 if drawn.first else 0.35,
        "x": curve.step,
        "y": curve.loss,
        "line": {
            "color": engine_colour(drawn.engine),
            # Where curves lie over each other, those below show at the sides and through the gaps.
            "width": max(1.5, 3.5 - 0.5 * drawn.order) if drawn.first else 1,
            "dash": DASHES[drawn.order % len(DASHES)],
        },
        "hovertemplate": f"{safe(drawn.name)}: %{{y:.4f}} at %{{x:.4~g}}<extra></extra>",
    }


def timelines(runs: Sequence[Drawn]) -> Figure | None:
    """Draw a timeline of some steps on every rank, for the first run of each name; None where no run has one."""
    found = [(drawn.name, line) for drawn in runs if drawn.first and (line := read_timeline(drawn.run))]
    if not found:
        return None
    # Most is to be seen where most ranks took part.
    found.sort(key=lambda named: -len(named[1].ranks))
    views = [View(name, data=_timeline_traces(line), layout=_timeline_layout(line)) for name, line in found]
    return Figure(
        id="timeline",
        title="Timeline of some steps",
        about="What every rank did when, in the steps numbered above. Of an exchange, the part that even the last rank "
        "to come took counts as comm, and what others spent before it as wait. Drag to zoom, double-click to go back.",
        says="Timeline of some steps. " + "; ".join(f"{name}: {_told(line)}" for name, line in found) + ".",
        data=[],
        layout=layout({"title": "milliseconds"}, {}, barmode="overlay", bargap=0.25),
        height=views[0].layout["height"],
        choose="Run",
        views=views,
    )


def _timeline_traces(line: Timeline) -> list[Trace]:
    traces = []
    for kind in PARTS:
        pieces = [piece for piece in line.pieces if piece.kind == kind]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": kind,
                "y": [f"rank {piece.rank}" for piece in pieces],
                "base": [round(piece.start_ms, 4) for piece in pieces],
                "x": [round(piece.end_ms - piece.start_ms, 4) for piece in pieces],
                "marker": {"color": f"@{kind}", "line": {"width": 0}},
                "customdata": [
                    [safe(piece.name), piece.step, duration((piece.end_ms - piece.start_ms) / 1e3)] for piece in pieces
                ],
                "hovertemplate": "%{y}, step %{customdata[1]}<br>%{customdata[0]}: %{customdata[2]}<extra></extra>",
            }
        )
    return traces


def _timeline_layout(line: Timeline) -> dict[str, Any]:
    names = [f"rank {rank}" for rank in line.ranks]
    marks = [
        {
            "type": "line",
            "x0": at,
            "x1": at,
            "yref": "paper",
            "y0": 0,
            "y1": 1,
            "line": {"color": "@muted", "width": 1, "dash": "dot"},
        }
        for at in line.starts_ms.values()
    ]
    few = len(line.starts_ms) <= 12
    numbers = [
        {
            "x": at,
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "xanchor": "left",
            "showarrow": False,
            "text": str(step),
            "font": {"size": 11, "color": "@muted"},
        }
        for step, at in line.starts_ms.items()
        if few
    ]
    # Categories are set in full, so that a rank with nothing to show still has its line.
    return {
        "height": stack_height(names) + 36,
        "shapes": marks,
        "annotations": numbers,
        "yaxis.type": "category",
        "yaxis.categoryorder": "array",
        "yaxis.categoryarray": names,
        "yaxis.range": [len(names) - 0.5, -0.5],
        "xaxis.autorange": True,
        "margin.t": 24,
    }


def _told(line: Timeline) -> str:
    whole = max(piece.end_ms for piece in line.pieces)
    return f"{len(line.starts_ms)} steps on {len(line.ranks)} ranks in {duration(whole / 1e3)}"
