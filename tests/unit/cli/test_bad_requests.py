"""A bad request gets one sentence and exit status 2, before any worker starts."""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from manyhands.cli.main import main

LBFGS = """
import torch
import manyhands

task = manyhands.Task(model=torch.nn.Linear(12, 10), data="synthetic:features=12", optimizer=torch.optim.LBFGS)
"""
DIMENSIONS = "dimensions"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with some bad files in it."""
    monkeypatch.chdir(tmp_path)
    x, y = np.random.default_rng(0).random((60, 4), np.float32), np.arange(60) % 3
    good = {"x_train": x, "y_train": y, "x_test": x[:9], "y_test": y[:9]}
    np.savez("nan.npz", **{**good, "x_train": np.where(np.arange(240).reshape(60, 4) == 30, np.nan, x)})
    np.savez("label.npz", **{**good, "y_test": np.arange(9)})
    Path("corrupt.npz").write_bytes(b"PK, but not really")
    Path("no_task.py").write_text("x = 1\n")
    Path("broken.py").write_text("import there_is_no_such_module\n")
    Path("other.py").write_text("task = 'not a Task'\n")
    Path("bad.toml").write_text("workers = = 2\n")
    Path("wrong.toml").write_text('task = "mlp"\nworkerz = 2\n')
    Path("deep.toml").write_text("task = 'mlp'\ndata = " + "[" * 5000 + "]" * 5000)
    Path("digits.toml").write_text("task = 'mlp'\nworkers = " + "9" * 5000)
    Path("latin.toml").write_bytes(b"task = 'mlp' # caf\xe9")
    Path("lbfgs.py").write_text(LBFGS)
    Path(DIMENSIONS).mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        Path(DIMENSIONS, f"{name}-ubyte").write_bytes(b"\0\0\x08\x64" + b"\0\0\0\x01" * 100 + b"x")
    Path("not\udcff.py").write_text(LBFGS)
    Path("stored/a").mkdir(parents=True)
    Path("stored/a/run.toml").write_text('task = "mlp"')
    Path("stored/a/record.json").write_bytes(b"\x80\0 half of a record")
    Path("idx").mkdir()
    for part in ("train", "t10k"):
        images, labels = b"\0\0\x08\x03" + b"\0\0\0\x09" * 3 + b"short", b"\0\0\x08\x01\0\0\0\x09" + bytes(9)
        Path("idx", f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        Path("idx", f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels))
    Path("a_file").write_text("")
    return tmp_path


def run(line: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run a command line; return its exit status."""
    monkeypatch.setattr(sys, "argv", ["manyhands", *line.split()])
    with pytest.raises(SystemExit) as exit_:
        main()
    return int(exit_.value.code or 0)


