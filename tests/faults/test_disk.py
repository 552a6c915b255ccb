"""A full disk and a deleted run folder are named with the file and the reason, whatever starts the ranks.

The disk is a real one, though in memory; only root may mount it.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import manyhands
from manyhands.cli.main import main
from manyhands.record.run import RunDir
from manyhands.record.status import status_of

TASK = f"{Path(__file__).with_name('disk.py')}:task"
SIZE = 2**20

Run = Callable[..., tuple[int | str | None, str]]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if not mount or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk cannot be mounted here: only root may")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run `manyhands train` in a folder; return its exit status, and what it wrote on stderr."""

    def run(folder: Path, *options: str, **environment: str) -> tuple[int | str | None, str]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["manyhands", "train", TASK, *options])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, capfd.readouterr().err

    return run


@pytest.mark.parametrize("engine", ["serial", "threads --workers 2", "mpi --workers 2", "torch --workers 2"])
def test_a_full_disk_is_named(run: Run, disk: Path, engine: str) -> None:
    status, stderr = run(disk, "--engine", *engine.split(), LEAVE_BYTES="0")
    assert status == 1
    assert re.search(r"^manyhands: cannot write '\S+/steps.jsonl': No space left on device$", stderr, re.M)
    assert "Traceback" not in stderr
    assert "manyhands-failure" not in stderr
    (folder,) = RunDir.all_in(disk / "runs")
    assert not folder.live.exists()
    assert status_of(folder).word in ("failed", "unfinished"), "as far as there was room to say so"


def test_a_disk_that_is_full_from_the_start_is_named_before_any_rank_starts(run: Run, disk: Path) -> None:
    (disk / "filler").write_bytes(bytes(SIZE))
    status, stderr = run(disk, "--engine", "mpi", "--workers", "2")
    assert status == 1
    assert re.fullmatch(r"manyhands: cannot write '\S+/owner.json': No space left on device\n", stderr)
    assert not [path for path in (disk / "runs").rglob("*") if path.is_file()]


@pytest.mark.parametrize("engine", ["serial", "hybrid --workers 2 --threads 2"])
def test_a_deleted_run_folder_is_named(run: Run, tmp_path: Path, engine: str) -> None:
    status, stderr = run(tmp_path, "--engine", *engine.split())
    assert status == 1
    assert re.search(r"^manyhands: cannot write '\S+/steps.jsonl': No such file or directory$", stderr, re.M)
    assert "Traceback" not in stderr
    assert not list(tmp_path.glob("runs/*/*")), "nothing is made again"


def test_the_record_is_kept_where_only_the_weights_cannot_be_written(run: Run, disk: Path) -> None:
    status, stderr = run(disk, "--steps", "45", "--checkpoint-every", "30", LEAVE_BYTES="20000")
    assert status == 1
    sentence = r"^manyhands: cannot write '\S+/model.safetensors': No space left on device; the record is kept"
    assert re.search(sentence, stderr, re.M)
    (folder,) = RunDir.all_in(disk / "runs")
    record = folder.read()
    assert record is not None
    assert record.steps == 45
    assert record.weights_missing.endswith("/model.safetensors': No space left on device")
    assert not list(folder.path.rglob("*.tmp"))
    (disk / "filler").unlink()
    resumed = manyhands.train(TASK, resume=True, out=disk / "runs")
    assert (resumed.resumed_from, resumed.weights_missing) == (30, "")
    assert resumed.weights_sha256 == record.weights_sha256
    assert RunDir(folder.path).model.is_file()
    assert status_of(folder).word == "complete"
