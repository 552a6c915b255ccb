"""A whole reproduction with made-up runs: order, records, failures, stopping and going on."""

import json
from pathlib import Path

import pytest
from faked_papers import taker

from manyhands.errors import UserError
from manyhands.record.owner import own
from manyhands.record.papers import ReproductionDir, ReproductionRecord, Taken
from manyhands.report import papers as words
from manyhands.reproduction.base import HostFacts, Setting
from manyhands.reproduction.papers import papers_of
from manyhands.reproduction.predict import Calibrated
from manyhands.reproduction.run import Observer, ReproductionPulse, plan, reproduce
from manyhands.reproduction.store import read_taken, to_resume


def folder_of(out: Path, record: ReproductionRecord) -> ReproductionDir:
    return ReproductionDir(out / record.id)


def test_all_is_measured_in_turn_and_kept(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    record = reproduce("002", out=tmp_path, take=taker(seen))
    assert record.status == "complete"
    assert [repeat for _, repeat in seen] == sorted(repeat for _, repeat in seen)
    assert {repeat for _, repeat in seen} == {0, 1, 2}
    assert len(seen) == len(set(seen)) == len(record.taken)
    folder = folder_of(tmp_path, record)
    assert folder.read() == record
    assert read_taken(folder) == record.taken
    assert record.command == "manyhands reproduce 002"


def test_quick_runs_once(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    record = reproduce("001", quick=True, out=tmp_path, take=taker(seen))
    assert {repeat for _, repeat in seen} == {0}
    assert record.quick
    assert record.command == "manyhands reproduce 001 --quick"


def test_all_papers_are_there(tmp_path: Path) -> None:
    record = reproduce("all", quick=True, out=tmp_path, take=taker([]))
    assert [paper.number for paper in record.papers] == ["000", "001", "002", "003", "004"]


def test_progress_ends_at_the_total_and_with_nothing_left(tmp_path: Path) -> None:
    pulses: list[ReproductionPulse] = []
    said: list[str] = []
    reproduce("001", quick=True, out=tmp_path, take=taker([]), observe=Observer(pulses.append, said.append))
    assert pulses[-1].done == pulses[-1].total
    assert pulses[-1].left_s == 0
    assert [p.done for p in pulses] == sorted(p.done for p in pulses)
    assert any("about 1 min on 2 cores" in line for line in said)


def test_settings_beyond_the_cores_are_predicted_once_and_kept_apart(
    tmp_path: Path, calibrated: list[Calibrated]
) -> None:
    stopped = reproduce("001", out=tmp_path, take=stopping([], 5))
    record = reproduce("001", out=tmp_path, resume=True, take=taker([]))
    assert [(task.task, task.engines) for task in calibrated] == [("mlp", ("mpi", "threads"))], "not again"
    assert stopped.predictions
    assert sorted(map(str, stopped.predictions)) == sorted(map(str, record.predictions))
    table = next(table for table in record.papers[0].tables if table.name == "table 4")
    for row in table.rows:
        speed_up = row.figures[-1]
        assert (speed_up.predicted is not None) == (row.oversubscribed and row.labels[0] != "Hybrid"), row.labels
        if speed_up.predicted:
            assert row.verdict == "oversubscribed", "a prediction reproduces nothing"
            assert speed_up.predicted.value == pytest.approx(row.workers)
            assert "speed-up predicted: " in row.why
    assert any("Not predicted: Hybrid 2×2" in note for note in table.notes)


def test_quick_predicts_nothing(tmp_path: Path, calibrated: list[Calibrated]) -> None:
    record = reproduce("001", quick=True, out=tmp_path, take=taker([]))
    assert not calibrated
    assert not record.predictions


def test_a_setting_that_fails_is_marked_and_the_rest_goes_on(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    fails = taker(seen, lambda setting: "rank 3 on host a was killed" if setting.workers == 4 else "")
    record = reproduce("002", out=tmp_path, repeats=4, take=fails)
    assert record.status == "complete"
    tried = [repeat for key, repeat in seen if "workers=4" in key and "replicate=12" in key]
    assert tried == [0, 1], "a setting that failed twice is not tried again"
    verdicts = {row.labels[0]: row.verdict for row in record.papers[0].tables[0].rows}
    assert verdicts["4"] == "failed"
    assert "failed" not in (verdicts["1"], verdicts["2"], verdicts["8"])
    assert "rank 3 on host a was killed" in words.markdown(record)


def stopping(seen: list[tuple[str, int]], after: int):  # type: ignore[no-untyped-def]
    inner = taker(seen)

    def take(setting: Setting, folder: ReproductionDir, repeat: int) -> Taken:
        if len(seen) == after:
            raise KeyboardInterrupt
        return inner(setting, folder, repeat)

    return take


def test_a_stopped_one_goes_on_where_it_was(tmp_path: Path) -> None:
    before: list[tuple[str, int]] = []
    stopped = reproduce("001", out=tmp_path, take=stopping(before, 5))
    assert stopped.status == "interrupted"
    assert any(row.verdict == "not judged" for t in stopped.papers[0].tables for row in t.rows)
    after: list[tuple[str, int]] = []
    record = reproduce("001", out=tmp_path, resume=True, take=taker(after))
    assert record.id == stopped.id
    assert record.status == "complete"
    assert not set(before) & set(after)
    whole: list[tuple[str, int]] = []
    reproduce("001", out=tmp_path, take=taker(whole))
    assert [*before, *after] == whole


def test_what_does_not_fit_the_budget_is_left_for_later(tmp_path: Path) -> None:
    before: list[tuple[str, int]] = []
    shortest_s = min(setting.about_s for setting in plan_of("003", quick=False))
    some = reproduce("003", out=tmp_path, take=taker(before), budget_s=1.5 * shortest_s)
    assert some.status == "interrupted"
    assert before
    after: list[tuple[str, int]] = []
    whole = reproduce("003", out=tmp_path, resume=True, take=taker(after))
    assert whole.status == "complete"
    assert not set(before) & set(after)
    with pytest.raises(UserError, match="budget must be more than 0 s, got -1"):
        reproduce("003", out=tmp_path, budget_s=-1, take=taker([]))


def test_one_that_is_going_on_is_not_resumed(tmp_path: Path) -> None:
    stopped = reproduce("001", quick=True, out=tmp_path, take=stopping([], 3))
    after: list[tuple[str, int]] = []
    with own(tmp_path / stopped.id, "it"), pytest.raises(UserError, match=f"'{stopped.id}' is in use by process"):
        reproduce("001", quick=True, out=tmp_path, resume=True, take=taker(after))
    assert not after


def test_a_line_that_was_cut_off_is_measured_again(tmp_path: Path) -> None:
    stopped = reproduce("001", quick=True, out=tmp_path, take=stopping([], 3))
    folder = folder_of(tmp_path, stopped)
    text = folder.taken.read_text()
    folder.taken.write_text(text[:-20])
    after: list[tuple[str, int]] = []
    reproduce("001", quick=True, out=tmp_path, resume=True, take=taker(after))
    assert len(after) == len(plan_of("001")) - 2
    assert all(json.loads(line) for line in folder.taken.read_text().splitlines())


def plan_of(number: str, *, quick: bool = True) -> list[Setting]:
    return plan(papers_of(number, HostFacts(2)), quick=quick)


def test_what_failed_is_tried_again_when_going_on(tmp_path: Path) -> None:
    seen: list[tuple[str, int]] = []
    fails = taker(seen, lambda setting: "no memory" if setting.workers == 2 else "")

    def take(setting: Setting, folder: ReproductionDir, repeat: int) -> Taken:
        if len(seen) == 6:
            raise KeyboardInterrupt
        return fails(setting, folder, repeat)

    reproduce("001", quick=True, out=tmp_path, take=take)
    after: list[tuple[str, int]] = []
    record = reproduce("001", quick=True, out=tmp_path, resume=True, take=taker(after))
    assert {key for key, _ in after} >= {key for key, _ in seen if "workers=2" in key and "threads=2" not in key}
    assert not any(one.failed for one in record.taken)


@pytest.mark.parametrize("other", [{"quick": True}, {"asked": "002"}])
def test_only_the_same_request_goes_on(tmp_path: Path, other: dict[str, object]) -> None:
    reproduce("001", out=tmp_path, take=stopping([], 1))
    asked = {"asked": "001", "quick": False, **other}
    with pytest.raises(UserError, match="there is no unfinished reproduction of"):
        to_resume(tmp_path, str(asked["asked"]), quick=bool(asked["quick"]))


def test_a_complete_one_does_not_go_on(tmp_path: Path) -> None:
    reproduce("001", quick=True, out=tmp_path, take=taker([]))
    with pytest.raises(UserError, match="no unfinished"):
        reproduce("001", quick=True, out=tmp_path, resume=True, take=taker([]))


def test_times_of_two_machines_are_not_mixed(tmp_path: Path) -> None:
    stopped = reproduce("001", out=tmp_path, take=stopping([], 1))
    folder = folder_of(tmp_path, stopped)
    elsewhere = stopped.model_copy(update={"hardware": {**stopped.hardware, "cores": 512}})
    folder.record.write_text(elsewhere.model_dump_json())
    with pytest.raises(UserError, match="512 cores; times of two machines cannot be mixed"):
        reproduce("001", out=tmp_path, resume=True, take=taker([]))


def test_bad_requests_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no paper 'mlp'"):
        reproduce("mlp", out=tmp_path, take=taker([]))
    with pytest.raises(UserError, match="repeats must be at least 1, got 0"):
        reproduce("001", out=tmp_path, repeats=0, take=taker([]))
    with pytest.raises(UserError, match="keeps its repeats"):
        reproduce("001", out=tmp_path, repeats=2, resume=True, take=taker([]))
    assert not list(tmp_path.iterdir())


def test_an_out_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write to --out"):
        reproduce("001", out=tmp_path / "file", take=taker([]))


def test_a_damaged_file_of_runs_is_one_sentence(tmp_path: Path) -> None:
    stopped = reproduce("001", out=tmp_path, take=stopping([], 2))
    folder_of(tmp_path, stopped).taken.write_text("nonsense\n")
    with pytest.raises(UserError, match="is damaged"):
        reproduce("001", out=tmp_path, resume=True, take=taker([]))
