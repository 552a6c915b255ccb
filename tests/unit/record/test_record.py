"""A run's folder: what is in it, how it is named and found, and that readers see whole files."""

import errno
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from manyhands.config import make_config, read_toml
from manyhands.errors import CannotWrite, UserError
from manyhands.record.advice import AdviceDir
from manyhands.record.files import write_atomically
from manyhands.record.papers import ReproductionDir
from manyhands.record.run import RunDir, RunRecord, new_id, open_run, read_steps
from manyhands.record.simulation import SimulationDir, ValidationDir
from manyhands.record.sweep import SweepDir


def _opened(out: Path, name: str, **settings: object) -> RunDir:
    config = make_config({"task": "mlp", **settings})
    open_run(RunDir(out / name), config)
    return RunDir(out / name)


def test_opening_writes_the_settings(tmp_path: Path) -> None:
    run = _opened(tmp_path / "deep" / "out", "a", workers=3, engine="mpi")
    assert make_config(read_toml(run.toml)).workers == 3
    assert run.read_or_none() is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot write to --out"):
        _opened(tmp_path, "a")


def test_a_file_in_the_folders_place_is_explained(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(UserError, match="cannot write to --out"):
        _opened(tmp_path / "out", "a")


def test_writing_replaces_the_whole_file_and_leaves_nothing_beside(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    for text in ("long text" * 100, "short", ""):
        write_atomically(file, text)
        assert file.read_text() == text
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_written_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is flushed, then renamed, then the folder is flushed, or a loss of power might leave half of it."""
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def flushed(number: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(number).st_mode) else f"file of {os.fstat(number).st_size}")
        fsync(number)

    def renamed(old: Path, new: Path) -> None:
        done.append(f"named {Path(new).name}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    write_atomically(tmp_path / "a", "four")
    write_atomically(tmp_path / "b", b"\xff")
    assert done == ["file of 4", "named a", "folder", "file of 1", "named b", "folder"]


def test_a_file_that_cannot_be_written_is_named_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "deleted" / "record.json"
    with pytest.raises(CannotWrite) as caught:
        write_atomically(path, "text")
    assert str(caught.value) == f"cannot write '{path}': No such file or directory"
    assert (caught.value.errno, caught.value.strerror) == (errno.ENOENT, "No such file or directory")


def test_a_failed_write_leaves_nothing_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_atomically(tmp_path / "record.json", "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CannotWrite, match="No space left on device"):
        write_atomically(tmp_path / "record.json", "new")
    (file,) = tmp_path.iterdir()
    assert file.read_text() == "old"


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    write_atomically(file, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(file, "new \udcff")
    assert file.read_text() == "old"


def test_ids_are_unique_and_say_what_ran() -> None:
    config = make_config({"task": "/home/me/my_task.py:net", "engine": "hybrid", "workers": 2, "threads": 3})
    ids = {new_id(config) for _ in range(50)}
    assert len(ids) == 50
    assert all("-my_task-hybrid2x3-" in i for i in ids)
    assert not any("/" in i or ":" in i for i in ids)


def test_runs_are_found_by_id_part_path_and_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = _opened(tmp_path, "20260101-mlp-serial1-aaaa"), _opened(tmp_path, "20260102-mlp-mpi2-bbbb")
    (tmp_path / "not-a-run").mkdir()
    assert RunDir.all_in(tmp_path) == [a, b]
    assert RunDir.find(tmp_path, "last") == b
    assert RunDir.find(tmp_path, "20260101-mlp-serial1-aaaa") == a
    assert RunDir.find(tmp_path, "mpi2") == b
    assert RunDir.find(Path("elsewhere"), str(a.path)) == a
    monkeypatch.chdir(tmp_path)
    assert RunDir.find(Path("elsewhere"), b.path.name).path.resolve() == b.path


def test_a_run_that_cannot_be_told_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are no runs under"):
        RunDir.find(tmp_path, "last")
    _opened(tmp_path, "20260101-mlp-serial1-aaaa")
    _opened(tmp_path, "20260102-mlp-mpi2-bbbb")
    with pytest.raises(UserError, match="'mlp' fits 2 runs"):
        RunDir.find(tmp_path, "mlp")
    with pytest.raises(UserError, match="did you mean '20260102-mlp-mpi2-bbbb'"):
        RunDir.find(tmp_path, "20260102-mlp-mpi2-bbcc")


def test_a_whole_id_is_found_though_another_contains_it(tmp_path: Path) -> None:
    a = _opened(tmp_path, "baseline")
    _opened(tmp_path, "baseline-2")
    assert RunDir.find(tmp_path, "baseline") == a


def test_last_is_the_newest_of_two_runs_in_one_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.strftime", lambda *_: "20260101-120000")
    for engine in ("threads", "mpi", "hybrid"):
        config = make_config({"task": "mlp", "engine": engine, "workers": 2})
        newest = RunDir(tmp_path / new_id(config))
        open_run(newest, config)
    assert RunDir.find(tmp_path, "last") == newest


def test_a_run_leaves_its_folder_as_promised(train, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    record = train(engine="threads", workers=2, epochs=2, checkpoint_every=7, keep=2)
    run = RunDir.find(tmp_path, record.id)
    assert sorted(p.name for p in run.path.iterdir()) == [
        "checkpoints",
        "model.safetensors",
        "record.json",
        "run.toml",
        "steps.jsonl",
    ]
    assert run.read() == record
    assert make_config(read_toml(run.toml)) == record.config
    assert [p.name for p in sorted(run.checkpoints.iterdir())] == [
        "step-000000007.safetensors",
        "step-000000014.safetensors",
    ]
    lines = read_steps(run)
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert all(line.keys() == {"step", "loss", "ms"} for line in lines)


def test_the_record_has_the_schema_of_the_design(train) -> None:  # type: ignore[no-untyped-def]
    promised = (
        "task engine sync workers threads batch_size epochs steps seed device parameters train_loss test_loss "
        "test_accuracy samples_per_s epoch_s step_ms compute_s comm_s wait_s read_s eval_s total_s bytes_sent messages "
        "weights_sha256 hardware versions config"
    )
    record = train(steps=2)
    stored = json.loads(record.model_dump_json())
    assert set(promised.split()) <= stored.keys()
    assert set(stored["step_ms"]) == {"median", "p90"}
    assert RunRecord.model_validate_json(record.model_dump_json()) == record


def test_the_records_figures_agree_with_each_other(train) -> None:  # type: ignore[no-untyped-def]
    record = train(engine="threads", workers=3, epochs=2, batch_size=40)
    assert (record.steps, record.epochs, record.samples, record.batch_size) == (6, 2, 2 * 97, 40)
    assert len(record.train_loss) == len(record.epoch_s) == 2
    assert [r.rank for r in record.ranks] == [0, 1, 2]
    for key in ("compute_s", "comm_s", "wait_s"):
        values = [getattr(r, key) for r in record.ranks]
        assert getattr(record, key) == pytest.approx(sum(values) / 3)
        assert min(values) >= 0
    assert record.parameters == 12 * 10 + 10 + 10 * 7 + 7 + 7 * 3 + 3


def test_threads_that_write_the_same_file_leave_a_whole_one_at_every_moment(tmp_path: Path) -> None:
    file, seen = tmp_path / "failure.json", set()
    writers = [threading.Thread(target=_write_often, args=(file, letter * 5000)) for letter in "abc"]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        if file.is_file():
            text = file.read_text()
            seen.add((len(text), len(set(text))))
    assert seen == {(5000, 1)}


def _write_often(file: Path, text: str) -> None:
    for _ in range(50):
        write_atomically(file, text)


KINDS = (AdviceDir, ReproductionDir, RunDir, SimulationDir, SweepDir, ValidationDir)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_is_missing_or_damaged_is_said_in_one_sentence(kind: Any, tmp_path: Path) -> None:
    folder = kind(tmp_path)
    with pytest.raises(UserError, match=f"there is no .* in '{tmp_path}'"):
        folder.read()
    for text in (b"", b"{", b'{"id": 3}', b"\xff\xfe"):
        folder.record.write_bytes(text)
        with pytest.raises(UserError, match=f"'{folder.record}' is damaged: it is no "):
            folder.read()
