"""The page of the papers: it is what the command makes of the kept records, and all machines stand side by side."""

import re
from pathlib import Path

import pytest
from faked_papers import taken

from manyhands.errors import UserError
from manyhands.record.papers import Prediction, ReproductionDir, ReproductionRecord
from manyhands.record.sweep import Interval
from manyhands.report.document import PLACEHOLDER, Machines
from manyhands.report.paper_figures import PICTURES, num_workers, paper_figure
from manyhands.reproduction.base import HostFacts
from manyhands.reproduction.document import compact, compared, make_document, read_records, write_document
from manyhands.reproduction.papers import ALL, PAPERS, papers_of
from manyhands.reproduction.predict import needed
from manyhands.reproduction.run import plan

ROOT = Path(__file__).parents[3]
RECORDS = ROOT / "benchmarks" / "papers" / "records"


def record_of(cores: int, *gpus: str, asked: str = ALL) -> ReproductionRecord:
    """Return a record of made-up runs on a machine, compared with the papers."""
    papers = papers_of(asked, HostFacts(cores, len(gpus)))
    step_s = Interval(value=0.02, low=0.018, high=0.022, coverage_pct=90)
    record = ReproductionRecord(
        id=f"on-{cores}",
        status="complete",
        asked=asked,
        quick=False,
        repeats=1,
        command=f"manyhands reproduce {asked}",
        started="2026-01-01 00:00:00",
        wall_s=1.0,
        papers=[],
        rules=[],
        taken=[taken(setting) for setting in plan(papers, quick=False)],
        predictions=[
            Prediction(setting=need.setting.key, how="by hand", step_s=step_s, alone_s=0.1)
            for need in needed(papers, cores)
        ],
        hardware={"host": "secret-host", "cpu": "a processor", "cores": cores, "gpus": list(gpus)},
        versions={"ray": "1"},
    )
    return compared(record)


@pytest.fixture(scope="module")
def two_machines() -> list[ReproductionRecord]:
    return [record_of(16, "NVIDIA H200"), record_of(2)]


def test_the_page_is_what_the_command_makes_of_the_kept_records() -> None:
    made = make_document(read_records(RECORDS))
    command = "manyhands reproduce --document docs/papers.md --records benchmarks/papers/records"
    assert made == (ROOT / "docs" / "papers.md").read_text(encoding="utf-8"), f"run: {command}"


def test_every_paper_has_its_picture() -> None:
    assert PICTURES.keys() == PAPERS.keys()
    for number in PAPERS:
        size = (ROOT / "docs" / f"paper-{number}.png").stat().st_size
        assert 5_000 < size < 100_000


def test_figures_in_sentences_are_those_of_the_records(two_machines: list[ReproductionRecord]) -> None:
    machines = Machines(two_machines)
    for paper in papers_of(ALL, HostFacts(1)):
        names = PLACEHOLDER.findall(paper.story)
        assert len(names) >= 4, "figures of a story come from the records"
        assert all(re.search(r"\d", machines.figure(paper.number, name)) for name in names)


def test_a_mistyped_figure_of_a_sentence_is_an_error(two_machines: list[ReproductionRecord]) -> None:
    machines = Machines(two_machines)
    with pytest.raises(KeyError, match="has no row '3' in 'table 1'"):
        machines.figure("002", "table 1/3/speed-up/2")
    with pytest.raises(KeyError, match="no column 'speed'"):
        machines.figure("002", "table 1/2/speed/2")


def test_machines_predictions_and_verdicts_stand_side_by_side(two_machines: list[ReproductionRecord]) -> None:
    text = make_document(two_machines)
    assert "| processes | figure | paper | 2 cores | 16 cores + H200 | predicted | verdict |" in text
    line = next(line for line in text.splitlines() if line.startswith("| 4 | speed-up | 2.95"))
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[4:7] == ["3.60†", "3.60", "5.00‡ (4.55–5.56)"]
    assert cells[7] == "better (16 cores + H200); predicted: disagrees, above"
    assert "| one GPU | speed-up |" in text
    for rule in two_machines[0].rules:
        assert rule in text


def test_a_prediction_is_never_a_measured_figure(two_machines: list[ReproductionRecord]) -> None:
    figures = [f for r in two_machines for p in r.papers for t in p.tables for row in t.rows for f in row.figures]
    predicted = [figure for figure in figures if figure.predicted]
    assert predicted
    assert {figure.verdict for figure in predicted} <= {"oversubscribed", "shown", "not judged"}


def test_the_record_to_keep_is_short_and_makes_the_same_page(
    tmp_path: Path, two_machines: list[ReproductionRecord]
) -> None:
    for record in two_machines:
        folder = ReproductionDir(tmp_path / record.id)
        folder.make()
        folder.write(compact(record))
        text = folder.record.read_text()
        assert "secret-host" not in text
        assert len(text) < len(record.model_dump_json())
    assert make_document(read_records(tmp_path)) == make_document(two_machines)


def test_of_two_records_of_a_machine_the_fuller_row_stands(two_machines: list[ReproductionRecord]) -> None:
    whole = record_of(2)
    empty = compared(whole.model_copy(update={"taken": [], "predictions": [], "started": "2027-01-01 00:00:00"}))
    machines = Machines([whole, empty])
    assert machines.names == ["2 cores"]
    assert machines.figure("002", "table 1/2/speed-up/2") == "1.80"


def test_the_page_and_its_pictures_are_written(tmp_path: Path, two_machines: list[ReproductionRecord]) -> None:
    files = write_document(two_machines, tmp_path / "page.md")
    assert [file.name for file in files] == ["page.md", *(f"paper-{number}.png" for number in PAPERS)]
    assert all(file.stat().st_size for file in files)
    with pytest.raises(UserError, match="there is no record of a reproduction below"):
        read_records(tmp_path)


def test_pictures_leave_out_speed_ups_of_more_workers_than_cores(two_machines: list[ReproductionRecord]) -> None:
    figure = paper_figure(Machines(two_machines), "002")
    series = {item.name: [round(x) for x in item.x] for item in figure.views[0].items}  # type: ignore[union-attr]
    assert series["2 cores"] == [1, 2]
    assert series["predicted from 2 cores"] == [4, 6, 8]
    assert series["16 cores + H200"] == [1, 2, 4, 6, 8]


@pytest.mark.parametrize(
    ("label", "workers"),
    [("4", 4), ("8 threads", 8), ("2 × 4", 8), ("2×4 (8 total)", 8), ("8 (40,000)", 8), ("one GPU", 0)],
)
def test_workers_are_read_from_a_label(label: str, workers: int) -> None:
    assert num_workers(label) == workers
