"""Every figure can be drawn as a PNG: it shows the numbers of the page, and no text hides another or the data."""

from itertools import pairwise
from pathlib import Path

import pytest
from advised import made_up_advice, stored_advice
from matplotlib.backends.backend_agg import FigureCanvasAgg
from predicted import (
    made_up_simulation,
    made_up_trainings,
    made_up_validation,
    made_up_validations,
    stored_ledger,
    stored_simulation,
)
from stored import stored_run, stored_sweep

from manyhands.report.drawing import Axis, Bars, Series, View
from manyhands.report.files import page_of
from manyhands.report.html import Page
from manyhands.report.png_drawing import draw, save_pictures

LONG = "a task with a $name$ that is longer than others.py:task"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Page]:
    """Return a page of each kind, and one with very many workers."""
    folder = tmp_path_factory.mktemp("stored")
    trained = {"trained": made_up_trainings(target=0.97), "target_accuracy": 0.97}
    sources = [
        stored_sweep(folder / "strong", repeats=2, cores=4, syncs=("allreduce", "gossip")),
        stored_sweep(folder / "weak", kind="weak", workers=range(1, 17), engines=("hybrid",), repeats=1),
        stored_simulation(folder / "simulation", made_up_simulation(**trained, cluster="a$b$c")),
        stored_ledger(folder / "validations", [*made_up_validations(tasks=("mlp",)), made_up_validation(task=LONG)]),
        stored_advice(folder / "advice", made_up_advice(max_cost=0.7)),
    ]
    return [*map(page_of, sources), page_of([stored_run(folder / "run", workers=3)])]


def test_every_view_is_drawn_and_its_texts_are_apart(pages: list[Page]) -> None:
    for page in pages:
        for figure in page.figures:
            for view in figure.views[:: max(1, len(figure.views) - 1)]:  # the first and the last
                sheet = draw(view, f"{figure.title} · {page.title}")
                FigureCanvasAgg(sheet).draw()
                [axes], [legend] = sheet.axes, sheet.legends
                around = axes.get_tightbbox()
                assert around
                assert legend.get_window_extent().y1 <= around.y0 + 1, f"{figure.id}: the legend is below"
                for box in (around, legend.get_window_extent()):
                    assert -1 <= box.x0 < box.x1 <= sheet.bbox.x1 + 1, f"{figure.id}: nothing is cut off"
                for axis in (axes.xaxis, axes.yaxis):
                    low, high = sorted(axis.get_view_interval())
                    ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
                    boxes = [tick.label1.get_window_extent() for tick in ticks if tick.label1.get_text()]
                    assert len(boxes) > 1 or len(view.rows) == 1 or len(view.x.ticks) == 1, f"{figure.id}: has ticks"
                    assert not [pair for pair in pairwise(boxes) if pair[0].overlaps(pair[1])], f"{figure.id}: overlaps"


def test_a_png_shows_the_numbers_of_the_figure(pages: list[Page]) -> None:
    for view in (figure.views[0] for page in pages for figure in page.figures):
        [axes] = draw(view, "").axes
        lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]  # type: ignore[arg-type]
        for series in (item for item in view.items if isinstance(item, Series) and item.width and item.x):
            assert (list(series.x), list(series.y)) in lines
        widths = [bar.get_width() for bar in axes.patches]  # type: ignore[attr-defined]
        bars = [length for item in view.items if isinstance(item, Bars) for length in item.lengths]
        assert not bars or widths == pytest.approx(bars)


def test_parts_go_on_to_the_right_and_to_the_left_of_zero() -> None:
    parts = [Bars(name=str(i), rows=[0], lengths=[length], colour="comm") for i, length in enumerate((60, -5, 45, -2))]
    [axes] = draw(View(items=parts, x=Axis(), rows=["one"]), "").axes
    assert [bar.get_x() for bar in axes.patches] == [0, 0, 60, -5]  # type: ignore[attr-defined]


def test_figures_without_a_picture_are_on_the_page_only(pages: list[Page], tmp_path: Path) -> None:
    files = save_pictures(pages[0].figures, pages[0].title, tmp_path)
    assert [file.stem for file in files] == [figure.picture for figure in pages[0].figures if figure.picture]
    assert set(files) == set(tmp_path.iterdir())
    assert {"lost", "timeline"} <= {figure.id for figure in pages[0].figures if not figure.picture}
