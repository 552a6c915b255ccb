"""The examples run, and are short."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = {
    "async_replay.py": "replayed to the same bits",
    "large_batch.py": "decay linear",
    "own_data.py": "of the topics found",
    "resume.py": "the same bits",
}
"""Those that stay in this process, with what they must print."""


@pytest.mark.parametrize("name", QUICK)
def test_example(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert QUICK[name] in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda p: p.name)
def test_examples_are_short_and_do_nothing_when_imported(path: Path) -> None:
    if path.name != "demo.py":
        assert len(path.read_text().splitlines()) <= 30
    runpy.run_path(str(path), run_name="imported")
