"""Sweeps: cells in turn, failures as marked rows, nothing measured twice."""

import json
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from faked import FakeMeasure

import manyhands
from manyhands.errors import UserError
from manyhands.measurement.budget import Clock, parse_duration
from manyhands.record.owner import OWNER, own
from manyhands.record.store import append_lines
from manyhands.record.sweep import Measure, SweepDir, SweepRecord
from manyhands.record.texts import count
from manyhands.report.tables import sweeps
from manyhands.scaling import checks as sweep_checks
from manyhands.scaling import sweep
from manyhands.scaling.observer import PILOT, SweepObserver, SweepPulse
from manyhands.scaling.request import SweepRequest
from manyhands.scaling.store import read_measures
from manyhands.scaling.sweep import PILOT_TIMEOUT_S

Scale = Callable[..., SweepRecord]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMeasure:
    fake = FakeMeasure()
    monkeypatch.setattr(sweep, "measure", fake)
    monkeypatch.setattr(sweep_checks, "say_if_busy", lambda *_: None)
    return fake


@pytest.fixture
def scale(tmp_path: Path, tiny: Callable[[str], str], fake: FakeMeasure) -> Scale:
    """Sweep over 1 and 2 workers of engine threads, unless told otherwise."""

    def run(kind: str = "strong", task: str = "", **options: object) -> SweepRecord:
        usual = {} if options.get("resume") else {"workers": [1, 2], "engines": ["threads"]}
        return manyhands.scale(kind, task or tiny("mlp"), **{"out": tmp_path, **usual, **options})

    return run


def only(out: Path) -> SweepDir:
    (found,) = SweepDir.all_in(out)
    return found


def test_rounds_go_forth_and_back_over_all_cells(scale: Scale, fake: FakeMeasure) -> None:
    record = scale(steps=30, repeats=3, workers=[1, 2, 3])
    keys = [cell.key for cell in record.cells]
    assert len(keys) == 5, "a baseline, two probes, two cells"
    assert [call.cell for call in fake.calls] == keys + keys[::-1] + keys
    assert [call.repeat for call in fake.calls] == [0] * 5 + [1] * 5 + [2] * 5
    assert {call.options["trace"] for call in fake.calls} == {6}, "all runs are alike"
    assert {call.options["blas_threads"] for call in fake.calls} == {1}


def test_the_pilot_chooses_and_its_figures_are_thrown_away(scale: Scale, fake: FakeMeasure, tmp_path: Path) -> None:
    record = scale(budget="1h")
    pilots = [call for call in fake.calls if call.repeat == PILOT]
    assert [call.cell for call in pilots] == [record.cells[i].key for i in (0, 2, 1)], "the probe is dispensable"
    assert {call.options["steps"] for call in pilots} <= set(range(10, 201))
    assert {m.repeat for m in record.measures} == set(range(15)), "an hour is plenty"
    assert {call.options["steps"] for call in fake.measured} == {record.steps} == {25}, "an epoch of it has 10 steps"
    assert not (only(tmp_path).path / "pilot").exists()
    kept = SweepRequest.from_toml(only(tmp_path).toml)
    assert (kept.steps, kept.repeats, kept.needs_pilot) == (25, 15, False)


@pytest.fixture
def timed(fake: FakeMeasure, monkeypatch: pytest.MonkeyPatch) -> FakeMeasure:
    """Let only runs take time, of 4 s each unless told otherwise; to start and to read takes none."""
    monkeypatch.setattr(sweep, "Clock", partial(Clock, now=fake.now))
    monkeypatch.setattr(sweep_checks, "START_S", 4.0)
    fake.takes_s, fake.step_ms = lambda call: 4.0, 1e-3
    return fake


