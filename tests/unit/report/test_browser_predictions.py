"""The pages of validations, simulations and advice in a real browser: what they show is what the records say.

All looking is done by one fixture, which is done with the browser before the first test begins.
"""

import csv
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from advised import made_up_advice
from browser import PHONE, PLOTS, SHOWN, TABLES, Look, browsing, look
from predicted import made_up_simulation, made_up_trainings, made_up_validation, made_up_validations

from manyhands.record.advice import AdviceDir
from manyhands.record.simulation import SimulationDir, SimulationRecord, Validation
from manyhands.report.advice import advice_page
from manyhands.report.files import write_texts
from manyhands.report.html import render
from manyhands.report.simulations import simulation_page
from manyhands.report.tables.simulations import speed_table, time_table
from manyhands.report.tables.validations import rows_table
from manyhands.report.validations import ledger_record, validations_page

PAPER = {"width": 688, "height": 980}
"""What A4 leaves between its margins."""
BEYOND = """() => [...document.querySelectorAll(".scroll")].map(e => e.scrollWidth - e.clientWidth)"""
"""How far each table goes beyond its box."""
COLOURS = """() => ({page: getComputedStyle(document.body).backgroundColor,
    plot: document.querySelector(".plot text").style.fill})"""


@dataclass
class Seen:
    """All that was seen."""

    rows: list[Validation]
    record: SimulationRecord
    validations: Look
    validations_phone: Look
    validations_print: Look
    validations_tables: dict[str, dict[str, Any]]
    simulation: Look
    simulation_phone: Look
    simulation_print: Look
    simulation_tables: dict[str, dict[str, Any]]
    advice: dict[str, Any]
    used: dict[str, Any]
    controls_in_print: list[str]
    saved: str
    trouble: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Look at both pages in every way, and close the browser."""
    folder = tmp_path_factory.mktemp("pages")
    some = made_up_validations(tasks=("softmax", "cnn"), syncs=("allreduce", "parameter-server"))
    rows = [*some, made_up_validation(task="net.py:task", sync="<i>gossip")]
    trained = made_up_trainings(nodes=(1, 8), target=0.97)
    record = made_up_simulation((1, 8, 512), ("allreduce", "local-sgd:period=8"), trained=trained, target_accuracy=0.97)
    texts = {
        "validations.html": render(validations_page(Path("validations"), ledger_record(rows))),
        "simulation.html": render(simulation_page(SimulationDir(Path("simulations/it")), record)),
        "advice.html": render(advice_page(AdviceDir(Path("advice/it")), made_up_advice())),
    }
    *pages, advice = write_texts(folder, texts)
    found: dict[str, Any] = {}
    with browsing() as browser:
        for name, file in zip(("validations", "simulation"), pages, strict=True):
            page = browser.open(file, viewport={"width": 1280, "height": 900}, color_scheme="light")
            found |= {name: look(page, COLOURS), f"{name}_tables": page.evaluate(TABLES)}
            if name == "validations":
                found |= {"used": _used(page), "saved": _saved(page)}
            page.set_viewport_size(PAPER)
            page.emulate_media(color_scheme="dark", media="print")
            found[f"{name}_print"] = look(page, COLOURS)
            found["controls_in_print"] = page.evaluate(SHOWN, "button[data-copy], .controls, nav")
            found[f"{name}_phone"] = look(browser.open(file, color_scheme="dark", **PHONE), COLOURS)
        page = browser.open(advice, viewport={"width": 1280, "height": 900}, color_scheme="light")
        found["advice"] = {"wide": page.evaluate(BEYOND), **_edge(browser.open(advice, color_scheme="light", **PHONE))}
    return Seen(rows=rows, record=record, trouble=browser.trouble, requests=browser.requests, **found)


def _edge(page: Any) -> dict[str, Any]:
    """Return how far a phone's first table goes on, and the colour of its right edge before and after going there."""
    table = page.locator(".scroll").first

    def colour() -> bytes:
        box = table.bounding_box()
        corner = {"x": box["x"] + box["width"] - 4, "y": box["y"] + box["height"] - 6, "width": 1, "height": 1}
        return bytes(page.screenshot(clip=corner))

    table.scroll_into_view_if_needed()
    found = {"phone": page.evaluate(BEYOND), "begins": colour()}
    table.evaluate("e => { e.scrollLeft = e.scrollWidth }")
    return {**found, "ends": colour()}


def _used(page: Any) -> dict[str, Any]:
    """Hide an engine, then a task, then points that missed; colour by strategy; return what is shown each time."""

    def shown(name: str = "predicted") -> int:
        plots = page.evaluate(PLOTS)
        data = next(plot["data"] for plot in plots if plot["id"] == f"plot-{name}")
        points = [trace for trace in data if trace["visible"] is not False and trace["name"] != "interval missed"]
        return sum(x is not None for trace in points for x in trace["x"]) - 2  # the diagonal has two ends

    legend = page.get_by_label("Legend of Predicted against measured")
    found = {"all": shown()}
    legend.get_by_role("button", name="mpi").click()
    found["without mpi"] = shown()
    legend.get_by_role("button", name="cnn").click()
    found["without mpi and cnn"] = shown()
    legend.get_by_role("button", name="cnn").click()
    legend.get_by_role("button", name="mpi").click()
    page.locator("[data-figure=predicted]").get_by_role("radio", name="strategy").check(force=True)
    legend.get_by_role("button", name="gossip").click()
    found["without gossip"] = shown()
    legend.get_by_role("button", name="gossip").click()
    return found


