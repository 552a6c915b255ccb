"""The page: whole, self-contained, escaped, and written without torch, whatever the record holds."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_up import made_up_sweep
from predicted import made_up_simulation, made_up_validation, stored_ledger, stored_simulation
from reading import EVIL, Reader
from stored import store, stored_run, stored_sweep

from manyhands.errors import UserError
from manyhands.record.sweep import Interval, SweepDir, SweepRecord
from manyhands.report import files as report
from manyhands.report.html import render
from manyhands.report.sweeps import sweep_page
from manyhands.report.tables.sweeps import numbers_table
from manyhands.report.tables.table import as_csv
from manyhands.report.words import explanation


def _page(folder: Path, record: SweepRecord) -> tuple[str, Reader]:
    sweep = store(folder, record)
    text = render(sweep_page(sweep, record))
    return text, Reader(text)


def test_the_page_is_whole_and_accessible(tmp_path: Path) -> None:
    text, page = _page(tmp_path / "sweep", made_up_sweep(repeats=2, failing={"mpi 8": "killed"}, cores=4))
    assert text.startswith("<!doctype html>")
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert page.count("h1") == 1
    assert page.count("caption") == page.count("table") > 3
    anchors = [a["href"] for tag, a in page.elements if tag == "a"]
    assert all(anchor and anchor[1:] in ids for anchor in anchors)
    plots = [a for _, a in page.elements if a.get("class") == "plot"]
    assert len(plots) == len(json.loads(page.scripts["figures"])["figures"]) >= 7
    assert all(a["role"] == "img" and len(a["aria-label"] or "") > 40 for a in plots)
    assert all(re.fullmatch(r"height:\d+px", a["style"] or "") for a in plots), "room is kept before it is drawn"
    labelled = [a["aria-labelledby"] for _, a in page.elements if "aria-labelledby" in a]
    assert set(labelled) <= set(ids)
    controls = [a for tag, a in page.elements if tag in ("select", "input")]
    assert controls


def test_the_page_asks_for_nothing(tmp_path: Path) -> None:
    _, page = _page(tmp_path / "sweep", made_up_sweep(repeats=1))
    for _, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "data"):
            assert re.fullmatch(r"#[\w-]+|data:,|", attributes.get(name) or "")
    [policy] = [a["content"] for _, a in page.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy
    assert policy.startswith("default-src 'none'")
    css = Path(report.__file__).with_name("page.css").read_text()
    assert "url(" not in css
    assert "@import" not in css
    assert sum(len(script) > 1_000_000 for script in page.scripts.values()) == 1, "plotly is embedded once"


def test_words_and_numbers_of_the_record_are_on_the_page(tmp_path: Path) -> None:
    record = made_up_sweep(repeats=2)
    _, page = _page(tmp_path / "sweep", record)
    shown = " ".join("".join(page.texts).split()).replace("\u2060", "").replace("\u00a0", " ")
    for line in explanation(record):
        assert line.strip().removeprefix("→ ") in shown
    for row in record.rows:
        assert row.speed_up
        assert f"{row.speed_up.value:.2f}×" in shown
    assert record.command in shown
    for value in (*record.hardware.values(), *record.versions.values()):
        assert str(value) in shown or not value
    assert json.loads(page.scripts["csv"]) == as_csv(numbers_table(record))
    assert json.loads(page.scripts["markdown"]) == report.page_of(SweepDir(tmp_path / "sweep")).markdown


def test_what_comes_from_a_record_is_escaped(tmp_path: Path) -> None:
    record = made_up_sweep(repeats=1, syncs=("allreduce", "gossip"), failing={"mpi 4": EVIL})
    text = record.model_dump_json()
    for known in ("mlp", "gossip", "A made-up processor", "0.1.0", "mpi"):
        text = text.replace(known, json.dumps(f"{known}{EVIL}")[1:-1])
    hostile = SweepRecord.model_validate_json(text)
    plain, page = _page(tmp_path / "sweep", hostile)
    usual = _page(tmp_path / "usual", made_up_sweep(repeats=1))[1]
    assert "<img" not in plain
    assert page.count("script") == usual.count("script") == 5
    assert page.count("img") == 0
    assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]
    shown = "".join(page.texts).replace("\u2060", "").replace("\u00a0", " ")
    assert f"mlp{EVIL}"[-40:] in shown, "it is shown as it is"
    figures = json.loads(page.scripts["figures"])["figures"]
    names = [trace["name"] for figure in figures for view in figure["views"] for trace in view["data"]]
    assert any("&lt;img" in name for name in names)
    assert not any("<img" in name for name in names), "plotly reads names as HTML too"
    markdown = json.loads(page.scripts["markdown"])
    fences = markdown.split("```")
    assert "<img" not in fences[0].replace("\\<", "")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"workers": (1,)}, "nothing to compare"),
        ({"failing": {"": "no\nmemory"}}, "No run of mlp went well"),
        ({"failing": {"baseline": "lost"}}, "5 of 5 runs failed: lost"),
        ({"repeats": 1}, "1 interleaved repeat"),
        ({"status": "interrupted"}, "stopped"),
        ({"kind": "weak", "workers": (1, 2, 64), "cores": 64}, "each worker with a batch of its own"),
        ({"batch_sizes": (64, 512), "image_sizes": (28, 56), "workers": (1, 2)}, "batch 512"),
    ],
)
def test_odd_sweeps_have_pages_too(tmp_path: Path, options: dict[str, object], says: str) -> None:
    record = made_up_sweep(**{"repeats": 5, **options})  # type: ignore[arg-type]
    _, page = _page(tmp_path / "sweep", record)
    assert says in "".join(page.texts).replace("\u2060", "").replace("\u00a0", " ")
    assert json.loads(page.scripts["markdown"]).startswith("## mlp")


def test_a_record_without_fits_findings_or_machine_has_a_page(tmp_path: Path) -> None:
    bare = {"fits": [], "findings": [], "hardware": {}, "versions": {}, "started": "some day", "measures": []}
    _, page = _page(tmp_path / "sweep", made_up_sweep().model_copy(update=bare))
    sections = [a.get("id") for tag, a in page.elements if tag == "section"]
    assert "laws" not in sections
    assert "numbers" in sections


def test_numbers_that_are_none_do_not_break_the_page(tmp_path: Path) -> None:
    record = made_up_sweep(repeats=1)
    rows = [row.model_copy(update={"train_loss": float("nan"), "energy_j": float("inf")}) for row in record.rows]
    _, page = _page(tmp_path / "sweep", record.model_copy(update={"rows": rows}))
    assert json.loads(page.scripts["figures"])


def test_accuracy_is_compared_with_one_worker_of_the_same_batch(tmp_path: Path) -> None:
    record = made_up_sweep(workers=(1, 2), engines=("mpi",), batch_sizes=(64, 512))
    rows = [row.model_copy(update={"test_accuracy": 0.7 if row.cell.batch_size == 512 else 0.9}) for row in record.rows]
    record = record.model_copy(update={"rows": rows})
    tiles = {tile.label: tile for tile in sweep_page(store(tmp_path / "sweep", record), record).tiles}
    assert tiles["Best speed-up"].beside.startswith("mpi ×2, batch 512, 93.8 %: ")
    assert (tiles["Test accuracy"].value, tiles["Test accuracy"].beside) == ("70.00 %", "one worker: 70.00 %")


def test_a_speed_up_below_one_is_no_best_speed_up(tmp_path: Path) -> None:
    record = made_up_sweep(workers=(1, 2), engines=("mpi",))
    slow = Interval(value=0.35, low=0.3, high=0.4)
    rows = [row.model_copy(update={"speed_up": slow, "efficiency": slow}) for row in record.rows]
    record = record.model_copy(update={"rows": [record.rows[0], *rows[1:]]})
    tiles = {tile.label: tile for tile in sweep_page(store(tmp_path / "sweep", record), record).tiles}
    assert (tiles["Best speed-up"].value, tiles["Best speed-up"].beside) == ("–", "no run was faster than one worker")


@pytest.mark.parametrize(
    ("repeats", "says"),
    [(1, "one run each"), (3, "at most 3 repeats, too few for an interval"), (5, " 93.8 % of"), (9, " 95 % of")],
)
def test_the_page_says_how_often_its_intervals_hold(tmp_path: Path, repeats: int, says: str) -> None:
    record = made_up_sweep(workers=(1, 2), engines=("mpi",), repeats=repeats)
    page = sweep_page(store(tmp_path / "sweep", record), record)
    assert says in page.footer
    assert repeats >= 6 or "95 %" not in page.headline + page.footer


def test_tables_for_a_terminal_need_no_plotly(tmp_path: Path) -> None:
    sweep = stored_sweep(tmp_path / "sweep", repeats=1, engines=("mpi",), workers=(1, 2))
    program = """if True:
        import sys
        from pathlib import Path
        sys.modules["plotly"] = None
        from manyhands.record.sweep import SweepDir
        from manyhands.report import words
        from manyhands.report.tables import sweeps
        record = SweepDir(Path(sys.argv[1])).read()
        print(words.headline(record), sweeps.scaling_table(record))
    """
    done = subprocess.run([sys.executable, "-c", program, str(sweep.path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_picture_that_cannot_be_written_is_a_user_error(tmp_path: Path) -> None:
    sweep = stored_sweep(tmp_path / "sweep", repeats=1, engines=("mpi",), workers=(1, 2))
    (sweep.path / "speed-up.png").mkdir()
    with pytest.raises(UserError, match="cannot write a report to"):
        report.write(sweep)


def test_writing_leaves_page_tables_and_pictures(tmp_path: Path) -> None:
    record = made_up_sweep("weak", workers=(1, 2, 16), repeats=1).model_copy(update={"task": "a$b$c.py:$x^"})
    sweep = store(tmp_path / "sweep", record)
    files = report.write(sweep)
    names = [file.name for file in files]
    assert names[:3] == ["report.html", "report.md", "report.csv"]
    assert {"speed-up.png", "efficiency.png", "weak.png", "split.png", "loss.png"} == set(names[3:])
    assert files[0] == sweep.report
    for file in files:
        assert file.parent == sweep.path
        assert file.stat().st_size > 500
        if file.suffix == ".png":
            assert file.read_bytes().startswith(b"\x89PNG")
    elsewhere = report.write(sweep, tmp_path / "deep" / "elsewhere")
    assert [file.read_bytes() for file in elsewhere] == [file.read_bytes() for file in files], (
        "drawing again is the same"
    )


def test_drawing_again_gives_the_same_page_and_another_folder_is_made(tmp_path: Path) -> None:
    sweep = stored_sweep(tmp_path / "sweep", workers=(1,), repeats=1)
    first, again = report.write(sweep), report.write(sweep, tmp_path / "deep" / "elsewhere")
    assert [file.name for file in again] == [file.name for file in first]
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in first]


def test_runs_have_a_page_together(tmp_path: Path) -> None:
    runs = [stored_run(tmp_path / "a", engine="serial", workers=1), stored_run(tmp_path / "b", task=f"{EVIL}.py:task")]
    files = report.write(runs, tmp_path / "out")
    assert [file.name for file in files] == ["report.html", "report.md", "report.csv", "loss.png", "split.png"]
    page = Reader(files[0].read_text())
    assert page.count("script") == 5
    assert page.count("img") == 0
    drawn = {figure["id"]: figure for figure in json.loads(page.scripts["figures"])["figures"]}
    assert list(drawn) == ["loss", "split", "ranks", "timeline"]
    assert len(drawn["ranks"]["views"][0]["data"][0]["y"]) == 3
    shown = "".join(page.texts)
    assert "32,000" in shown
    assert "16,000" in shown
    assert "bit for bit" in shown
    assert f"manyhands train --config {runs[0].toml}" in shown


def test_drawing_needs_neither_torch_nor_mpi(tmp_path: Path) -> None:
    stored_sweep(tmp_path / "sweep", repeats=1, engines=("mpi",), workers=(1, 2))
    stored_run(tmp_path / "run")
    stored_simulation(tmp_path / "simulation", made_up_simulation((1, 2)))
    ledger = stored_ledger(tmp_path, [made_up_validation()])
    program = """if True:
        import sys
        from pathlib import Path
        from manyhands.report import files as report
        from manyhands.record.run import RunDir
        from manyhands.record.sweep import SweepDir
        from manyhands.record.simulation import SimulationDir
        from manyhands.report.files import page_of, write_pictures
        report.write(SweepDir(Path(sys.argv[1])))
        report.write([RunDir(Path(sys.argv[2]))], Path(sys.argv[2]))
        for source in (SimulationDir(Path(sys.argv[3])), Path(sys.argv[4])):
            write_pictures(source)
            page_of(source)
        print(*(name for name in ("torch", "mpi4py", "scipy", "sklearn", "psutil") if name in sys.modules))
    """
    stored = [tmp_path / "sweep", tmp_path / "run", tmp_path / "simulation", ledger]
    command = [sys.executable, "-W", "error", "-c", program, *map(str, stored)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
    assert (tmp_path / "sweep" / "report.html").is_file()
    assert (tmp_path / "run" / "report.html").is_file()
