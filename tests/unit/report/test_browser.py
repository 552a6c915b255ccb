"""The page in a real browser: headless Chromium opens it, and what it shows is what the record says.

All looking is done by one fixture, which is done with the browser before the first test begins.
"""

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from browser import PHONE, PLOTS, SHOWN, TABLES, Look, browsing, look
from stored import stored_run, stored_sweep

from manyhands.record.sweep import SweepRecord
from manyhands.report.files import page_of, write_texts
from manyhands.report.html import render
from manyhands.report.sweeps import sweep_page
from manyhands.report.tables.sweeps import numbers_table, scaling_table
from manyhands.report.tables.table import as_csv

COLOURS = """() => ({page: getComputedStyle(document.body).backgroundColor, text: getComputedStyle(document.body).color,
    plot: document.querySelector(".plot text").style.fill,
    line: document.querySelector("#plot-speed-up").data[1].line.color})"""


@dataclass
class Seen:
    """All that was seen."""

    record: SweepRecord
    light: Look
    dark: Look
    phone: Look
    print: Look
    controls_in_print: list[str]
    tables: dict[str, dict[str, Any]]
    text: str
    millis: list[dict[str, Any]]
    by_time: list[dict[str, Any]]
    other_timeline: list[dict[str, Any]]
    without_mpi: list[dict[str, Any]]
    copied: list[str]
    saved: str
    pdf: bytes
    of_runs: Look
    trouble: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Look at a sweep's page and a page of runs in every way, and close the browser."""
    folder = tmp_path_factory.mktemp("pages")
    sweep = stored_sweep(folder / "sweep", repeats=2, failing={"mpi 8": "killed <b>by</b> signal 9"}, cores=4)
    runs = [stored_run(folder / "a", engine="serial", workers=1), stored_run(folder / "b", host="<i>there</i>")]
    texts = [render(sweep_page(sweep, sweep.read())), render(page_of(runs))]
    pages = write_texts(folder, {"sweep.html": texts[0], "runs.html": texts[1]})

    with browsing() as browser:
        page = browser.open(pages[0], viewport={"width": 1280, "height": 900}, color_scheme="light")
        found: dict[str, Any] = {
            "light": look(page, COLOURS),
            "tables": page.evaluate(TABLES),
            "text": page.inner_text("body"),
        }
        found |= _used(page)
        page.emulate_media(color_scheme="dark")
        found["dark"] = look(page, COLOURS)
        page.emulate_media(color_scheme="dark", media="print")
        found |= {
            "print": look(page, COLOURS),
            "controls_in_print": page.evaluate(SHOWN, "button[data-copy], .controls, nav"),
        }
        found["pdf"] = page.pdf(format="A4")
        found["phone"] = look(browser.open(pages[0], color_scheme="dark", **PHONE), COLOURS)
        found["of_runs"] = look(browser.open(pages[1], color_scheme="light", **PHONE))
    return Seen(record=sweep.read(), trouble=browser.trouble, requests=browser.requests, **found)


def _used(page: Any) -> dict[str, Any]:
    """Use all controls; return what they did."""

    def data(name: str) -> Any:
        plots = page.evaluate(PLOTS)
        return next(plot["data"] for plot in plots if plot["id"] == f"plot-{name}")

    page.get_by_role("radio", name="milliseconds").check(force=True)
    page.get_by_role("radio", name="time").check(force=True)
    page.get_by_label("Run", exact=True).select_option("mpi ×2")
    page.get_by_label("Legend of Speed-up").get_by_role("button", name="mpi").click()
    found = {"millis": data("split"), "by_time": data("loss"), "other_timeline": data("timeline")}
    found["without_mpi"] = data("speed-up")
    page.get_by_label("Legend of Speed-up").get_by_role("button", name="mpi").click()
    page.get_by_role("button", name="Copy as Markdown").click()
    page.get_by_role("button", name="Copy", exact=True).first.click()
    found["copied"] = page.evaluate("window.copied")
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    found["saved"] = Path(download.value.path()).read_text()
    return found


LOOKS = pytest.mark.parametrize("look", ["light", "dark", "phone", "print", "of_runs"])


def test_nothing_goes_wrong_and_nothing_is_fetched(seen: Seen) -> None:
    assert seen.trouble == []
    fetched = [url for url in seen.requests if not re.match(r"data:|blob:", url)]
    assert len(fetched) == 3, "each time the page itself"
    assert all(re.fullmatch(r"file://.*/(sweep|runs)\.html", url) for url in fetched)


