"""Measure a tiny task for moments; and what becomes of the file."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from manyhands.calibration import calibrate as stages
from manyhands.calibration import calls as calibration_calls
from manyhands.calibration import cores as calibration_cores
from manyhands.calibration import plan as calibration_plan
from manyhands.calibration import steps as calibration_steps
from manyhands.calibration import worker as calibration_worker
from manyhands.calibration.busy import say_if_busy
from manyhands.calibration.calibrate import calibrate, crowds, row_points
from manyhands.calibration.calls import joined_calls, time_calls
from manyhands.calibration.steps import joined_steps
from manyhands.cli.main import main
from manyhands.comm import Comm
from manyhands.errors import UserError
from manyhands.launch.user_folder import calibration_path
from manyhands.machine import facts
from manyhands.measurement.budget import Clock
from manyhands.model.crowd import run_spread
from manyhands.model.machine import CalibratedMachine
from manyhands.record.calibration import (
    Calibration,
    CoreTimes,
    differences,
    machine_name,
    open_calibration,
    read_calibration,
)
from manyhands.record.run import Others

SIZES = (0, 8, 4096)
TINY = Path(__file__).parents[2] / "conformance" / "tiny.py"


@pytest.fixture(autouse=True)
def moments(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure for moments, on two cores wherever the tests run."""
    monkeypatch.setattr(calibration_plan, "LEAST_S", 0.02)
    monkeypatch.setattr(calibration_worker, "SIZES", SIZES)
    monkeypatch.setattr(calibration_calls, "LEAST_ROUNDS", 2)
    monkeypatch.setattr(calibration_calls, "MOST_ROUNDS", 2)
    monkeypatch.setattr(calibration_steps, "MOST_STEPS", 3)
    monkeypatch.setattr(calibration_cores, "ROUNDS", 1)
    monkeypatch.setattr(facts, "cores", lambda: 2)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Calibration:
    """Calibrate a tiny task once for all tests that only want to have one."""
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        return tiny_calibration(tmp_path_factory.mktemp("calibration") / "here.json", f"{TINY}:mlp")


def tiny_calibration(path: Path, task: str, **options: Any) -> Calibration:
    usual = {"budget_s": 0.6, "over_budget": True}
    return calibrate([task], path=path, engines=["threads"], **{**usual, **options})


def test_a_tiny_task_end_to_end(tmp_path: Path, tiny: Callable[[str], str]) -> None:
    path, task, told = tmp_path / "deep" / "here.json", tiny("adam"), []
    found = tiny_calibration(path, task, observe=told.append)

    costs = found.tasks[task]
    assert [point.rows for point in costs.points] == [1, 2, 5, 10, 20]
    assert costs.batch_size == 10
    assert costs.samples == 97
    assert costs.weight_bytes == 4 * costs.parameters == 4 * (12 * 10 + 10 + 10 * 7 + 7 + 7 * 3 + 3)
    for point in costs.points:
        assert len(point.compute_ms) == len(point.serial_ms)
        assert len(point.compute_ms) % point.block == 0
        assert min(*point.compute_ms, *point.serial_ms) > 0

    assert [(each.ranks, each.rows) for each in found.crowd("threads", task)] == [
        (2, rows) for rows in (1, 2, 5, 10, 20)
    ]
    exchanges = {call.call: call for each in found.contention for call in each.exchanges}
    assert exchanges.keys() == {"all-reduce", "reduce", "broadcast"}
    assert all(call.num_bytes == costs.weight_bytes and min(call.us) > 0 for call in exchanges.values())
    assert [each.rows for each in found.contention if each.exchanges] == [5], "as two workers share the batch"

    comm = found.comms["threads"]
    assert comm.ranks == 2
    assert {(each.call, each.num_bytes) for each in comm.points} >= {("all-reduce", n) for n in SIZES} | {
        ("barrier", 0)
    }
    assert all(min(each.us) > 0 for each in comm.points)

    assert found.machine == machine_name(facts.hardware())
    assert [progress.done for progress in told] == sorted(progress.done for progress in told)
    assert told[-1].done == 1
    assert read_calibration(path, task, "threads") == found
    made = CalibratedMachine(found, task, engine="threads", workers=2, rows_per_worker=5)
    assert made.step_s(0) > 0
    assert made.collective_s("all-reduce", range(2), costs.weight_bytes) > 0


