"""Every command in README.md, CONTRIBUTING.md and docs/ is run, with less data and fewer steps, or at least parsed.

A fenced block of `sh` is run line by line, in one folder for each document. A word after `sh` says that its lines are
only parsed: `hosts` (they need several hosts, Slurm or a Ray cluster), `minutes` (they take long on any machine) or
`stopped` (they go on with what was stopped).
"""

import json
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer
from faked import FakeMeasure

from manyhands import registry
from manyhands.cli.app import COMMANDS, UsageError, make_app
from manyhands.cli.main import main
from manyhands.errors import UserError, check
from manyhands.launch.user_folder import calibration_path
from manyhands.model.cluster import read_cluster
from manyhands.scaling import sweep
from manyhands.validation import validate

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
CALIBRATIONS = ROOT / "benchmarks" / "validation" / "records" / "epyc-2-again"
PARSED_ONLY = {"hosts", "minutes", "stopped"}
STARTERS = re.compile(r"^(?:mpiexec|srun|torchrun) (?:-\S+ \d+ )*(?:-m )?(?=manyhands )")
PLACEHOLDER = re.compile(r"[A-Z]{4,}|…|\||\[|<")
"""Marks a command line in a sentence that stands for many."""

TRAINING = "--steps 2 --data mnist:train=256,test=64 --engine threads --workers 2 --threads 1 --blas-threads 1"
SMALLER = {
    "train": TRAINING,
    "profile": f"{TRAINING} --steps 12",
    "verify": TRAINING,
    "crossval": f"{TRAINING} --folds 2",
    "scale": "--steps 2",
    "simulate": "--steps 10 --nodes 1,2",
    "validate": "--workers 1 --engines threads --steps 10",
}
"""Options that are put behind those of a command: the last one given counts."""

IF_GIVEN = {"--checkpoint-every": "--checkpoint-every 1", "--train": "--epochs 1"}
"""Options that are put behind a command that has another."""


class Line(NamedTuple):
    """A command line of a document."""

    place: str
    text: str
    words: list[str]
    """What `manyhands` is given; empty for other programs."""


class Block(NamedTuple):
    """A fenced block of a document."""

    language: str
    mark: str
    start: int
    text: str