BAD = {
    "train mpl": "did you mean 'mlp'?",
    "train mlp --engine mpii": "did you mean 'mpi'?",
    "train mlp --sync alreduce": "did you mean 'allreduce'?",
    "train mlp --sync allreduce:period=2": "has no options",
    "train mlp --worker 2": "did you mean --workers?",
    "trian mlp": "did you mean train?",
    "train": "which task?",
    "train mlp too-much": "extra argument",
    "train mlp --workers 0": "workers must be at least 1, got 0",
    "train mlp --workers=-1": "workers must be at least 1, got -1",
    "train mlp --workers 2.5": "workers must be a whole number",
    "train mlp --engine threads --workers 200 --data mnist:train=100": "200 workers cannot share 100",
    "train mlp --engine serial --workers 2": "engine serial has one worker, got 2",
    "train mlp --engine threads --workers 2 --threads 2": "--threads belongs to engine hybrid",
    "train mlp --engine mpi --workers 2 --threads 2": "--threads belongs to engine hybrid",
    "train mlp --engine mpi --workers 2 --mpiexec no-such-mpiexec": "no command 'no-such-mpiexec'",
    "train mlp --batch-size 0": "batch-size must be at least 1, got 0",
    "train mlp --batch-size many": "batch-size must be a whole number or 'full', got 'many'",
    "train mlp --batch-size 64 --batch-per-worker 8": "not both",
    "train mlp --batch-per-worker 0": "batch-per-worker must be at least 1",
    "train mlp --lr nan": "lr must be a finite number",
    "train mlp --lr=-1": "lr must be at least 0",
    "train mlp --warmup 20": "a warmup of 20 epochs must be shorter than the run's 20",
    "train mlp --warmup -1": "warmup must be at least 0",
    "train mlp --lr-decay square": "lr-decay must be 'none', 'linear' or 'cosine'",
    "train mlp --top 0": "top must be at least 1",
    "train mlp --engine threads --workers 2 --sync local-sgd:period=0": "period of local-sgd must be at least 1",
    "train mlp --engine threads --workers 2 --sync parameter-server:servers=0": "servers must be at least 1",
    "train mlp --engine threads --workers 2 --sync compressed:codec=zip": "there is no codec 'zip'",
    "train mlp --engine threads --workers 2 --sync compressed:codec=topk,ratio=2": "ratio",
    "train mlp --engine threads --workers 2 --sync compressed:codec=fp16,rank=2": "has no options",
    "train mlp --engine threads --workers 2 --sync local-sgd --exact": "--exact needs an exact sync",
    "train mlp --engine serial --sync parameter-server": "needs servers, which engine 'serial' does not have",
    "train mlp --engine threads --workers 2 --sync async-server:replay=nowhere": "to replay",
    "train mlp --lr-scaling square": "there is no lr-scaling 'square'",
    "train softmax --lr-scaling linear": "needs a batch size that is a number",
    "train mlp --epochs 0": "epochs must be at least 1, got 0",
    "train mlp --steps=-1": "steps must be at least 0, got -1",
    "train mlp --seed=-1": "seed must be at least 0, got -1",
    "train mlp --device gpu": "device must be 'cpu', 'cuda' or 'auto', got 'gpu'",
    "train mlp --dtype half": "dtype must be 'float32' or 'float64'",
    "train mlp --exact --engine threads --workers 9": "add --lanes 16",
    "train mlp --exact --lanes 6": "power of two",
    "train mlp --image-size 30": "28, 56, 112, got 30",
    "train cnn --image-size 56": "does not take samples of shape (1, 56, 56)",
    "train mlp --replicate 0": "replicate must be at least 1",
    "train mlp --data mnits": "did you mean 'mnist'?",
    "train mlp --data mnist:train=0": "between 1 and 60000, got 0",
    "train mlp --data npz:missing.npz": "there is no file 'missing.npz'",
    "train mlp --data npz:corrupt.npz": "'corrupt.npz' cannot be read",
    "train mlp --data npz:nan.npz": "row 7 of the training inputs of npz holds a NaN",
    "train mlp --data npz:label.npz": "label 3",
    "train mlp --data idx:idx": "cut short",
    "train mlp --data idx:missing": "'missing'",
    "train mlp --data npy:missing": "'missing'",
    "train mlp --out a_file": "cannot write to --out 'a_file'",
    "train mlp --out a_file/below": "cannot write to --out",
    "train mlp --config missing.toml": "no config file 'missing.toml'",
    "train --config bad.toml": "not valid TOML",
    "train --config wrong.toml": "did you mean 'workers'?",
    "train --config deep.toml": "'deep.toml' is not valid TOML: it is nested too deeply",
    "train --config digits.toml": "'digits.toml' is not valid TOML: a number in it is too large",
    "train --config latin.toml": "'latin.toml' is not valid TOML: it is not UTF-8 at byte 18",
    f"train mlp --data idx:{DIMENSIONS}": "has 100 dimensions, but an IDX file of images or labels has 1 to 4",
    f"train mlp --data npz:{'x' * 5000}": "there is no file 'xxx",
    f"train {'x' * 5000}.py:task": "there is no task file 'xxx",
    "train lbfgs.py:task": "the optimiser LBFGS of",
    "train not\udcff.py:task": "not\\udcff.py:task' is not UTF-8 text",
    "train mlp --data npz:\udcff.npz": "data 'npz:\\udcff.npz' is not UTF-8 text",
    "train mlp --data csv:a_file,label=\udcff": "is not UTF-8 text",
    "runs show a --out stored": "run 'a' has a record that cannot be read: 'stored/a/record.json' is damaged",
    "runs compare a a --out stored": "run 'a' has a record that cannot be read",
    "report a --out stored": "run 'a' has a record that cannot be read",
    "train missing.py:task": "no task file 'missing.py'",
    "train no_task.py:task": "no variable of no_task.py named 'task'",
    "train other.py:task": "is a str, not a manyhands.Task",
    "train mlp --resume": "no checkpoint under 'runs'",
    "train mlp --resume-from nothing": "there are no runs under 'runs'",
    "verify mlp --engine mpii": "did you mean 'mpi'?",
    "runs show nothing": "there are no runs under 'runs'",
    "runs delet last": "did you mean delete?",
}