def _saved(page: Any) -> str:
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as CSV").click()
    return Path(download.value.path()).read_text()


PAGES = ("validations", "simulation")
LOOKS = pytest.mark.parametrize("name", [f"{page}{way}" for page in PAGES for way in ("", "_phone", "_print")])


def test_nothing_goes_wrong_and_nothing_is_fetched(seen: Seen) -> None:
    assert seen.trouble == []
    fetched = [url for url in seen.requests if not re.match(r"data:|blob:", url)]
    assert len(fetched) == 6, "each time the page itself"
    assert all(re.fullmatch(r"file://.*/(validations|simulation|advice)\.html", url) for url in fetched)


@LOOKS
def test_every_plot_is_drawn(seen: Seen, name: str) -> None:
    plots = {plot["id"]: plot for plot in getattr(seen, name).plots}
    expected = {"predicted", "errors"}
    if name.startswith("simulation"):
        expected = {"speed-up", "efficiency", "time", "cost", "trained-accuracy", "trained-loss", "split"}
    assert set(plots) == {f"plot-{each}" for each in expected}
    for own, plot in plots.items():
        assert plot["drawn"], own
        assert plot["width"] > 150, own
        assert plot["height"] > 80, own
        assert plot["marks"] > 0, own


@LOOKS
def test_nothing_overflows_but_tables_in_their_boxes(seen: Seen, name: str) -> None:
    wide = getattr(seen, name).wide
    assert wide["page"] <= wide["window"]
    assert wide["out"] == []
    assert wide["window"] == {"_phone": 390, "_print": 688}.get(name[name.find("_") :], 1280)


def test_the_table_of_advice_fits_a_desk_and_shows_on_a_phone_that_it_goes_on(seen: Seen) -> None:
    assert seen.advice["wide"] == [0]
    assert seen.advice["phone"] > [0]
    assert seen.advice["begins"] != seen.advice["ends"], "a shadow at the edge, until there is no more"


@LOOKS
def test_texts_can_be_read(seen: Seen, name: str) -> None:
    """WCAG 2: a ratio of 4.5 between a text and what is behind it."""
    assert getattr(seen, name).too_faint == []


@pytest.mark.parametrize("name", PAGES)
def test_light_dark_and_print_differ_as_they_should(seen: Seen, name: str) -> None:
    light, dark, paper = (getattr(seen, f"{name}{way}").colours for way in ("", "_phone", "_print"))
    assert all(light[part] != dark[part] for part in light)
    assert paper == {"page": "rgb(255, 255, 255)", "plot": light["plot"]}
    assert seen.controls_in_print == []


def test_the_numbers_in_the_tables_are_those_of_the_records(seen: Seen) -> None:
    shown = [
        (
            seen.validations_tables["Step times, predicted (90 % interval) and measured (median of the runs)"],
            rows_table(seen.rows),
        ),
        (seen.simulation_tables["How fast"], speed_table(seen.record, seen.record.rows)),
        (seen.simulation_tables["How long until which accuracy"], time_table(seen.record)),
    ]
    for table, grid in shown:
        assert table["headings"] == grid.headings
        assert table["rows"] == grid.rows
    assert seen.validations_tables["Each combination"]["rows"][-1][:3] == ["net.py:task", "mpi", "<i>gossip"]


def test_the_numbers_in_the_plots_are_those_of_the_records(seen: Seen) -> None:
    predicted = next(plot["data"] for plot in seen.validations.plots if plot["id"] == "plot-predicted")
    points = {(x, y) for t in predicted for x, y in zip(t["x"], t["y"], strict=True) if x is not None}
    assert {(row.median_ms, row.predicted_ms.value) for row in seen.rows} <= points
    speed = next(plot["data"] for plot in seen.simulation.plots if plot["id"] == "plot-speed-up")
    lines = [trace["y"] for trace in speed if trace["name"] == "allreduce"]
    assert [row.speed_up.value for row in seen.record.rows if row.sync == "allreduce"] in lines


def test_an_entry_of_the_legend_hides_all_that_has_its_colour_or_its_shape(seen: Seen) -> None:
    by_threads = [row for row in seen.rows if row.engine == "threads"]
    assert seen.used == {
        "all": len(seen.rows),
        "without mpi": len(by_threads),
        "without mpi and cnn": sum(row.task != "cnn" for row in by_threads),
        "without gossip": len(seen.rows) - 1,
    }


def test_the_numbers_can_be_taken_along(seen: Seen) -> None:
    lines = list(csv.DictReader(io.StringIO(seen.saved)))
    assert [float(line["predicted_ms"]) for line in lines] == [row.predicted_ms.value for row in seen.rows]