@LOOKS
def test_every_plot_is_drawn(seen: Seen, look: str) -> None:
    plots = {plot["id"]: plot for plot in getattr(seen, look).plots}
    expected = {"loss", "split", "ranks", "timeline"}
    if look != "of_runs":
        expected = {"speed-up", "efficiency", "lost", "split", "timeline", "loss", "accuracy"}
    assert set(plots) == {f"plot-{name}" for name in expected}
    for name, plot in plots.items():
        assert plot["drawn"], name
        assert plot["width"] > 150, name
        assert plot["height"] > 80, name
        assert plot["marks"] > 0, name
        assert plot["data"], name


@LOOKS
def test_nothing_overflows_but_tables_in_their_boxes(seen: Seen, look: str) -> None:
    wide = getattr(seen, look).wide
    assert wide["page"] <= wide["window"]
    assert wide["out"] == []


def test_a_phone_has_390_pixels(seen: Seen) -> None:
    assert seen.phone.wide["window"] == seen.of_runs.wide["window"] == 390


@LOOKS
def test_texts_can_be_read(seen: Seen, look: str) -> None:
    """WCAG 2: a ratio of 4.5 between a text and what is behind it."""
    assert getattr(seen, look).too_faint == []


def test_light_dark_and_print_differ_as_they_should(seen: Seen) -> None:
    for part in ("page", "text", "plot", "line"):
        assert seen.light.colours[part] != seen.dark.colours[part], part
    for part in ("text", "plot", "line"):
        assert seen.print.colours[part] == seen.light.colours[part], "print is light, whatever the screen is"
    assert seen.print.colours["page"] == "rgb(255, 255, 255)"


def test_print_has_no_controls_and_makes_a_pdf(seen: Seen) -> None:
    assert seen.controls_in_print == []
    assert seen.pdf.startswith(b"%PDF")


def test_the_numbers_in_the_tables_are_those_of_the_record(seen: Seen) -> None:
    grid = scaling_table(seen.record)
    shown = [
        table for caption, table in seen.tables.items() if table["headings"][0] == "run" and len(table["rows"]) == 7
    ]
    headings = {heading for table in shown for heading in table["headings"]}
    assert headings | {"workers"} == set(grid.headings), "together they have all columns"
    for table in shown:
        for row, expected in zip(table["rows"], grid.rows, strict=True):
            for heading, text in zip(table["headings"], row, strict=True):
                assert text == expected[grid.headings.index(heading)], heading


def test_the_numbers_in_the_plots_are_those_of_the_record(seen: Seen) -> None:
    plots = {plot["id"]: {trace["name"]: trace for trace in plot["data"]} for plot in seen.light.plots}
    for series in ("threads", "mpi"):
        rows = [r for r in seen.record.rows if r.repeats and (r.cell.engine == series or r.cell.role == "baseline")]
        assert plots["plot-speed-up"][series]["y"] == pytest.approx(
            [row.speed_up.value for row in rows if row.speed_up]
        )
        efficiency = [100 * row.efficiency.value for row in rows if row.efficiency]
        assert plots["plot-efficiency"][series]["y"] == pytest.approx(efficiency)
        assert plots["plot-accuracy"][series]["y"] == pytest.approx([100 * row.test_accuracy for row in rows])


def test_what_failed_is_said_and_shown_as_text(seen: Seen) -> None:
    [row] = seen.tables["Cells that failed, or ran less often than was asked for"]["rows"]
    assert row[0] == "mpi ×8"
    assert "killed <b>by</b> signal 9" in row[2]


def test_controls_change_what_is_drawn(seen: Seen) -> None:
    rows = [row for row in seen.record.rows if row.repeats]
    for trace in seen.millis:
        expected = [getattr(row, f"{trace['name']}_ms") for row in rows]
        assert trace["x"] == pytest.approx(expected, abs=1e-6)
    by_step = next(plot["data"] for plot in seen.light.plots if plot["id"] == "plot-loss")
    assert seen.by_time[0]["y"] == by_step[0]["y"]
    assert seen.by_time[0]["x"][-1] < by_step[0]["x"][-1]
    first = next(plot["data"] for plot in seen.light.plots if plot["id"] == "plot-timeline")
    assert {y for trace in first for y in trace["y"]} == {f"rank {i}" for i in range(8)}
    assert {y for trace in seen.other_timeline for y in trace["y"]} == {"rank 0", "rank 1"}
    hidden = {trace["name"] for trace in seen.without_mpi if trace["visible"] is False}
    assert "mpi" in hidden
    assert "threads" not in hidden


def test_the_command_and_the_tables_can_be_taken_along(seen: Seen) -> None:
    markdown, command = seen.copied
    assert command == seen.record.command
    assert markdown.startswith("## mlp: strong scaling")
    assert seen.saved == as_csv(numbers_table(seen.record))
    lines = list(csv.DictReader(io.StringIO(seen.saved)))
    assert [line["run"] for line in lines][:2] == ["serial", "threads ×2"]