@pytest.mark.parametrize("line", BAD)
@pytest.mark.usefixtures("folder")
def test_one_sentence(line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(line, monkeypatch) == 2
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    assert BAD[line] in stderr
    assert stderr.startswith("manyhands: ")
    assert stderr.count("\n") == 1, "one sentence, no traceback"
    assert not list(Path("runs").glob("*/record.json"))


def test_a_file_that_does_not_import_shows_its_own_traceback(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("train broken.py:task", monkeypatch) == 2
    stderr = capfd.readouterr().err
    assert f'File "{folder / "broken.py"}", line 1' in stderr
    assert "manyhands: the task file 'broken.py' does not import" in stderr


def test_a_checkpoint_of_another_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    small = "--data mnist:train=100,test=20 --epochs 1 --checkpoint-every 1"
    assert run(f"train mlp {small}", monkeypatch) == 0
    assert run(f"train dnn {small} --resume", monkeypatch) == 2
    assert "trains 'mlp', not 'dnn'" in capfd.readouterr().err
    (mlp,) = Path("runs").glob("*-mlp-*")
    assert run("train dnn --data mnist:train=100,test=20 --epochs 1 --checkpoint-every 1", monkeypatch) == 0
    (dnn,) = Path("runs").glob("*-dnn-*")
    for file in (dnn / "checkpoints").iterdir():
        file.unlink()
    for file in (mlp / "checkpoints").iterdir():
        file.rename(dnn / "checkpoints" / file.name)
    capfd.readouterr()
    assert run(f"train dnn --resume-from {dnn.name}", monkeypatch) == 2
    assert "is of another model: task 'mlp' with 235,146 values" in capfd.readouterr().err


def test_resume_with_the_very_same_options_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    line = "train mlp --data mnist:train=100,test=20 --batch-size 20 --lr-scaling linear --checkpoint-every 2 --json"
    assert run(f"{line} --steps 4", monkeypatch) == 0
    assert run(f"{line} --steps 7 --resume", monkeypatch) == 0
    assert '"resumed_from":4' in capfd.readouterr().out
    (resumed,) = Path("runs").iterdir()
    before = (resumed / "record.json").read_text()
    assert run(f"{line} --steps 6 --resume", monkeypatch) == 2
    assert "is complete: it has made its 7 steps; raise --epochs or --steps to go on" in capfd.readouterr().err
    assert (resumed / "record.json").read_text() == before, "nothing is lost"


def test_a_resumed_run_cannot_change_the_mathematics(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    small = "train mlp --data mnist:train=100,test=20 --epochs 1"
    assert run(f"{small} --checkpoint-every 1", monkeypatch) == 0
    capfd.readouterr()
    assert run(f"{small} --resume --batch-size 10", monkeypatch) == 2
    assert "has batch-size 64; a resumed run cannot change it to 10" in capfd.readouterr().err


def test_a_damaged_record_does_not_hide_the_other_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    small = "--data mnist:train=100,test=20 --epochs 1 --out stored"
    assert run(f"train mlp {small} --batch-size 99999999 --json", monkeypatch) == 0
    stdout, stderr = capfd.readouterr()
    assert "a batch of 99999999 is more than the 100 training samples; every step takes all 100" in stderr
    assert json.loads(stdout)["batch_size"] == 100
    assert run("runs list --out stored", monkeypatch) == 0
    listed = capfd.readouterr().out
    assert "unreadable" in listed
    assert "complete" in listed
    assert run("runs list --out stored --json", monkeypatch) == 0
    found = json.loads(capfd.readouterr().out)
    assert len(found["runs"]) == 1
    assert ("a", "unreadable") in {(run["id"], run["status"]) for run in found["unfinished"]}


def test_a_folder_may_have_any_name(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("train mlp --data mnist:train=100,test=20 --steps 1 --out out\udcff", monkeypatch) == 0
    assert "kept in out\\udcff/" in capfd.readouterr().err
    assert run("runs list --out out\udcff", monkeypatch) == 0
    assert run("report last --out out\udcff", monkeypatch) == 0
    assert "out\\udcff/" in capfd.readouterr().out
