"""Every command's tables at 80 and 200 columns and in a pipe: no figure is cut, and what is left out is said."""

import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from advised import made_up_advice
from made_up import made_up_sweep
from made_up_machine import calibration
from predicted import made_up_simulation, made_up_trainings, made_up_validations
from rich.console import Console
from stored import stored_run

from manyhands.cli import advise, calibrate, runs, scale, simulate, validate
from manyhands.cli.tables import print_table
from manyhands.record.run import RunRecord
from manyhands.record.simulation import ValidationRecord
from manyhands.report.tables.runs import answers_table, compared_table

Shown = Callable[[Console], None]


def _validation() -> ValidationRecord:
    rows = made_up_validations()
    return ValidationRecord(id="v", task="mlp", command="", rows=rows, median_error_pct=3.1, held=9, of=10)


def _run(tmp_path: Path) -> RunRecord:
    record = stored_run(tmp_path / "run").read()
    assert record is not None
    return record


SHOWN: dict[str, Shown] = {
    "scale": lambda console: scale.show(made_up_sweep(cores=4), console),
    "scale weak": lambda console: scale.show(made_up_sweep("weak", batch_sizes=(64, 512)), console),
    "simulate": lambda console: simulate.show(made_up_simulation(), console),
    "simulate --train": lambda console: simulate.show(
        made_up_simulation(trained=made_up_trainings(target=0.9), target_accuracy=0.9), console
    ),
    "validate": lambda console: validate.show(_validation(), console),
    "advise": lambda console: advise.show(made_up_advice(), console),
    "calibrate": lambda console: calibrate.show(calibration(), ["mlp"], ["mpi"], console),
}


def _lines(name: str, **terminal: object) -> list[str]:
    screen = StringIO()
    SHOWN[name](Console(file=screen, color_system=None, highlight=False, **terminal))  # type: ignore[arg-type]
    return screen.getvalue().splitlines()


@pytest.mark.parametrize("name", SHOWN)
def test_narrow_terminals_miss_columns_but_no_figure_is_cut(name: str) -> None:
    narrow, wide, pipe = (
        _lines(name, force_terminal=True, width=80),
        _lines(name, force_terminal=True, width=220),
        _lines(name),
    )
    assert wide == pipe, "with room enough nothing is left out"
    assert "…" not in "".join(narrow)
    tokens = {token for line in pipe for token in line.split()}
    notes = [line for line in narrow if line.startswith("no room for: ")]
    assert not [t for line in narrow if line not in notes for t in line.split() if t not in tokens], "no new texts"
    assert notes or name in ("scale", "scale weak", "calibrate"), "laws that are wide are written in lines"


@pytest.mark.parametrize("width", [80, 200, None])
def test_runs_are_shown_whole(tmp_path: Path, width: int | None) -> None:
    record, screen = _run(tmp_path), StringIO()
    terminal = {"force_terminal": True, "width": width} if width else {}
    console = Console(file=screen, color_system=None, highlight=False, **terminal)  # type: ignore[arg-type]
    print_table(console, compared_table([record, record], baseline=record, ids=True, caption="two"))
    print_table(console, answers_table([record, record]))
    runs.print_record(console, record)
    text = screen.getvalue()
    assert record.weights_sha256 in text
    assert (record.id in text.partition("result")[0]) or width == 80
    assert "…" not in text
    assert not re.search(r"\d%", text), "97.35 %, not 97.35%"
    for words in ("train loss", "test loss"):
        assert words in text
