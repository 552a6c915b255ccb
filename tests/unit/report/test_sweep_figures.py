"""Figures show the record's numbers, in colours that stay the same, as plotly accepts them."""

import json
from pathlib import Path

import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import made_up_cells, made_up_sweep
from reading import drawn
from stored import stored_run, stored_sweep

from manyhands.record.labels import cell_name
from manyhands.record.sweep import Kind, Row, SweepRecord
from manyhands.report.curves import curves, fitted_speed_up
from manyhands.report.drawing import Figure, Series
from manyhands.report.histories import losses, runs_of, timelines
from manyhands.report.palette import BARS, DARK, LIGHT, engine_colour
from manyhands.report.runs import run_figures
from manyhands.report.sweep_figures import row_labels, sweep_figures


def _named(record: SweepRecord) -> dict[str, Figure]:
    return {figure.id: figure for figures in sweep_figures(record).values() for figure in figures}


@pytest.mark.parametrize("kind", ["strong", "weak"])
def test_plotly_accepts_every_view(tmp_path: Path, kind: str) -> None:
    sweep = stored_sweep(tmp_path / "sweep", kind=kind, workers=(1, 2, 16), engines=("mpi", "hybrid"), repeats=2)
    record = sweep.read()
    runs = runs_of(sweep, record)
    figures = [
        *_named(record).values(),
        *losses(runs),
        *timelines(runs),
        *run_figures([stored_run(tmp_path / "r").read()]),
    ]
    for figure in figures:
        for number in range(len(figure.views)):
            shown = drawn(figure, number)
            assert "@" not in json.dumps(shown), "all colours are known"
            go.Figure(shown)  # refuses names and values that plotly does not know


def test_speed_up_and_efficiency_show_values_and_intervals() -> None:
    record = made_up_sweep(cores=4)
    figures = _named(record)
    for name, field, factor in (("speed-up", "speed_up", 1), ("efficiency", "efficiency", 100)):
        traces = {trace["name"]: trace for trace in drawn(figures[name])["data"]}
        for curve in curves(record):
            trace = traces[curve.name]
            rows = [record.rows[0], *curve.rows]
            assert [told.partition(" workers: ")[0] for told in trace["customdata"]] == [
                f"{curve.name}, {row.cell.size}" for row in rows
            ]
            assert trace["x"] == pytest.approx([row.cell.size for row in rows], rel=0.031)
            for i, row in enumerate(rows):
                interval = getattr(row, field)
                assert trace["y"][i] == pytest.approx(factor * interval.value)
                assert trace["y"][i] + trace["error_y"]["array"][i] == pytest.approx(factor * interval.high)
                assert trace["y"][i] - trace["error_y"]["arrayminus"][i] == pytest.approx(factor * interval.low)
                assert (trace["marker"]["color"][i] == DARK["panel"]) == row.oversubscribed


def test_ideal_is_ideal() -> None:
    figures = _named(made_up_sweep("weak"))
    ideal = {
        name: next(t for t in drawn(figures[name])["data"] if t["name"] == "ideal")
        for name in ("speed-up", "efficiency", "weak")
    }
    assert ideal["speed-up"]["x"] == ideal["speed-up"]["y"]
    assert set(ideal["efficiency"]["y"]) == {100}
    record = made_up_sweep("weak")
    assert record.rows[0].step_ms
    assert set(ideal["weak"]["y"]) == {record.rows[0].step_ms.value}


def test_each_view_of_the_speed_up_shows_one_law() -> None:
    figure = _named(made_up_sweep())["speed-up"]
    assert [view.label for view in figure.views] == ["USL", "Amdahl", "none"]
    for number, view in enumerate(figure.views):
        shown = [trace["name"] for trace in drawn(figure, number)["data"]]
        laws = {name.rpartition(", ")[2] for name in shown} - {"ideal", "threads", "mpi"}
        assert laws == ({view.label} if view.label != "none" else set())


def test_laws_begin_at_one_worker_and_stay_below_the_ideal() -> None:
    for kind in ("strong", "weak"):
        for fit in made_up_sweep(kind).fits:  # type: ignore[arg-type]
            assert fitted_speed_up(fit, 1) == pytest.approx(1)
            assert all(fitted_speed_up(fit, n) <= n + 1e-9 for n in range(1, 64))


def test_splits_are_whole_and_in_both_units() -> None:
    record = made_up_sweep()
    figure = _named(record)["split"]
    percent, millis = (drawn(figure, number)["data"] for number in (0, 1))
    for i, row in enumerate(record.rows):
        assert sum(trace["x"][i] for trace in percent) == pytest.approx(100, abs=0.01)
        for trace in millis:
            assert trace["x"][i] == pytest.approx(getattr(row, f"{trace['name']}_ms"), abs=1e-6)
        assert percent[0]["y"][i] == cell_name(row.cell)


