"""Sweeps: cells in turn, failures as marked rows, nothing measured twice."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from faked import FakeMeasure

import manyhands
from manyhands.errors import UserError
from manyhands.lab import sweep
from manyhands.lab.asked import Asked
from manyhands.lab.store import append_measure, read_measures
from manyhands.lab.sweep import PILOT, PILOT_TIMEOUT_S, SweepObserver, SweepPulse
from manyhands.record import Measure, SweepDir, SweepRecord, list_sweeps

Scale = Callable[..., SweepRecord]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeMeasure:
    fake = FakeMeasure()
    monkeypatch.setattr(sweep, "measure", fake)
    return fake


@pytest.fixture
def scale(tmp_path: Path, tiny: Callable[[str], str], fake: FakeMeasure) -> Scale:
    """Sweep over 1 and 2 workers of engine threads, unless told otherwise."""

    def run(kind: str = "strong", task: str = "", **options: object) -> SweepRecord:
        usual = {} if options.get("resume") else {"workers": [1, 2], "engines": ["threads"]}
        return manyhands.scale(kind, task or tiny("mlp"), **{"out": tmp_path, **usual, **options})

    return run


def only(out: Path) -> SweepDir:
    (found,) = list_sweeps(out)
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
    assert [call.cell for call in pilots] == [cell.key for cell in record.cells]
    assert {call.options["steps"] for call in pilots} == {20}
    assert {m.repeat for m in record.measures} == set(range(15)), "an hour is plenty"
    assert {call.options["steps"] for call in fake.measured} == {record.steps} == {25}, "an epoch of it has 10 steps"
    assert not (only(tmp_path).path / "pilot").exists()
    kept = Asked.from_toml(only(tmp_path).toml)
    assert (kept.steps, kept.repeats, kept.needs_pilot) == (25, 15, False)


def test_a_budget_that_is_too_short_is_said_and_the_sweep_goes_on(scale: Scale, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(sweep, "pilot_of", lambda run, took_s: sweep.Pilot(fixed_s=30, step_s=0.1))
    said: list[str] = []
    record = scale(budget="10s", observe=SweepObserver(say=said.append))
    assert said == [
        "5 repeats of 3 cells with 25 steps each will take about 8.1 minutes, more than is left of the budget"
    ]
    assert (record.repeats, record.steps, record.status) == (5, 25, "complete")


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
    assert list_sweeps(tmp_path) == []


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
        append_measure(folder, run)
    whole = folder.measures.read_bytes()
    for cut in range(1, len(whole) // 2, 5):
        folder.measures.write_bytes(whole[:-cut])
        assert read_measures(folder) == [run]
        append_measure(folder, run)
        assert folder.measures.read_bytes() == whole
    for damaged in (b'{"cell": 3}\n', b"\xc3\n", b"\n\n"):
        folder.measures.write_bytes(damaged)
        with pytest.raises(UserError, match="is damaged"):
            read_measures(folder)
    folder.measures.unlink()
    folder.measures.mkdir()
    with pytest.raises(UserError, match="cannot write to"):
        append_measure(folder, run)


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
    with pytest.raises(UserError, match="keeps what it was asked for; leave --repeats out"):
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
