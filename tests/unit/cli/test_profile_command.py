"""`manyhands profile` prints a rank's table, all ranks side by side, and where the timeline is."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from manyhands.cli.main import main
from manyhands.cli.profile import show
from manyhands.record.profile import FunctionRow, LineRow, ProfileRecord, RankProfile

Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def manyhands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run command lines in an empty folder; each call returns (status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("manyhands.measurement.trial.ENOUGH_S", 0.0)

    def run(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["manyhands", "profile", *line.split()])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capfd.readouterr()
        return int(exit_.value.code or 0), out, err

    return run


def test_one_worker(manyhands: Run, tiny: Callable[[str], str]) -> None:
    status, out, err = manyhands(f"{tiny('mlp')} --steps 40 --lines --rows 30")
    assert status == 0
    assert out.count("FusedReplica") >= 1
    assert "more functions of the loop" in out
    for words in ("tiny.py:mlp: serial, batch 10, one worker: 40 steps", "reading data", "evaluation", "hot lines"):
        assert words in out
    assert "% time of every rank" not in out
    folder = next(Path("runs").iterdir())
    assert f"timeline: {folder}/trace.json" in err
    assert (folder / "trace.json").is_file()


def test_json_is_exactly_the_stored_profile(manyhands: Run, tiny: Callable[[str], str]) -> None:
    status, out, err = manyhands(f"{tiny('mlp')} --steps 20 --json --engine threads --workers 2 --trace 0")
    assert status == 0
    record = json.loads(out)
    assert record == json.loads(Path("runs", record["id"], "profile.json").read_text())
    assert len(ProfileRecord.model_validate(record).ranks) == 2
    assert "% time of every rank" in err, "tables are for people then"
    assert "timeline" not in err
    assert not Path("runs", record["id"], "trace.json").exists()


def test_settings_come_from_a_file(manyhands: Run, tiny: Callable[[str], str]) -> None:
    Path("run.toml").write_text(f'task = "{tiny("mlp")}"\nsteps = 20\ntrace = 0\nbatch_size = 5\n')
    record = json.loads(manyhands("--config run.toml --json")[1])
    assert (record["steps"], record["batch_size"], record["trace"]) == (20, 5, "trace.json")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "which task?"),
        ("mpl", "did you mean 'mlp'?"),
        ("mlp --rank 2 --workers 2", "there is no rank 2: this run has 2, counted from 0"),
        ("mlp --rank -1", "there is no rank -1"),
        ("mlp --rows 0", "rows must be at least 1, got 0"),
        ("mlp --steps 5", "a profile of 5 steps is too short"),
        ("mlp --engine sim --workers 2", "a profile measures real time, which engine sim does not have"),
        ("mlp --lins", "did you mean --lines?"),
    ],
)
def test_a_bad_request_gets_one_sentence(manyhands: Run, line: str, sentence: str) -> None:
    status, out, err = manyhands(line)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert sentence in err
    assert not Path("runs").exists()


def made_up(ranks: int, *, timed: int = 10, servers: int = 0) -> ProfileRecord:
    """Return a profile in which rank r spends 10 + r seconds of 100 in `Net.slow`, and all have read for 20."""
    profiles = []
    for rank in range(ranks):
        slow = FunctionRow(name="Net.slow", file="/home/me/net.py", line=7, share_pct=10 + rank, self_s=10 + rank,
                           total_s=40, calls=1000)  # fmt: skip
        loop = FunctionRow(name="train_rank", file="manyhands/training.py", line=5, share_pct=70 - rank,
                           self_s=70 - rank, total_s=80, calls=0)  # fmt: skip
        line = LineRow(function="Net.slow", file="/home/me/net.py", line=9, source="x[0] = [bold]", share_pct=3.0,
                       self_s=3.0, calls=1000)  # fmt: skip
        profiles.append(
            RankProfile(
                rank=rank, role="server" if rank >= ranks - servers else "worker", host="here", steps=1000,
                timed_steps=timed, disturbed_steps=3, plain_step_ms=1.0, extra_ms=0.5, cost_pct=0.4, loop_s=80.0,
                read_s=15.0, eval_s=5.0, rest_s=0.0, functions=[loop, slow] if timed else [], lines=[line],
            )
        )  # fmt: skip
    return ProfileRecord(
        id="x", status="complete", task="net.py:task", engine="mpi", sync="allreduce", workers=ranks - servers,
        threads=1, batch_size=64, device="cpu", parameters=10, steps=1000, evaluations=1, steps_per_evaluation=4000,
        trace="", ranks=profiles, hardware={}, versions={},
    )  # fmt: skip


def shown(record: ProfileRecord, *, rows: int = 20, lines: bool = False, width: int = 100) -> list[list[str]]:
    """Return the words of each line printed."""
    console = Console(width=width, record=True, force_terminal=True, file=open("/dev/null", "w"))  # noqa: SIM115
    show(record, record.ranks[:1], console, rows=rows, lines=lines)
    console.file.close()
    return [line.split() for line in console.export_text().splitlines() if line.strip()]


def test_the_table_has_share_self_total_calls_and_times_of_a_call() -> None:
    printed = shown(made_up(1))
    assert ["10.00", "10.000", "40.000", "1,000", "10.0000", "40.0000", "Net.slow", "net.py"] in printed
    assert ["70.00", "70.000", "80.000", "–", "–", "–", "train_rank"] in printed
    assert ["15.00", "15.000", "–", "–", "–", "–", "reading", "data"] in printed
    text = " ".join(word for line in printed for word in line)
    assert "10 steps were timed call by call (3 more were disturbed by other programs)" in text
    assert "In a whole training evaluation is 1.5 %: it comes every 4,000 steps." in text
    assert "set-up" not in text, "what took no time has no row"


def test_functions_beyond_the_rows_are_one_row() -> None:
    assert ["10.00", "10.000", "–", "–", "–", "–", "1", "more", "functions", "of", "the", "loop"] in shown(
        made_up(1), rows=1
    )


def test_few_ranks_stand_side_by_side() -> None:
    printed = shown(made_up(3, servers=1))
    assert ["rank", "0", "rank", "1", "server", "2", "function"] in printed
    assert ["10.00", "11.00", "12.00", "Net.slow", "net.py"] in printed
    assert ["15.00", "15.00", "15.00", "reading", "data"] in printed


def test_many_ranks_are_told_by_least_middle_and_most() -> None:
    assert ["10.00", "15.00", "20.00", "10", "Net.slow", "net.py"] in shown(made_up(11))


def test_lines_are_shown_as_they_are_written() -> None:
    assert ["3.00", "3.000", "1,000", "net.py:9", "x[0]", "=", "[bold]"] in shown(made_up(1), lines=True)


def test_a_run_that_ended_early_says_so() -> None:
    assert "no step was timed" in " ".join(shown(made_up(1, timed=0))[0])