def test_lost_percents_and_work_done_are_all_there_was() -> None:
    for record in (made_up_sweep(cores=4), made_up_sweep(sample_ms=1.0, start_ms=-0.05)):
        figure = _named(record)["lost"]
        for i in range(len(record.rows) - 1):
            assert sum(trace["x"][i] for trace in drawn(figure)["data"]) == pytest.approx(100, abs=0.3)


SIZES = st.lists(st.integers(1, 600), min_size=1, max_size=3, unique=True)


@settings(max_examples=25)
@given(st.sampled_from(["strong", "weak"]), SIZES, st.sets(st.sampled_from([0, 28, 56]), min_size=1))
def test_no_two_rows_are_called_the_same(kind: Kind, batches: list[int], images: set[int]) -> None:
    cells = made_up_cells(
        kind,
        (1, 2, 3, 4),
        ("threads", "hybrid"),
        ("allreduce", "gossip"),
        batch_sizes=batches,
        image_sizes=sorted(images),
    )
    rows = [Row(cell=cell, repeats=1) for cell in cells if cell.role != "probe"]
    record = made_up_sweep(workers=(1,), repeats=1).model_copy(update={"kind": kind, "cells": cells, "rows": rows})
    labels = row_labels(record, rows)
    assert len(set(labels)) == len(rows)
    assert all(("batch" in label) == (len(batches) > 1) for label in labels)
    assert all(("images" in label) == (len(images) > 1) for label in labels)


def test_one_run_has_no_interval_in_its_figures() -> None:
    figure = _named(made_up_sweep(repeats=1))["speed-up"]
    assert "%" not in figure.about
    assert "%:" not in json.dumps(drawn(figure), ensure_ascii=False)
    for repeats, holds in ((5, "93.8 %"), (7, "95 %")):
        figure = _named(made_up_sweep(repeats=repeats))["speed-up"]
        assert f"bars are {holds} intervals" in figure.about
        series = [trace for trace in drawn(figure, -1)["data"] if "customdata" in trace]
        told = [(x > 1, text) for trace in series for x, text in zip(trace["x"], trace["customdata"], strict=True)]
        assert told
        assert all((holds in text) == several for several, text in told), "one worker is compared with itself"


def test_a_law_that_does_not_fit_is_not_drawn() -> None:
    record = made_up_sweep()
    bad = [fit.model_copy(update={"error_pct": 62.0}) for fit in record.fits]
    figure = _named(record.model_copy(update={"fits": bad}))["speed-up"]
    [view] = figure.views
    assert {item.name for item in view.items if isinstance(item, Series)} == {"ideal", "threads", "mpi"}


def test_an_engine_has_one_colour_everywhere(tmp_path: Path) -> None:
    sweep = stored_sweep(
        tmp_path / "sweep", engines=("threads", "mpi", "torch"), syncs=("allreduce", "gossip"), repeats=1
    )
    record = sweep.read()
    runs = runs_of(sweep, record)
    figures = {**_named(record), "loss": losses(runs)[0]}
    for name in ("speed-up", "efficiency", "accuracy", "loss"):
        for item in (item for view in figures[name].views for item in view.items):
            engine = item.name.split()[0].rstrip(",")  # type: ignore[union-attr]
            if engine != "ideal":
                assert item.colour == engine_colour(engine)  # type: ignore[union-attr]
    colours = [engine_colour(engine) for engine in ("serial", "threads", "mpi", "hybrid", "torch", "ray", "new")]
    assert len(set(colours)) == len(colours)
    assert LIGHT.keys() == DARK.keys()


def test_curves_of_one_engine_differ_in_more_than_colour() -> None:
    figure = _named(made_up_sweep(engines=("mpi",), syncs=("allreduce", "gossip"), batch_sizes=(64, 512)))["speed-up"]
    shown = [trace for trace in drawn(figure)["data"] if "marker" in trace]
    assert len({(trace["line"]["dash"], trace["marker"]["symbol"]) for trace in shown}) == len(shown) == 4


def test_figures_without_data_are_left_out() -> None:
    assert set(_named(made_up_sweep(workers=(1,)))) == {"split"}
    assert set(_named(made_up_sweep(failing={"": "killed"}))) == set()
    bare = made_up_sweep().model_copy(update={"fits": [], "findings": []})
    assert "lost" not in _named(bare)
    assert len(_named(bare)["speed-up"].views) == 1
    assert "weak" not in _named(made_up_sweep())


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_lines_and_texts_stand_out(colours: dict[str, str]) -> None:
    """WCAG 2: 4.5 for text, 3 for lines."""
    lines = ("serial-engine", "threads", "mpi", "hybrid", "torch", "ray", "other")
    pairs = [("text", "panel", 4.5), ("muted", "panel", 4.5), *((f"on-{part}", part, 4.5) for part in BARS)]
    for front, back, least in [*pairs, *((line, "panel", 3.0) for line in lines)]:
        dark, light = sorted(_luminance(colours[name]) for name in (front, back))
        ratio = (light + 0.05) / (dark + 0.05)
        assert ratio >= least, f"{front} on {back}: {ratio:.2f}"