def test_where_there_is_time_for_it_every_stage_is_visited_twice(
    tmp_path: Path, tiny: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines change: what differs from one visit to the next is part of how runs differ."""
    visited: list[list[int]] = []
    launch_one = stages._launch

    def launched(stage: Any, *args: Any) -> list[dict[str, Any]]:
        found = launch_one(stage, *args)
        for own in found:
            for point in own["steps"]:
                point["compute_ms"] = [2.0 if len(visited) >= 4 else 1.0 for _ in point["compute_ms"]]
        visited.append([point["block"] for point in found[0]["steps"]])
        return found

    monkeypatch.setattr(stages, "_launch", launched)
    task = tiny("mlp")
    once = tiny_calibration(tmp_path / "once.json", task)
    twice = tiny_calibration(tmp_path / "twice.json", task, budget_s=100.0)
    assert len(visited) == 2 + 4
    assert visited[4:] == visited[2:4], "in blocks of the same steps"
    assert {ms for point in once.tasks[task].points for ms in point.compute_ms} == {1.0}
    for point in [*twice.tasks[task].points, *(each.times for each in twice.crowd("threads", task))]:
        assert sorted(set(point.compute_ms)) == [1.0, 2.0]
        assert len(point.compute_ms) % point.block == 0
        assert point.compute_ms == sorted(point.compute_ms), "first the first visit"
    assert run_spread(twice, task, "threads", 2) > 0.2
    calls = [[len(each.us) for each in known.comms["threads"].points] for known in (once, twice)]
    assert calls[0] == calls[1], "which are timed once"
    exchanges = [sum(len(call.us) for each in known.contention for call in each.exchanges) for known in (once, twice)]
    assert exchanges[1] > exchanges[0]


def test_launches_share_the_time_that_is_left_and_a_second_visit_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration_plan, "LEAST_S", 0.5)
    now_s = 0.0
    clock = Clock(40.0, spent_s=3.0, now=lambda: now_s)
    stages = calibration_plan.stages_of(["a"], ["threads", "mpi"], [2])
    schedule = calibration_plan.LaunchBudget(clock, 3.0, {"a": 0.01})
    visits = schedule.visits(stages)
    assert [stage.engine for stage in visits] == ["serial", "threads", "mpi"] * 2, "7 s of starts are little"
    for i, stage in enumerate(visits[:3]):
        second_s = schedule.second_s(visits[i:])
        took_s = 4 * second_s * stage.weight  # a machine on which all takes four times as long as it should
        now_s += took_s
        schedule.note(stage, took_s, second_s)
    assert all(schedule.least_s(stage) > clock.left_s for stage in visits[3:]), "no time for them"
    slow = calibration_plan.LaunchBudget(Clock(40.0, now=lambda: 0.0), 10.0, {"a": 0.01})
    assert len(slow.visits(stages)) == 3, "of 40 s half would be spent with starting ranks"
    slow.check_budget(stages)
    with pytest.raises(UserError, match=r"takes about 1 min 19 s, and 40.0 s of the budget are left.*--budget 120s"):
        calibration_plan.LaunchBudget(Clock(40.0, now=lambda: 0.0), 10.0, {"a": 1.9}).check_budget(stages)


@pytest.mark.parametrize("written", ["before", "meanwhile"])
def test_a_second_calibration_adds_to_the_first(
    made: Calibration, tmp_path: Path, tiny: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    path, first, time_cores = tmp_path / "here.json", made, stages.time_cores

    def others_end(cores: int) -> Any:
        path.write_text(first.model_dump_json())
        return time_cores(cores)

    if written == "before":
        path.write_text(first.model_dump_json())
    else:
        monkeypatch.setattr(stages, "time_cores", others_end)
    second = tiny_calibration(path, tiny("batchnorm"))
    assert second.tasks.keys() == {tiny("mlp"), tiny("batchnorm")}
    assert second.tasks[tiny("mlp")] == first.tasks[tiny("mlp")]
    assert second.crowd("threads", tiny("mlp")) == first.crowd("threads", tiny("mlp"))
    assert second.tasks[tiny("batchnorm")].points[0].rows == 2, "one row has no statistics"
    assert open_calibration(path) == second


def test_bare_threads_on_all_cores_tell_of_more_workers(
    tmp_path: Path, tiny: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = CoreTimes(compute_us={1: [1.0], 3: [2.0]}, compute_flops=1, memory_us={1: 1.0, 3: 3.0}, lock_us={1: 1.0})
    monkeypatch.setattr(stages, "time_cores", lambda cores: told if cores == 3 else None)
    monkeypatch.setattr(facts, "cores", lambda: 3)
    assert tiny_calibration(tmp_path / "here.json", tiny("mlp"), ranks=2).cores == told


@pytest.mark.parametrize("lost", ["cores", "pass_operations"])
def test_a_calibration_of_an_earlier_version_is_refused(made: Calibration, tmp_path: Path, lost: str) -> None:
    older = json.loads(made.model_dump_json())
    for holder in (older, *older["tasks"].values()):
        holder.pop(lost, None)
    path = tmp_path / "older.json"
    path.write_text(json.dumps(older))
    with pytest.raises(UserError, match="no calibration of this version; remove it and calibrate again"):
        open_calibration(path)


def test_what_other_versions_measured_is_dropped_and_said(
    made: Calibration, tmp_path: Path, tiny: Callable[[str], str]
) -> None:
    path, said = tmp_path / "here.json", []
    older = made.model_copy(update={"versions": {**made.versions, "torch": "0.1"}})
    path.write_text(older.model_dump_json())
    found = tiny_calibration(path, tiny("adam"), say=said.append)
    assert found.tasks.keys() == {tiny("adam")}
    assert any("other versions: torch 0.1 then" in sentence and "mlp is dropped" in sentence for sentence in said)


def test_another_machines_file_is_left_alone(made: Calibration, tmp_path: Path, tiny: Callable[[str], str]) -> None:
    path = tmp_path / "theirs.json"
    theirs = made.model_copy(update={"machine": "theirs, fast, 64 cores"})
    path.write_text(theirs.model_dump_json())
    with pytest.raises(UserError, match=r"is the calibration of another machine, theirs, fast, 64 cores; give another"):
        tiny_calibration(path, tiny("mlp"))
    assert open_calibration(path) == theirs
    sentences = differences(theirs, facts.hardware(), facts.versions())
    assert len(sentences) == 1
    assert "of another machine: it is of theirs, fast, 64 cores, this is" in sentences[0]


def test_a_calibration_of_this_machine_with_these_versions_differs_in_nothing(made: Calibration) -> None:
    assert differences(made, facts.hardware(), facts.versions()) == []


@pytest.mark.parametrize(("disturbed_pct", "says"), [(0.0, False), (1.0, False), (50.0, True)])
def test_a_busy_machine_is_said(made: Calibration, disturbed_pct: float, says: bool) -> None:
    """Of steps of one millisecond every second one is disturbed: 500 times a second."""
    (costs,) = made.tasks.values()
    points = [
        point.model_copy(update={"compute_ms": [1.0] * 9, "disturbed_pct": disturbed_pct}) for point in costs.points
    ]
    tasks = {costs.task: costs.model_copy(update={"points": points})}
    busy = made.model_copy(update={"tasks": tasks, "contention": [], "others": None})
    said: list[str] = []
    say_if_busy(busy, said.append)
    assert [("about 500 times a second" in sentence) for sentence in said] == [True] * says
    others = Others(host="here", cores=1.2, of=2.0, wanted=2)
    say_if_busy(busy.model_copy(update={"others": others}), said.append)
    assert said[-1].startswith("other programs used 1.2 of 2 cores during the calibration")


def test_ctrl_c_leaves_the_file_as_it_was(tmp_path: Path, tiny: Callable[[str], str]) -> None:
    path = tmp_path / "here.json"

    def interrupt(progress: stages.Progress) -> None:
        if progress.done > 0.1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny_calibration(path, tiny("mlp"), observe=interrupt)
    assert not path.exists()


@pytest.mark.parametrize(
    ("batch", "samples", "points"),
    [
        (64, 10_000, [1, 2, 4, 8, 16, 32, 64, 128]),
        (10, 97, [1, 2, 5, 10, 20]),
        (50, 50, [1, 3, 6, 12, 25, 50]),
        (1, 97, [1, 2]),
        (1, 1, [1]),
        (1024, 10_000, [1, 4, 16, 64, 256, 1024, 2048]),
        (60_000, 60_000, [1, 3, 14, 58, 234, 937, 3750, 15_000, 60_000]),
    ],
)
def test_the_rows_to_measure(batch: int, samples: int, points: list[int]) -> None:
    assert row_points(batch, samples) == points


def test_the_numbers_of_ranks_to_measure() -> None:
    assert [crowds(most) for most in (2, 3, 4, 12)] == [[2], [2, 3], [2, 4], [2, 4, 8, 12]]


def test_a_call_takes_from_the_last_beginning_to_the_last_end() -> None:
    """The second rank is late; the first is done last. Of a message only one rank's word counts."""
    one, two = [
        [{"call": "reduce", "num_bytes": 8, "stamps": [own]}, {"call": "send", "num_bytes": 8, "stamps": [message]}]
        for own, message in (((1.0, 4.0), (5.0, 5.5)), ((3.0, 3.5), (0.0, 0.0)))
    ]
    found = joined_calls([one, two])
    assert [(each.call, each.ranks, each.us) for each in found] == [("reduce", 2, [1e6]), ("send", 2, [5e5])]


def test_steps_of_several_ranks_stay_together_block_by_block() -> None:
    own = [
        [{"rows": 4, "block": 2, "compute_ms": ms, "serial_ms": [0.5] * 4, "disturbed": rank}]
        for rank, ms in enumerate(([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]))
    ]
    (found,) = joined_steps(own)
    assert found.compute_ms == [1, 2, 10, 20, 3, 4, 30, 40]
    assert found.block == 4
    assert found.disturbed_pct == 12.5


def test_every_rank_makes_every_call(ranks: Callable[[Callable[[Comm], Any], int], list[Any]]) -> None:
    """With three ranks, of which two send messages; a reduce-scatter's tensor has a row for each."""
    found = joined_calls(ranks(lambda comm: time_calls(comm, 1e-3, lambda done: done < 1, SIZES), 3))
    assert {each.call for each in found} == {
        "all-reduce", "reduce", "broadcast", "all-gather", "reduce-scatter", "send", "stream", "barrier",
    }  # fmt: skip
    assert {each.num_bytes for each in found if each.call == "reduce-scatter"} == {0, 12, 4104}
    assert all(each.ranks == 3 and min(each.us) > 0 for each in found)


def test_reading_what_is_not_there_says_what_to_type(
    made: Calibration, tmp_path: Path, tiny: Callable[[str], str]
) -> None:
    path = tmp_path / "here.json"
    with pytest.raises(UserError, match=r"this machine is not calibrated: .*here.json'; run 'manyhands calibrate mlp'"):
        read_calibration(path, "mlp")
    with pytest.raises(UserError, match=rf"run 'manyhands calibrate mlp --calibration {path}'"):
        read_calibration(path, "mlp", named=True)
    path.write_text(made.model_dump_json())
    with pytest.raises(UserError, match=r"task 'cnn' is not calibrated in .*; run 'manyhands calibrate cnn'"):
        read_calibration(path, "cnn")
    with pytest.raises(
        UserError, match=rf"engine mpi is not .*; run 'manyhands calibrate {tiny('mlp')} --engines mpi'"
    ):
        read_calibration(path, tiny("mlp"), "mpi")
    path.write_text('{"machine": 1}')
    with pytest.raises(UserError, match=r"is damaged, or no calibration of this version"):
        read_calibration(path, "mlp")
    with pytest.raises(UserError, match=r"cannot be read"):
        read_calibration(tmp_path, "mlp")


def test_every_machine_has_a_file_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    hardware = {"host": "a/b", "cpu": "Fast (R) 3 GHz", "cores": 4}
    monkeypatch.setattr(facts, "hardware", lambda: hardware)
    here = calibration_path()
    assert here == tmp_path / "manyhands" / "calibration" / "a-b-Fast-R-3-GHz-4-cores.json"
    hardware["cores"] = 2
    assert calibration_path() != here


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run `manyhands calibrate`; each call returns (status, stdout, stderr)."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["manyhands", "calibrate", *words])
        with pytest.raises(SystemExit) as exit_:
            main()
        return (int(exit_.value.code or 0), *capfd.readouterr())

    return run


def test_the_command_prints_tables_and_keeps_the_file(
    tmp_path: Path, command: Command, tiny: Callable[[str], str]
) -> None:
    status, out, err = command(tiny("mlp"), "--engines", "threads", "--budget", "0.6s", "--over-budget")
    assert status == 0
    (kept,) = (tmp_path / "data").rglob("*.json")
    assert f"kept in {kept}" in err.replace("\n", "")
    assert "threads ×2" in err, "progress"
    assert "tiny.py:mlp: a step of one worker, ms (231 parameters, batch 10)" in out
    assert "slices of shared memory" in out
    assert "adam" not in json.loads(kept.read_text())["tasks"]


def test_json_is_one_object(tmp_path: Path, command: Command, tiny: Callable[[str], str]) -> None:
    path = tmp_path / "own.json"
    options = ("--engines", "threads", "--budget", "0.6s", "--over-budget", "--calibration", str(path), "--json")
    status, out, err = command(tiny("mlp"), *options)
    assert status == 0
    assert Calibration.model_validate_json(out) == open_calibration(path)
    assert "calls between ranks" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nonsense"], "there is no task 'nonsense'"),
        (["mlp", "--engines", "thread"], "there is no engine to calibrate 'thread'; did you mean 'threads'?"),
        (["mlp", "--engines", "serial"], "there is no engine to calibrate 'serial'"),
        (["mlp", "--engines", ","], "which engines? for example: --engines threads,mpi"),
        (["mlp", "--ranks", "0"], "ranks must be at least 2, got 0"),
        (["mlp", "--ranks", "3"], "ranks must be from 2 to the 2 cores that are here, got 3"),
        (["mlp", "--ranks", "-1"], "ranks must be from 2 to the 2 cores that are here, got -1"),
        (["mlp", "--budget", "0.01s"], "the least that a calibration measures, in 3 launches, takes about"),
        (["mlp", "--budget", "soon"], "a budget is written like 90s, 5m, 1h or 1m30s, got 'soon'"),
        (
            ["mlp", "--calibration", "/dev/null/x.json"],
            "the calibration '/dev/null/x.json' cannot be read: Not a directory",
        ),
        (["mlp", "--calibration", "/proc/none/x.json"], "cannot write the calibration '/proc/none/x.json'"),
    ],
)
def test_bad_requests_get_one_sentence(command: Command, words: list[str], sentence: str) -> None:
    status, out, err = command(*words)
    assert status == 2
    assert out == ""
    assert err.startswith(f"manyhands: {sentence}")
    assert err.count("\n") == 1


def test_one_core_is_too_few(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "cores", lambda: 1)
    status, _, err = command("mlp")
    assert status == 2
    assert "a calibration needs two cores or more" in err
