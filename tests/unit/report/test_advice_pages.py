"""Pages of advice: what they show is what the record says."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from advised import made_up_advice, made_up_point, made_up_row, stored_advice
from reading import Reader, drawn

from manyhands.record.advice import AdviceDir, AdviceRecord
from manyhands.report import files as report
from manyhands.report.advice import advice_page
from manyhands.report.advice_figures import batch_figure, way_name, ways_figure
from manyhands.report.html import render
from manyhands.report.plotly_drawing import as_plotly

HERE = AdviceDir(Path("advice/it"))


def _view(record: AdviceRecord, label: str) -> list[dict[str, Any]]:
    figure = ways_figure(record)
    return drawn(figure, [view.label for view in figure.views].index(label))["data"]  # type: ignore[no-any-return]


def test_every_way_is_a_point_and_the_best_are_ringed_and_numbered() -> None:
    record = made_up_advice()
    for label, value in (("efficiency", lambda way: 100 * way.efficiency), ("cost", lambda way: way.cost)):
        *points, rings = _view(record, label)
        places = {(x, y) for trace in points for x, y in zip(trace["x"], trace["y"], strict=True)}
        assert places == {(way.time_s, value(way)) for way in record.looked_at}
        assert rings["x"] == pytest.approx([way.time_s for way in record.looked_at[:3]])
        assert rings["y"] == pytest.approx([value(way) for way in record.looked_at[:3]])
        assert rings["text"] == ["1", "2", "3"]


def test_a_bound_on_the_cost_is_drawn_and_no_cost_without_a_price() -> None:
    bounded = _view(made_up_advice(max_cost=0.7), "cost")
    assert [trace["y"] for trace in bounded if trace["name"] == "the most that it may cost"] == [[0.7, 0.7]]
    free = made_up_advice(currency="")
    assert [view.label for view in ways_figure(free).views] == ["efficiency"]


@pytest.mark.parametrize(("middle", "high"), [(500.0, 900.0), (None, None)])
def test_batches_stand_beside_the_noise_scale(middle: float | None, high: float | None) -> None:
    record = made_up_advice(critical_batch=middle, critical_high=high)
    band, *scale, line = drawn(batch_figure(record))["data"]
    assert (band["x"][0], min(band["x"][1:3])) == (300.0, high or 600.0)
    assert [trace["x"] for trace in scale] == ([[middle, middle]] if middle else [])
    assert (line["x"], line["y"]) == ([64, 256], [1000.0, 250.0])


def test_the_page_has_the_best_their_reasons_and_commands() -> None:
    record = made_up_advice(doubts=["seed 1 did not get there"])
    page = advice_page(HERE, record)
    text = render(page)
    read = Reader(text)
    assert json.loads(read.scripts["figures"])
    for row in record.best:
        for said in (way_name(row), row.reasons[0], row.command):
            assert said in page.markdown.replace("\\", "")
            assert said in text
    assert "seed 1 did not get there" in text
    rows = list(csv.DictReader(io.StringIO(page.csv)))
    assert [float(row["time_s"]) for row in rows] == [way.time_s for way in record.looked_at]


def test_what_a_record_says_is_no_markup() -> None:
    bad = "<img src=x>"
    way = made_up_row(made_up_point(4, 64, bad)).model_copy(update={"reasons": [bad], "command": bad})
    record = made_up_advice(bad, best=0).model_copy(
        update={
            "best": [way],
            "looked_at": [made_up_point(4, 64, bad), made_up_point(1, 64)],
            **dict.fromkeys(("currency", "noise", "cluster", "machine"), bad),
            **{name: [bad] for name in ("next", "measured", "assumed", "doubts")},
        }
    )
    read = Reader(render(advice_page(HERE, record)))
    assert read.count("img") == 0
    assert "<img" not in json.dumps(as_plotly(ways_figure(record)))


def test_the_headline_says_when_one_worker_is_best() -> None:
    record = made_up_advice()
    assert "The soonest is mpi ×8 allreduce, batch 256: 707 ms" in advice_page(HERE, record).headline
    alone = advice_page(HERE, record.model_copy(update={"best": [record.alone]}))
    assert alone.headline.startswith("Nothing is sooner than one worker")


def test_files_of_new_and_of_older_advice(tmp_path: Path) -> None:
    files = report.write(stored_advice(tmp_path / "new", made_up_advice()))
    assert [file.name for file in files] == ["report.html", "report.md", "report.csv", "ways.png", "batch.png"]
    older = report.write(stored_advice(tmp_path / "old", made_up_advice(looked_at=[])))
    assert [file.name for file in older] == ["report.html", "report.md", "report.csv"]
