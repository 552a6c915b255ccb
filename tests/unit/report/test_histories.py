"""Losses and timelines, read from what runs leave: thinned, told apart, and skipped where they are damaged."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import STEPS, stored_run, stored_sweep, write_losses

from manyhands.record.run import RunDir, read_steps
from manyhands.report.drawing import Series
from manyhands.report.histories import evaluations, losses, runs_of, timelines
from manyhands.report.losses import loss_curve
from manyhands.report.runs import runs_page
from manyhands.report.tables.runs import learned_table
from manyhands.report.timeline import MOST_SPANS, read_timeline


@settings(max_examples=30)
@given(steps=st.integers(1, 500), most=st.integers(1, 60))
def test_thinned_losses_keep_their_mean_and_their_end(tmp_path_factory, steps: int, most: int) -> None:  # type: ignore[no-untyped-def]
    run = RunDir(tmp_path_factory.mktemp("run"))
    write_losses(run, 2.0, steps)
    curve = loss_curve(run, most)
    assert curve
    assert len(curve.loss) == len(curve.step) == len(curve.seconds) <= most
    assert curve.step[-1] == steps
    assert curve.seconds[-1] == pytest.approx(steps * 2e-3, abs=1e-4)
    assert curve.step == sorted(set(curve.step))
    counts = [b - a for a, b in zip([0.0, *curve.step], curve.step, strict=False)]
    every = [step["loss"] for step in read_steps(run)]
    mean = sum(n * loss for n, loss in zip(counts, curve.loss, strict=True)) / steps
    assert mean == pytest.approx(sum(every) / steps, rel=1e-4)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"step": 1}\n',
        "[1]\n",
        "3\n",
        '{"step": 1, "loss": NaN, "ms": 1}\n',
        '{"step": 1, "loss": null, "ms": 1}\n',
    ],
)
def test_damaged_losses_are_skipped(tmp_path: Path, text: str) -> None:
    run = RunDir(tmp_path)
    assert loss_curve(run) is None, "there is no file"
    run.steps.write_text(text)
    assert loss_curve(run) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"traceEvents": []}',
        '{"traceEvents": [{"name": "x", "ph": "X"}]}',
        '{"traceEvents": [{"name": "x", "cat": "comm", "ph": "X", "pid": 7, "ts": 0, "dur": 1, "args": {"step": 1}}]}',
        '{"traceEvents": [{"name": "x", "cat": "new", "ph": "X", "pid": 0, "ts": 0, "dur": 1, "args": {"step": 1}}]}',
    ],
)
def test_damaged_timelines_are_skipped(tmp_path: Path, text: str) -> None:
    run = RunDir(tmp_path)
    assert read_timeline(run) is None, "there is no file"
    run.trace.write_text(text)
    assert read_timeline(run) is None


def test_a_timeline_tells_waiting_from_exchanging(tmp_path: Path) -> None:
    run = stored_run(tmp_path / "run", workers=3)
    line = read_timeline(run)
    assert line
    events = [e for e in json.loads(run.trace.read_text())["traceEvents"] if e["ph"] == "X"]
    spent: dict[tuple[int, int, str], float] = defaultdict(float)
    for piece in line.pieces:
        spent[piece.rank, piece.step, piece.kind] += piece.end_ms - piece.start_ms
    for step in {event["args"]["step"] for event in events}:
        waits = [spent[rank, step, "wait"] for rank in range(3)]
        assert min(waits) == pytest.approx(0, abs=1e-9), "one comes last and waits for nobody"
        assert max(waits) > 0.01
        for rank in range(3):
            assert spent[rank, step, "comm"] == pytest.approx(0.4), "what the exchange itself took"
            assert spent[rank, step, "serial"] == pytest.approx(0.2), "the update, without the exchange inside it"
            [exchange] = [e for e in events if (e["pid"], e["cat"], e["args"]["step"]) == (rank, "comm", step)]
            assert spent[rank, step, "comm"] + waits[rank] == pytest.approx(exchange["dur"] / 1e3)


def test_pieces_of_a_rank_do_not_lie_over_each_other(tmp_path: Path) -> None:
    line = read_timeline(stored_run(tmp_path / "run", workers=4))
    assert line
    assert min(piece.start_ms for piece in line.pieces) == 0
    for rank in line.ranks:
        own = sorted((p for p in line.pieces if p.rank == rank), key=lambda p: p.start_ms)
        for a, b in pairwise(own):
            assert a.end_ms <= b.start_ms + 1e-9


def test_exchanges_that_do_not_match_are_left_whole(tmp_path: Path) -> None:
    run = stored_run(tmp_path / "run", workers=2)
    found = json.loads(run.trace.read_text())
    first = next(e for e in found["traceEvents"] if e.get("cat") == "comm")
    first["name"] = "broadcast"
    run.trace.write_text(json.dumps(found))
    line = read_timeline(run)
    assert line
    step = first["args"]["step"]
    assert not [p for p in line.pieces if p.kind == "wait" and p.step == step]
    assert [p for p in line.pieces if p.kind == "wait" and p.step != step]


def test_a_long_timeline_keeps_its_first_steps(tmp_path: Path) -> None:
    run = stored_run(tmp_path / "run")
    found = json.loads(run.trace.read_text())
    head = [e for e in found["traceEvents"] if e["ph"] == "M"]
    span = {"name": "forward and backward", "cat": "compute", "ph": "X", "pid": 0, "tid": 0, "dur": 1.0}
    found["traceEvents"] = [*head, *({**span, "ts": float(i), "args": {"step": i}} for i in range(3 * MOST_SPANS))]
    run.trace.write_text(json.dumps(found))
    line = read_timeline(run)
    assert line
    assert len(line.pieces) <= MOST_SPANS
    assert {piece.step for piece in line.pieces} == set(range(len(line.pieces)))


def test_runs_of_a_sweep_are_those_that_went_well_and_are_no_probes(tmp_path: Path) -> None:
    sweep = stored_sweep(
        tmp_path / "sweep", engines=("mpi",), workers=(1, 2, 4), repeats=3, failing={"mpi 4": "killed"}
    )
    runs = runs_of(sweep, sweep.read())
    assert [run.name for run in runs] == ["serial"] * 3 + ["mpi ×2"] * 3
    assert [run.first for run in runs] == [True, False, False] * 2
    [figure] = losses(runs)
    assert [series.in_legend for series in figure.views[0].items if isinstance(series, Series)] == [
        True,
        False,
        False,
    ] * 2
    by_time = figure.views[1].items[0]
    assert isinstance(by_time, Series)
    assert by_time.x[-1] > 0
    [line] = timelines(runs)
    assert [view.label for view in line.views] == ["mpi ×2", "serial"], "most ranks first"


def test_many_runs_share_the_room_for_points(tmp_path: Path) -> None:
    sweep = stored_sweep(tmp_path / "sweep", engines=("mpi",), workers=(1, 2), repeats=30)
    [figure] = losses(runs_of(sweep, sweep.read()))
    points = [len(series.x) for series in figure.views[0].items if isinstance(series, Series)]
    assert len(points) == 60
    assert sum(points) <= 15_000 < 60 * 300 < 60 * STEPS


def test_a_sweep_whose_runs_are_gone_has_no_histories(tmp_path: Path) -> None:
    sweep = stored_sweep(tmp_path / "sweep", engines=("mpi",), workers=(1, 2), repeats=1)
    for run in runs_of(sweep, sweep.read()):
        run.run.steps.unlink()
        run.run.trace.unlink()
    assert losses(runs_of(sweep, sweep.read())) == []
    assert timelines(runs_of(sweep, sweep.read())) == []


def test_evaluations_are_drawn_figure_by_figure(train) -> None:  # type: ignore[no-untyped-def]
    record = train(epochs=3)
    once = record.model_copy(update={"history": record.history[-1:]})
    assert evaluations(["one"], [once]) == []
    parts = [
        e.model_copy(update={"test_accuracy": None, "metrics": {"test loss": i, "mae": 2.0 * i}})
        for i, e in enumerate(record.history)
    ]
    other = record.model_copy(update={"history": parts})
    (figure,) = evaluations(["classes", "sizes"], [record, other])
    assert [view.label for view in figure.views] == ["test loss", "test accuracy", "test loss", "mae"]
    drawn = [[(item.name, list(item.x)) for item in view.items if isinstance(item, Series)] for view in figure.views]
    assert drawn[0] == [("classes", [1, 2, 3]), ("sizes", [1, 2, 3])]
    assert drawn[1] == [("classes", [1, 2, 3])]
    assert drawn[3] == [("sizes", [1, 2, 3])]
    assert [item.y for item in figure.views[3].items if isinstance(item, Series)] == [[0.0, 2.0, 4.0]]


def test_a_run_without_accuracy_is_reported(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    whole = record = train(epochs=2)
    plain = record.model_copy(update={"test_accuracy": None})
    folder = RunDir.find(tmp_path, record.id)
    measured = plain.model_copy(update={"metrics": {"mae": 0.5}})
    for record, text in ((plain, "reaches a test loss of"), (measured, "reaches a mae of 0.5000 on the test data")):
        page = runs_page([(folder, record)])
        assert text in page.headline
        assert page.tiles[1].value != "–"
    assert run_tables([plain, whole])[0] == "–"
    assert "accuracy" not in learned_table([plain, measured]).headings


def run_tables(records) -> list[str]:  # type: ignore[no-untyped-def]
    """Return the accuracies in the table of what was learned."""
    table = learned_table(records)
    return [row[table.headings.index("accuracy")] for row in table.rows]
