"""`manyhands report`, as a user types it."""

import os
import sys
import time
from pathlib import Path

import pytest
from stored import stored_run, stored_sweep

from manyhands.cli.main import main


@pytest.fixture
def manyhands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    """Run command lines in an empty folder; each call returns (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["manyhands", *line.split()])
        with pytest.raises(SystemExit) as exit_:
            main()
        return (int(exit_.value.code or 0), *capfd.readouterr())

    return run


def _small(name: str) -> None:
    stored_sweep(Path("scales", name), repeats=1, engines=("mpi",), workers=(1, 2))


def test_the_newest_sweep_is_drawn(manyhands) -> None:  # type: ignore[no-untyped-def]
    for age, name in ((20, "new"), (90, "old")):
        _small(name)
        then = time.time() - age
        os.utime(f"scales/{name}/sweep.json", (then, then))
    status, stdout, _ = manyhands("report")
    assert status == 0
    files = stdout.splitlines()
    assert files[0] == "scales/new/report.html"
    assert all(Path(file).is_file() for file in files)


def test_text_goes_to_stdout_for_pasting_and_is_that_of_the_files(manyhands) -> None:  # type: ignore[no-untyped-def]
    _small("one")
    stored_run(Path("runs/20250301-120000-mlp-mpi2-a1b2"))
    for what in ("one", "mpi2"):
        for format, name in (("markdown", "report.md"), ("csv", "report.csv")):
            status, stdout, _ = manyhands(f"report {what} --format {format}")
            assert status == 0
            assert manyhands(f"report {what} --format {format} --to out")[1] == f"out/{name}\n"
            assert Path("out", name).read_text() == stdout


def test_sweeps_have_folders_of_their_own_and_runs_come_together(manyhands) -> None:  # type: ignore[no-untyped-def]
    _small("one")
    _small("two")
    status, stdout, _ = manyhands("report one scales/two/sweep.json --to out --format csv")
    assert status == 0
    assert stdout.splitlines() == ["out/one/report.csv", "out/two/report.csv"]
    stored_run(Path("runs/a"))
    stored_run(Path("runs/b"))
    stored_sweep(Path("elsewhere/one"), repeats=1, engines=("mpi",), workers=(1, 2))
    several = manyhands("report one a elsewhere/one b --to both --format csv")[1].splitlines()
    assert several == ["both/one/report.csv", "both/one-2/report.csv", "both/a-and-1-more/report.csv"]
    assert manyhands("report last --format png")[1].splitlines() == ["runs/b/split.png", "runs/b/loss.png"]
    assert manyhands("report a b")[1].splitlines()[0] == "reports/a-and-1-more/report.html"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("report", "there are no sweeps under 'scales' yet"),
        ("report --out elsewhere", "there are no sweeps under 'elsewhere' yet"),
        ("report nothing", "there is no 'nothing'"),
        ("report last", "there is no 'last'"),
        ("report .", "'.' is neither a sweep's folder nor a run's"),
        ("report --format pdf", "there is no format 'pdf'; choose from: html, markdown, csv, png"),
    ],
)
def test_wrong_requests_get_a_sentence(manyhands, line: str, says: str) -> None:  # type: ignore[no-untyped-def]
    status, stdout, stderr = manyhands(line)
    assert (status, stdout) == (2, "")
    assert says in stderr
    assert len(stderr.splitlines()) == 1


def test_what_is_damaged_or_unclear_is_said(manyhands) -> None:  # type: ignore[no-untyped-def]
    _small("strong-one")
    _small("strong-two")
    assert "'strong' fits 2 sweeps and runs" in manyhands("report strong")[2]
    assert "did you mean 'strong-one'?" in manyhands("report strng-one")[2]
    Path("scales/strong-one/sweep.json").write_text('{"id": 3}')
    assert "is damaged" in manyhands("report strong-one")[2]
    run = stored_run(Path("runs/a"))
    run.record.write_text("{}")
    assert "run 'a' has no record" in manyhands("report a")[2]
    Path("file").touch()
    status, _, stderr = manyhands("report strong-two --to file")
    assert status == 2
    assert "cannot write a report to 'file'" in stderr
