"""The table of strategies: all of them, with help for every option, and the same in the documentation."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands import launch, registry, sync
from manyhands.cli.main import main
from manyhands.cli.syncs import describe, describe_all, first_sentence, markdown_of
from manyhands.sync import Sync

DOCS = Path(__file__).parents[3] / "docs" / "syncs.md"
NAMES = registry.names(sync, Sync)

Run = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run command lines; each call returns (status, stdout, stderr)."""

    def command(line: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["manyhands", *line.split()])
        with pytest.raises(SystemExit) as exit_:
            main()
        return (int(exit_.value.code or 0), *capfd.readouterr())

    return command


def test_the_documentation_is_up_to_date() -> None:
    renew = "renew it with: manyhands syncs --markdown > docs/syncs.md"
    assert DOCS.is_file(), renew
    assert DOCS.read_text() == markdown_of(describe_all()) + "\n", renew


def test_markdown_is_what_stands_in_the_documentation(run: Run) -> None:
    status, stdout, stderr = run("syncs --markdown")
    assert (status, stdout, stderr) == (0, markdown_of(describe_all()) + "\n", "")
    rows = [line for line in stdout.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == NAMES


def test_json_is_one_object_with_every_strategy(run: Run) -> None:
    status, stdout, stderr = run("syncs --json")
    assert (status, stderr) == (0, "")
    entries = json.loads(stdout)["syncs"]
    assert [e["name"] for e in entries] == NAMES
    assert entries[0] == json.loads(run(f"syncs {NAMES[0]} --json")[1])


def test_the_table_names_every_strategy(run: Run) -> None:
    status, stdout, _ = run("syncs")
    assert status == 0
    assert set(NAMES) <= {line.split(" ")[0] for line in stdout.splitlines()}


@pytest.mark.parametrize("name", NAMES)
def test_what_a_strategy_does_and_takes_is_said(name: str) -> None:
    entry = describe(name)
    assert entry.does.endswith("."), "its class has a docstring of whole sentences"
    assert all(o["help"].endswith(".") for o in entry.options), "a docstring stands under every option"


@pytest.mark.parametrize("name", NAMES)
def test_engines_are_those_that_can_run_it(name: str) -> None:
    entry, strategy = describe(name), sync.make(name)
    for engine in launch.names():
        assert (engine in entry.engines) == (strategy.requires <= launch.make(engine).features)
    assert entry.equals_serial == strategy.exact
    assert entry.servers == strategy.num_servers()


@pytest.mark.parametrize("name", NAMES)
def test_the_example_names_the_strategy_as_it_is_by_itself(name: str) -> None:
    example = describe(name).example
    assert type(sync.make(example.rpartition(" ")[2])) is type(sync.make(name))
    assert example.split("--engine ")[1].split()[0] in describe(name).engines


def test_one_strategy_is_shown_with_its_options_and_an_example(run: Run) -> None:
    status, stdout, _ = run("syncs local-sgd")
    assert status == 0
    assert stdout.startswith("local-sgd: ")
    assert "period=8" in stdout
    assert "(a whole number)" in stdout
    assert "example: manyhands train mlp --engine mpi --workers 4 --sync local-sgd:period=8" in stdout


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("syncs alreduce", "there is no sync 'alreduce'; did you mean 'allreduce'?"),
        ("syncs --json --markdown", "choose --json or --markdown, not both"),
    ],
)
def test_a_bad_request_gets_one_sentence(run: Run, line: str, says: str) -> None:
    status, stdout, stderr = run(line)
    assert (status, stdout) == (2, "")
    assert says in stderr
    assert stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One. Two.", "One."),
        ("Mean of `a.b` values\nover lines.\n\nMore.", "Mean of `a.b` values over lines."),
        ("No end", "No end"),
        ("", ""),
    ],
)
def test_the_first_sentence_ends_at_its_mark(text: str, first: str) -> None:
    assert first_sentence(text) == first
