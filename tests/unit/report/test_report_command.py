"""`manyhands report`, as a user types it."""

import os
import sys
import time
from pathlib import Path

import pytest
from advised import made_up_advice, stored_advice
from predicted import (
    made_up_simulation,
    made_up_validation,
    made_up_validations,
    stored_ledger,
    stored_simulation,
    stored_validation,
)
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
    assert manyhands("report last --format png")[1].splitlines() == ["runs/b/loss.png", "runs/b/split.png"]
    assert manyhands("report a b")[1].splitlines()[0] == "reports/a-and-1-more/report.html"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("report", "there are no sweeps under 'scales' yet"),
        ("report --out elsewhere", "there are no sweeps under 'elsewhere' yet"),
        ("report nothing", "there is no 'nothing'"),
        ("report last", "there is no 'last'"),
        ("report .", "there is nothing to report in '.': it has no sweep.json, record.json, simulation.json"),
        ("report validations", "there are no validations here yet; try: manyhands validate mlp --workers 1,2"),
        ("report simulations/", "there are no simulations here yet; try: manyhands simulate mlp --nodes"),
        ("report advice", "there is no advice here yet; try: manyhands advise mlp --target-accuracy 0.9"),
        ("report no/validations.jsonl", "there is no 'no/validations.jsonl', and nothing else to report here"),
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
    assert "'strong' fits 2 of what is stored here" in manyhands("report strong")[2]
    assert "did you mean 'strong-one'?" in manyhands("report strng-one")[2]
    Path("scales/strong-one/sweep.json").write_text('{"id": 3}')
    assert "is damaged" in manyhands("report strong-one")[2]
    run = stored_run(Path("runs/a"))
    run.record.write_text("{}")
    assert "run 'a' has a record that cannot be read: 'runs/a/record.json' is damaged" in manyhands("report a")[2]
    run.record.write_bytes(b"\xff\x00\x80 half of")
    assert "run 'a' has a record that cannot be read" in manyhands("report a")[2]
    run.record.unlink()
    assert "run 'a' has no record: it is unfinished" in manyhands("report a")[2]
    Path("file").touch()
    status, _, stderr = manyhands("report strong-two --to file")
    assert status == 2
    assert "cannot write a report to 'file'" in stderr


def test_validations_are_drawn_from_their_folder_their_file_or_one_by_one(manyhands) -> None:  # type: ignore[no-untyped-def]
    rows = made_up_validations(tasks=("mlp",))
    stored_ledger(Path("validations"), rows)
    stored_validation(Path("validations/20250301-120000-mlp-a1b2"), rows[:2])
    status, stdout, _ = manyhands("report validations --format png")
    assert (status, stdout.splitlines()) == (0, ["validations/predicted.png", "validations/errors.png"])
    everything = manyhands("report validations/validations.jsonl --format csv")[1]
    assert len(everything.splitlines()) == 1 + len(rows)
    for one in ("mlp-a1b2", "validations/20250301-120000-mlp-a1b2/validation.json"):
        assert len(manyhands(f"report {one} --format csv")[1].splitlines()) == 1 + 2


def test_simulations_are_drawn_by_id_or_the_newest_of_a_folder(manyhands) -> None:  # type: ignore[no-untyped-def]
    for name, nodes in (("20250301-120000-cnn-a1b2", (1, 2)), ("20250302-120000-cnn-c3d4", (1, 2, 4))):
        stored_simulation(Path("simulations", name), made_up_simulation(nodes, ("allreduce",)))
    assert len(manyhands("report a1b2 --format csv")[1].splitlines()) == 1 + 2
    status, stdout, stderr = manyhands("report simulations --format csv")
    assert (status, len(stdout.splitlines())) == (0, 1 + 3)
    assert "the newest of 2 simulations in 'simulations'" in stderr
    assert "did you mean '20250301-120000-cnn-a1b2'?" in manyhands("report 20250301-120000-cnn-a1bb")[2]
    several = manyhands("report a1b2 c3d4 --format markdown --to both")[1].splitlines()
    assert several == [f"both/{name}/report.md" for name in ("20250301-120000-cnn-a1b2", "20250302-120000-cnn-c3d4")]


def test_one_folder_may_hold_everything(manyhands) -> None:  # type: ignore[no-untyped-def]
    stored_sweep(Path("all/sweep"), repeats=1, engines=("mpi",), workers=(1, 2))
    stored_run(Path("all/run"))
    stored_simulation(Path("all/simulation"), made_up_simulation((1, 2)))
    stored_validation(Path("all/validation"), [made_up_validation()])
    assert manyhands("report all --format csv")[1].startswith("sync,nodes,"), "there is no ledger yet"
    stored_ledger(Path("all"), [made_up_validation()])
    assert manyhands("report all --format csv")[1].startswith("id,task,")
    files = manyhands("report sweep run simulation validation --out all --format csv --to each")[1].splitlines()
    assert files == [f"each/{name}/report.csv" for name in ("sweep", "simulation", "validation", "run")]


def test_all_of_a_kind_are_looked_for_where_one_says(manyhands) -> None:  # type: ignore[no-untyped-def]
    """Not in the usual folder, which has others."""
    for place, nodes in (("simulations", (1, 2)), ("elsewhere", (1, 2, 4))):
        stored_simulation(Path(place, "s"), made_up_simulation(nodes, ("allreduce",)))
        stored_advice(Path("advice" if place == "simulations" else place, "a"), made_up_advice())
    stored_ledger(Path("elsewhere"), [made_up_validation()])
    assert len(manyhands("report simulations --out elsewhere --format csv")[1].splitlines()) == 1 + 3
    assert len(manyhands("report simulations --format csv")[1].splitlines()) == 1 + 2
    assert manyhands("report validations --out elsewhere --format csv")[1].startswith("id,task,")
    assert manyhands("report advice --out elsewhere --format png")[1].startswith("elsewhere/a/")
    Path("none").mkdir()
    for kind in ("simulations", "validations", "advice"):
        assert manyhands(f"report {kind} --out none")[0] == 2


def test_what_is_damaged_or_empty_of_predictions_is_said(manyhands) -> None:  # type: ignore[no-untyped-def]
    stored_validation(Path("validations/stopped"), [], status="interrupted")
    assert "has no validations.jsonl: no validation was completed yet" in manyhands("report validations")[2]
    ledger = stored_ledger(Path("validations"), [])
    assert "is empty: no validation was completed yet" in manyhands("report validations")[2]
    ledger.write_text("what?\n")
    assert "is damaged: line 1 is not a validation" in manyhands("report validations")[2]
    (stored_simulation(Path("simulations/s"), made_up_simulation((1,)))).record.write_text("{")
    Path("validations/stopped/validation.json").write_bytes(b"\xff")
    for name in ("simulations/s", "stopped"):
        status, stdout, stderr = manyhands(f"report {name}")
        assert (status, stdout) == (2, "")
        assert "is damaged" in stderr
        assert len(stderr.splitlines()) == 1


def test_advice_is_found_by_folder_and_by_name(manyhands) -> None:  # type: ignore[no-untyped-def]
    for name in ("first", "second"):
        stored_advice(Path("advice") / name, made_up_advice())
    for what in ("advice/first", "first", "advice/first/advice.json"):
        assert manyhands(f"report {what} --format csv --to there")[1].split() == ["there/report.csv"]
    status, stdout, stderr = manyhands("report advice --format markdown")
    assert (status, stdout.startswith("## mlp to 90 % on ethernet-10g")) == (0, True)
    assert "the newest of 2 pieces of advice in 'advice'" in stderr
