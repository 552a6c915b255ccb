"""The first moments of a command: nothing heavy is imported before one really runs, and Ctrl-C gets one word."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import manyhands
from manyhands import launch, registry, sync, tasks
from manyhands import registry as names
from manyhands.cli import app
from manyhands.errors import UserError
from manyhands.launch import Launcher
from manyhands.sync import Sync

HEAVY = ("torch", "numpy", "scipy", "sklearn", "matplotlib", "plotly", "mpi4py", "ray", "psutil", "greenlet")

LIGHT = {
    "--help": 0,
    "--version": 0,
    "-V": 0,
    "": 2,
    "trian": 2,
    "train": 2,
    "train mlp --enigne mpi": 2,
    "train mlp --engine mpii": 2,
    "train mlp --sync alreduce": 2,
    "train mlp --sync local-sdg:period=2": 2,
    "train mlp --workers 0": 2,
    "train mlp --workers two": 2,
    "train mlp --dtype bfloat16": 2,
    "train nosuchtask": 2,
    "train nosuchfile.py:task": 2,
    "train --config nosuch.toml": 2,
    "verify mpl": 2,
    "crossval mpl": 2,
    "profile mpl": 2,
    "scale string mlp": 2,
    "scale strong mlp --engines thread": 2,
    "scale strong mlp --syncs allreduce,compressed:codec=topk,ratio=0.1,gosip": 2,
    "simulate mpl --nodes 1,2": 2,
    "simulate mlp --nodes 1,2 --syncs alreduce": 2,
    "validate mlp --workers 1,2 --engines thread": 2,
    "advise mlp --target-accuracy 0.9 --budget soon": 2,
    "calibrate mpl": 2,
    "syncs alreduce": 2,
    "runs list --out nowhere": 0,
    "runs show nosuch --out nowhere": 2,
    "report --format pdf": 2,
} | {f"{command} --help": 0 for command in app.COMMANDS}
"""Command lines for which nothing need be computed, and their exit status."""

RUN_ALL = f"""
import contextlib, io, json, sys
from manyhands.cli.main import main
found = {{}}
for line in json.loads(sys.argv[1]):
    sys.argv[:] = ["manyhands", *line.split()]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
    except SystemExit as end:
        found[line] = [end.code, [name for name in {HEAVY} if name in sys.modules], said.getvalue()]
print(json.dumps(found))
"""

Found = dict[str, tuple[int, list[str], str]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Run all of these lines in one fresh process: exit status, what heavy was imported by then, what was said."""
    command = [sys.executable, "-c", RUN_ALL, json.dumps(list(LIGHT))]
    folder = tmp_path_factory.mktemp("start")
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder, check=True)
    return {line: tuple(values) for line, values in json.loads(done.stdout).items()}


@pytest.mark.parametrize("line", LIGHT)
def test_nothing_heavy_is_imported_before_a_command_runs(found: Found, line: str) -> None:
    status, imported, said = found[line]
    assert imported == []
    assert status == LIGHT[line], said
    if status == 2:
        assert said.splitlines()[-1].startswith("manyhands: ")


def test_the_version_is_told(found: Found) -> None:
    assert found["--version"][2] == found["-V"][2] == f"manyhands {manyhands.__version__}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+", manyhands.__version__)


def test_every_command_has_its_line_in_the_help(found: Found) -> None:
    folder = Path(app.__file__).parent
    commands = {path.stem for path in folder.glob("*.py") if path.read_text().startswith(f'"""`manyhands {path.stem}`')}
    assert commands == set(app.COMMANDS)
    for name in commands:
        assert re.search(rf"\b{name} +{re.escape(app.COMMANDS[name][:20])}", found["--help"][2])


def test_names_read_off_the_files_are_those_that_are_found_by_importing() -> None:
    assert names.tasks() == tasks.names()
    for check, package, base, kind in (
        (names.check_engine, launch, Launcher, "engine"),
        (names.check_sync, sync, Sync, "sync"),
    ):
        with pytest.raises(UserError) as early:
            check("no-such-name")
        with pytest.raises(UserError) as late:
            registry.find(package, base, "no-such-name", kind)
        assert str(early.value) == str(late.value)
        for name in registry.names(package, base):
            check(name)


def test_completion_shows_what_is_public() -> None:
    assert set(dir(manyhands)) == set(manyhands.__all__)
    for name in dir(manyhands):
        assert getattr(manyhands, name) is not None


def test_a_shell_completes_the_options_of_a_command() -> None:
    words = {"COMP_WORDS": "manyhands train --engi", "COMP_CWORD": "2", "_MANYHANDS_COMPLETE": "complete_bash"}
    script = "import sys; sys.argv = ['manyhands']; from manyhands.cli.main import main; main()"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **words}, check=True)
    assert done.stdout.split() == ["--engine"]


@pytest.mark.parametrize("name", ["Task", "Dataset", "Split", "Pulse", "RunRecord", "SweepRecord", "CrossvalRecord"])
def test_help_shows_the_docs_of_fields(name: str) -> None:
    shown = " ".join((getattr(manyhands, name).__doc__ or "").split())
    telling = {
        "Task": "model: A function that makes the network, to which the data's `shape` and `classes` tell its sizes",
        "Dataset": "test: Samples to test on, of the same shape.",
        "Split": "scale: Factor of the inputs when gathered",
        "Pulse": "eta_s: Seconds left at that speed.",
        "RunRecord": "wait_s: Further time in exchanges: waiting for the slowest rank.",
    }
    assert telling.get(name, "Fields:") in shown
    assert getattr(manyhands, name).__doc__.count("Fields:") == 1, "however often it is looked at"


# Ctrl-C, and the like, while torch is imported

TORCH = """
import time
print("importing", flush=True)
try:
    time.sleep(60)
except BaseException:
    pass  # as libraries do that try what is there
time.sleep(60)
"""

ENTRIES = {
    "python -m manyhands": ["-m", "manyhands", "train", "mlp"],
    "console script": ["-c", "from manyhands.cli.main import main; main()", "train", "mlp"],
}


@pytest.fixture
def slow_torch(tmp_path: Path) -> dict[str, str]:
    """Variables with which `import torch` takes long, and catches what is raised meanwhile."""
    (tmp_path / "torch.py").write_text(TORCH)
    src = str(Path(manyhands.__file__).parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), src])}


@pytest.mark.parametrize(
    ("entry", "number"),
    [("python -m manyhands", signal.SIGINT), ("console script", signal.SIGINT), ("console script", signal.SIGHUP)],
)
def test_a_stop_while_importing_gets_one_word(slow_torch: dict[str, str], entry: str, number: signal.Signals) -> None:
    command, pipe = [sys.executable, *ENTRIES[entry]], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=slow_torch) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        _, stderr = process.communicate(timeout=20)
    assert (process.returncode, stderr) == (130, "manyhands: stopped\n")


def test_a_rank_leaves_such_signals_to_who_started_it(slow_torch: dict[str, str], tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text('{"config": {"threads": 1}}')
    command, pipe = [sys.executable, "-m", "manyhands.launch.rank", str(job)], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=slow_torch) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        process.kill()
        assert process.communicate()[1] == ""