def test_a_budget_too_short_for_every_cell_once_is_refused_at_once(
    scale: Scale, timed: FakeMeasure, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        scale(budget="10s")
    assert "one run of each of 2 cells takes about" in str(error.value)
    assert "of --budget 10s; give --budget 20s, fewer cells, or --over-budget" in str(error.value)
    assert not timed.calls
    assert SweepDir.all_in(tmp_path) == []


@pytest.mark.parametrize("how", ["asked", "option"])
def test_who_wants_to_go_on_gets_every_cell_once_and_is_told_the_rest(
    scale: Scale, timed: FakeMeasure, how: str
) -> None:
    asked: list[str] = []
    observe = SweepObserver(confirm=lambda sentence: not asked.append(sentence))  # type: ignore[func-returns-value]
    record = scale(budget="10s", observe=observe, over_budget=True if how == "option" else None)
    assert len(asked) == (how == "asked")
    assert [m.failed for m in record.measures] == ["", "", ""]
    assert {call.repeat for call in timed.calls} == {PILOT}, "the pilot is all there is"
    assert record.repeats == 1
    assert record.notes == ["--budget 10s had time for 1 repeat; intervals need 5, so there are none"]


@pytest.mark.parametrize(("budget", "repeats"), [("20s", 1), ("30s", 2), ("45s", 3), ("1m", 4), ("70s", 5)])
def test_in_a_short_budget_the_pilot_counts_and_repeats_are_fewer(
    scale: Scale, timed: FakeMeasure, tmp_path: Path, budget: str, repeats: int
) -> None:
    timed.leaves = True
    said: list[str] = []
    record = scale(budget=budget, observe=SweepObserver(say=said.append))
    assert timed.now_s < parse_duration(budget), "the promise is kept"
    assert record.status == "complete"
    assert (record.repeats, record.budget) == (repeats, budget)
    assert Counter(m.cell for m in record.measures) == {cell.key: repeats for cell in record.cells}
    assert len({m.steps for m in record.measures}) == 1
    told = (
        []
        if repeats == 5
        else [f"--budget {budget} had time for {count(repeats, 'repeat')}; intervals need 5, so there are none"]
    )
    assert record.notes == said == told
    assert all(row.speed_up is None or repeats == 5 or not row.speed_up.is_shown for row in record.rows)
    folder = SweepDir(tmp_path / record.id)
    assert all((folder.path / m.run).is_dir() for m in record.measures), "the pilot's folders were kept"


def test_when_the_time_is_up_the_run_under_way_is_ended_and_all_that_is_missing_is_marked(
    scale: Scale, timed: FakeMeasure
) -> None:
    timed.takes_s = lambda call: {"baseline": 4.0, "cell": 100.0}.get(call.cell.split()[0], 4.0)
    with pytest.raises(UserError, match=r"nothing of this sweep can run: ended after .* s: --budget 25s was used up"):
        scale(budget="25s")
    timed.now_s, timed.calls = 0.0, []
    timed.takes_s = lambda call: 100.0 if "mpi" in call.cell else 4.0
    record = scale(budget="35s", engines=["threads", "mpi"])
    assert timed.now_s < 35
    failed = {m.cell.split()[0] + " " + m.cell.split()[1]: m.failed for m in record.measures}
    assert failed["baseline serial"] == failed["cell threads"] == ""
    assert re.fullmatch(r"ended after \d+ s: --budget 35s was used up", failed["cell mpi"])
    assert failed["probe serial"] == "left out: --budget 35s was used up"
    assert [bool(row.failed) for row in record.rows] == [False, False, True]


def test_a_machine_that_slows_down_gets_fewer_repeats_not_more_time(scale: Scale, timed: FakeMeasure) -> None:
    timed.takes_s = lambda call: 2.0 if call.repeat < 2 else 9.0
    record = scale(budget="2m")
    assert timed.now_s < 120
    assert 2 < record.repeats < 15
    assert record.notes == [f"--budget 2m had time for {record.repeats} of 15 repeats"]
    assert {m.failed for m in record.measures} == {""}


def test_a_machine_that_stands_still_after_the_pilot_leaves_what_the_pilot_told(
    scale: Scale, timed: FakeMeasure
) -> None:
    timed.takes_s = lambda call: 2.0 if call.repeat == PILOT else 1e6
    record = scale(budget="2m")
    assert timed.now_s < 120
    assert record.notes == [
        "--budget 2m ended the sweep in repeat 1 of 15",
        "3 cells had time for a pilot of 200 steps alone",
    ]
    assert [row.repeats for row in record.rows] == [1, 1]


def test_given_repeats_or_steps_give_way_to_a_budget_and_that_is_said(scale: Scale, timed: FakeMeasure) -> None:
    record = scale(budget="40s", repeats=9)
    assert record.notes == [f"--budget 40s had time for {record.repeats} repeats instead of 9"]
    timed.now_s = 0.0
    timed.step_ms, timed.takes_s = 10.0, lambda call: 4.0 if call.options["steps"] <= 200 else 1e5
    record = scale(budget="40s", steps=10**6)
    assert record.notes[0] == f"--budget 40s had time for {record.steps} steps of each run instead of 1,000,000"
    assert timed.now_s < 40


def test_what_runs_warn_of_is_said_once_and_kept(scale: Scale, fake: FakeMeasure, tmp_path: Path) -> None:
    fake.warns = lambda call: "several differ from one" if call.options["workers"] > 1 else ""
    said: list[str] = []
    record = scale(steps=30, repeats=2, observe=SweepObserver(say=said.append))
    assert said == ["warning: several differ from one"]
    assert record.warnings == ["several differ from one"]
    assert "warning: several differ from one" in sweeps.notes(record)
    assert only(tmp_path).read() == record


def test_given_epochs_leave_only_repeats_to_be_chosen(scale: Scale, fake: FakeMeasure) -> None:
    record = scale(epochs=3, budget="1h")
    assert {call.options["steps"] for call in fake.measured} == {30}, "3 epochs of 10 batches, probes too"
    assert record.repeats == 15


def test_a_cell_that_fails_is_a_marked_row_and_is_given_up_after_two_in_a_row(scale: Scale, fake: FakeMeasure) -> None:
    fake.fails = lambda call: "out of luck" if "threads 3" in call.cell else ""
    record = scale(steps=30, repeats=5, workers=[1, 2, 3])
    tried = Counter(call.cell for call in fake.calls)
    marked = [row for row in record.rows if row.failed]
    assert [row.cell.size for row in marked] == [3]
    assert "out of luck" in marked[0].failed
    assert tried.pop(marked[0].cell.key) == 2
    assert set(tried.values()) == {5}, "the others go on"
    assert record.status == "complete"


def test_a_cell_that_recovers_is_tried_to_the_end(scale: Scale, fake: FakeMeasure) -> None:
    fake.fails = lambda call: "once" if "threads" in call.cell and call.repeat in (0, 2) else ""
    record = scale(steps=30, repeats=5)
    good = [m.repeat for m in record.measures if "threads" in m.cell and not m.failed]
    assert good == [1, 3, 4]


def test_nothing_is_measured_where_the_pilot_fails_everywhere(scale: Scale, fake: FakeMeasure, tmp_path: Path) -> None:
    fake.fails = lambda call: {"baseline": "slow", "cell": "no memory at all"}.get(call.cell.split()[0], "")
    with pytest.raises(UserError, match="nothing of this sweep can run: no memory at all"):
        scale(budget="1m")
    assert not fake.measured
    assert SweepDir.all_in(tmp_path) == []


def test_a_cell_that_failed_in_the_pilot_is_not_waited_for_any_longer(scale: Scale, fake: FakeMeasure) -> None:
    fake.fails = lambda call: "took too long" if "threads 3" in call.cell and call.repeat == PILOT else ""
    scale(budget="1h", repeats=2, workers=[1, 2, 3])
    (first, second) = (call.timeout_s for call in fake.measured if "threads 3" in call.cell)
    assert first == PILOT_TIMEOUT_S > second, "once it went well, that is what counts"


def test_a_probe_that_fails_leaves_the_row_without_a_cause(scale: Scale, fake: FakeMeasure) -> None:
    fake.fails = lambda call: "too small" if "probe" in call.cell else ""
    record = scale(steps=30, repeats=3)
    assert [row.failed for row in record.rows] == ["", ""]
    (finding,) = record.findings
    assert {"small-batch", "memory"}.isdisjoint(part.cause for part in finding.parts)


def test_runs_that_take_no_time_are_no_figures(scale: Scale, fake: FakeMeasure) -> None:
    fake.step_ms = 0.0
    record = scale(budget="1m", repeats=2)
    assert [row.failed for row in record.rows] == ["not measured"] * 2


@pytest.mark.parametrize("stop", [2, 5, 8])
def test_only_folders_that_a_measure_names_are_kept(scale: Scale, fake: FakeMeasure, tmp_path: Path, stop: int) -> None:
    fake.leaves, fake.interrupt_after = True, stop
    fake.fails = lambda call: "killed" if "threads" in call.cell and call.repeat == 0 else ""
    record = scale(budget="1h", repeats=3)
    folder = SweepDir(tmp_path / record.id)
    kept = {f"runs/{run.name}" for run in folder.runs.glob("*")}
    assert kept == {m.run for m in record.measures if not m.failed}
    assert not (folder.path / "pilot").exists()


def test_what_cannot_run_is_marked_and_never_tried(scale: Scale, fake: FakeMeasure) -> None:
    record = scale(steps=30, repeats=2, engines=["threads", "hybrid"], workers=[1, 2, 3], syncs=["async-server"])
    marked = {(row.cell.engine, row.cell.size): row.failed for row in record.rows if row.failed}
    assert marked.keys() == {("hybrid", 2), ("hybrid", 3)}
    assert "which engine 'hybrid' does not have" in marked["hybrid", 2]
    assert "3 workers cannot be processes of 2 threads each" in marked["hybrid", 3]
    assert not [call for call in fake.calls if "hybrid" in call.cell]


@pytest.mark.parametrize("stop", [0, 1, 3, 5, 7, 11])
def test_a_stopped_sweep_goes_on_and_repeats_nothing(
    scale: Scale, fake: FakeMeasure, tmp_path: Path, stop: int
) -> None:
    fake.interrupt_after = stop
    first = scale(budget="1h", repeats=3)
    assert first.status == "interrupted"
    assert SweepDir(tmp_path / first.id).read() == first, "what there is was kept"
    assert len(first.measures) == max(0, stop - 3), "the pilot round has 3 runs"
    fake.interrupt_after = None
    record = scale(resume=True)
    assert (record.status, record.id) == ("complete", first.id)
    assert set(Counter((c.cell, c.repeat) for c in fake.measured).values()) == {1}
    assert len(fake.measured) == len(record.measures) == 9
    assert len(fake.calls) - len(fake.measured) == (3 if stop >= 3 else 3 + stop), "a whole pilot is not repeated"
    assert record.measures[: len(first.measures)] == first.measures
    assert record.wall_s > first.wall_s
    assert record.command == first.command


def test_a_sweep_that_is_going_on_is_not_resumed(scale: Scale, fake: FakeMeasure, tmp_path: Path) -> None:
    fake.interrupt_after = 4
    folder = SweepDir(tmp_path / scale(steps=30, repeats=3).id)
    fake.interrupt_after = None
    before, calls = folder.measures.read_bytes(), len(fake.calls)
    with own(folder.path, "it"), pytest.raises(UserError, match=f"sweep '{folder.path.name}' is in use by process"):
        scale(resume=True)
    assert (folder.measures.read_bytes(), len(fake.calls)) == (before, calls)
    assert scale(resume=True).status == "complete"
    assert not (folder.path / OWNER).exists()


def test_a_sweep_that_was_killed_goes_on_from_its_whole_lines(scale: Scale, fake: FakeMeasure, tmp_path: Path) -> None:
    fake.interrupt_after = 4
    folder = SweepDir(tmp_path / scale(steps=30, repeats=3).id)
    folder.record.write_text("{torn")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "sweep.toml").write_text("kind = ")
    with open(folder.measures, "ab") as f:
        f.write('{"cell": "data ×'.encode()[:-1])
    fake.interrupt_after = None
    record = scale(resume=True)
    assert len(record.measures) == 9
    assert [json.loads(line)["cell"] for line in folder.measures.read_text().splitlines()] == [
        m.cell for m in record.measures
    ]