def blocks(document: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a document."""
    for match in re.finditer(r"^```(\w*) ?(.*)\n((?:.*\n)*?)```$", document.read_text(), re.MULTILINE):
        yield Block(match[1], match[2], document.read_text()[: match.start(3)].count("\n") + 1, match[3])


def lines(document: Path, *, marked: bool) -> list[Line]:
    """Return the command lines of the blocks that are, or are not, marked as not to be run."""
    return [
        _line(f"{document.name}:{block.start + i}", text)
        for block in blocks(document)
        if block.language == "sh" and bool(block.mark) == marked
        for i, text in enumerate(block.text.splitlines())
        if text.strip() and not text.startswith("#")
    ]


def _line(place: str, text: str) -> Line:
    text = text.strip()
    words = shlex.split(STARTERS.sub("", text), comments=True)
    words = words[: next((i for i, word in enumerate(words) if word.startswith((">", "|"))), len(words))]
    return Line(place, text, words[1:] if words and words[0] == "manyhands" else [])


def sentences(document: Path) -> list[Line]:
    """Return the command lines that stand in a sentence and have no placeholder."""
    prose = re.sub(r"^```(?:.*\n)*?```$", "", document.read_text(), flags=re.MULTILINE)
    commands = [text for text in re.findall(r"`(manyhands [^`\n]+)`", prose) if not PLACEHOLDER.search(text)]
    return [_line(document.name, text) for text in commands]


def parse(words: list[str]) -> None:
    """Parse a command line as `manyhands` would, without running it; raise what its parser raises."""
    command: Any = typer.main.get_command(make_app(words[0]))
    while words and words[0] in getattr(command, "commands", ()):
        command, words = command.commands[words[0]], words[1:]
    check(not hasattr(command, "commands") or not words, f"there is no command '{' '.join(words)}'")
    _check_names(command.make_context("manyhands", list(words)).params)


def _check_names(options: dict[str, Any]) -> None:
    """Refuse a task, an engine or a strategy that there is none of."""
    tasks = options.get("task") or []
    for task in [tasks] if isinstance(tasks, str) else tasks:
        registry.check_task(task.replace("examples/", f"{ROOT}/examples/"))
    for engine in filter(None, [options.get("engine"), *(options.get("engines") or "").split(",")]):
        registry.check_engine(engine)
    if options.get("sync"):
        registry.check_sync(options["sync"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_parse(document: Path) -> None:
    for place, text, words in [*lines(document, marked=False), *lines(document, marked=True), *sentences(document)]:
        if not words:
            _check_other_program(place, text)
            continue
        assert words[0] in COMMANDS, f"{place}: there is no command {words[0]}"
        try:
            if len(words) > 1:
                parse(words)
        except Exception as error:
            pytest.fail(f"{place}: {text}\n{error}")


@pytest.mark.parametrize(
    "text", ["train mlp --enigne mpi", "train mpl --seed 1", "runs shwo last", "scale strong mlp --steps x"]
)
def test_a_mistyped_command_is_found(text: str) -> None:
    with pytest.raises((UserError, UsageError)):
        parse(text.split())


def _check_other_program(place: str, text: str) -> None:
    """Check that make has the target, and that a script is there."""
    program, *words = shlex.split(text, comments=True)
    if program == "make":
        targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words) <= set(targets), f"{place}: {text}"
    elif program.endswith("python") and words[0] != "-m":
        assert (ROOT / words[0]).is_file(), f"{place}: {text}"
    else:
        assert program in ("export", "manyhands", "pip", "git", "python") or "/bin/" in program, f"{place}: {text}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with the examples, on a machine that was calibrated, where measured runs take no time."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    mlp, cnn = (json.loads((CALIBRATIONS / f"calibration-{task}.json").read_text()) for task in ("mlp", "cnn"))
    calibration_path().parent.mkdir(parents=True)
    both = {"tasks": mlp["tasks"] | cnn["tasks"], "contention": mlp["contention"] + cnn["contention"]}
    calibration_path().write_text(json.dumps(mlp | both))
    for module in (sweep, validate):
        monkeypatch.setattr(module, "measure", FakeMeasure(leaves=True))
    return tmp_path


def smaller(words: list[str]) -> list[str]:
    """Return options that make a command short; a run to go on with has its own but for the steps."""
    if "--resume" in words:
        return ["--steps", "4"]
    given = [SMALLER.get(words[0], ""), *(more for option, more in IF_GIVEN.items() if option in words)]
    return " ".join(given).split()


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if lines(d, marked=False)], ids=lambda path: path.name)
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_commands_run(document: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, text, words in lines(document, marked=False):
        if words:
            monkeypatch.setattr(sys, "argv", ["manyhands", *words, *smaller(words)])
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code, f"{place}: {text} ended with status {ended.value.code}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_other_blocks_are_right(document: Path, tmp_path: Path) -> None:
    for block in blocks(document):
        assert block.mark in ({"", *PARSED_ONLY} if block.language == "sh" else {""}), f"{document.name}:{block.start}"
        if block.language == "python":
            compile(block.text, f"{document.name}:{block.start}", "exec")
        elif block.language == "toml":
            assert tomllib.loads(block.text)
            (tmp_path / "cluster.toml").write_text(block.text)
            read_cluster(tmp_path / "cluster.toml")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize(
    "document", [ROOT / "CONTRIBUTING.md", ROOT / "docs" / "architecture.md"], ids=lambda d: d.name
)
def test_named_files_are_there(document: Path) -> None:
    named = set(re.findall(r"`([\w./]+(?:\.py|/))`", document.read_text()))
    assert len(named) > 20
    folders = (ROOT, ROOT / "src" / "manyhands", ROOT / "src" / "manyhands" / "sync")
    assert not [name for name in sorted(named) if not any((folder / name).exists() for folder in folders)]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_import_graph_and_list_of_files_are_up_to_date() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "architecture.py"))
    text = script["DOCUMENT"].read_text()
    assert script["renewed"](text) == text, "run: python docs/architecture.py"
    assert script["files"]() == script["FILES"].read_text(), "run: python docs/architecture.py"