def test_a_torn_last_line_is_dropped_and_a_damaged_file_refused(tmp_path: Path) -> None:
    folder = SweepDir(tmp_path)
    assert read_measures(folder) == []
    run = Measure(cell="a ×2", repeat=0, failed="with a\nnew line, and \u2028 one of another kind ××××××")
    for _ in range(2):
        append_lines(folder.measures, [run])
    whole = folder.measures.read_bytes()
    for cut in range(1, len(whole) // 2, 5):
        folder.measures.write_bytes(whole[:-cut])
        assert read_measures(folder) == [run]
        append_lines(folder.measures, [run])
        assert folder.measures.read_bytes() == whole
    for damaged in (b'{"cell": 3}\n', b"\xc3\n", b"\n\n"):
        folder.measures.write_bytes(damaged)
        with pytest.raises(UserError, match="is damaged"):
            read_measures(folder)
    folder.measures.unlink()
    folder.measures.mkdir()
    with pytest.raises(UserError, match="cannot write to"):
        append_lines(folder.measures, [run])


def test_the_newest_unfinished_sweep_of_the_task_and_kind_is_resumed(scale: Scale, fake: FakeMeasure, tiny) -> None:  # type: ignore[no-untyped-def]
    def stopped(*what: str) -> str:
        fake.interrupt_after = len(fake.calls) + 1
        found = scale(*what, steps=30, repeats=1).id
        fake.interrupt_after = None
        return found

    ours = stopped()
    stopped("weak")
    stopped("strong", tiny("adam"))
    scale(steps=30, repeats=1)
    assert scale(resume=ours[-4:]).id == ours
    with pytest.raises(UserError, match="there is no unfinished strong sweep"):
        scale(resume=True)
    with pytest.raises(UserError, match="is complete"):
        scale(resume=ours)
    with pytest.raises(UserError, match="is a strong one of"):
        scale("weak", resume=ours)
    with pytest.raises(UserError, match="there is no sweep under"):
        scale(resume="nonesuch")
    with pytest.raises(UserError, match="keeps its options; leave --repeats out"):
        scale(resume=True, repeats=9)


def test_the_time_left_falls_and_every_run_is_shown_twice(scale: Scale) -> None:
    pulses: list[SweepPulse] = []
    record = scale(steps=30, repeats=2, observe=SweepObserver(pulse=pulses.append))
    starts, ends = pulses[::2], pulses[1::2]
    assert [p.measure for p in starts] == [None] * 6
    assert [p.measure for p in ends] == record.measures
    assert [p.done for p in ends] == [1, 2, 3, 4, 5, 6]
    assert all(p.total == 6 for p in pulses)
    assert starts[0].eta_s is None, "nothing is known yet"
    assert ends[-1].eta_s is not None


BAD = {
    "there is no kind of scaling 'stong'; did you mean 'strong'?": {"kind": "stong"},
    "there is no engine 'thread'; did you mean 'threads'?": {"engines": ["thread"]},
    "there is no sync 'alreduce'": {"syncs": ["alreduce"]},
    "workers must be at least 1, got 0": {"workers": [0, 2]},
    "workers must be a whole number, got 'two'": {"workers": "1,two"},
    "batch-sizes must be whole numbers of at least 1, or 'full', got": {"batch_sizes": "64,many"},
    "a sweep compares several workers with one; got --workers 1": {"workers": [1]},
    "engine serial is what every sweep compares with": {"engines": "serial"},
    "engine sim cannot be measured: its workers are virtual and take no time": {"engines": "threads,sim"},
    "engines must name at least one": {"engines": []},
    "give --steps or --epochs, not both": {"steps": 5, "epochs": 1},
    "a budget is written like": {"budget": "soon"},
    "both given already; leave --budget out": {"steps": 30, "repeats": 5, "budget": "1m"},
    "repeats must be at least 0, got -1": {"repeats": -1},
    "a sweep sets engine itself; use --engines": {"engine": "mpi"},
    "a sweep sets trace itself; leave it out": {"trace": 3},
    "lr must be at least 0": {"lr": -1.0},
    "there is no setting 'workerz'": {"workerz": 2},
    "there is no data source 'nope'": {"data": "nope"},
    "nothing of this sweep can run: this sync needs servers": {"engines": "hybrid", "syncs": "parameter-server"},
    "nothing of this sweep can run: 200 workers cannot share 97 training samples": {"workers": [1, 200]},
    "an image size of 28 needs square images": {"image_sizes": [28]},
}


@pytest.mark.parametrize("sentence", BAD)
def test_a_bad_request_is_one_sentence_before_anything_runs(
    scale: Scale, fake: FakeMeasure, tmp_path: Path, sentence: str
) -> None:
    with pytest.raises(UserError) as error:
        scale(**BAD[sentence])
    assert sentence in str(error.value)
    assert not fake.calls
    assert not any(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_a_user_error(scale: Scale, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to --out"):
        scale(steps=30, repeats=1, out=tmp_path / "file")


def test_a_task_that_others_cannot_import_is_refused(tmp_path: Path) -> None:
    task = manyhands.Task(model=lambda data: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match="give it a name at the top level of a file"):
        manyhands.scale("strong", task, out=tmp_path)


def test_a_sweep_does_not_run_inside_mpiexec(scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(UserError, match="without mpiexec"):
        scale()


def test_weak_runs_get_more_data_per_step(scale: Scale, fake: FakeMeasure) -> None:
    scale("weak", steps=30, repeats=1)
    assert {(c.options["workers"], c.options["batch_size"]) for c in fake.calls} == {(1, 10), (2, 20)}
