"""The store: every kind of record has a folder that is made, listed, found, and removed again where it stays empty."""

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from manyhands.errors import UserError
from manyhands.record.advice import AdviceDir
from manyhands.record.papers import ReproductionDir
from manyhands.record.run import RunDir
from manyhands.record.simulation import SimulationDir, ValidationDir
from manyhands.record.store import append_lines, new_name, read_lines, stem_of
from manyhands.record.sweep import SweepDir

KINDS = (AdviceDir, ReproductionDir, RunDir, SimulationDir, SweepDir, ValidationDir)


class Line(BaseModel):
    number: int


@pytest.mark.parametrize("kind", KINDS)
def test_folders_are_listed_and_found_newest_last(kind: Any, tmp_path: Path) -> None:
    names = ("c-first", "a-second", "b-third")
    for age, name in enumerate(reversed(names)):
        file = tmp_path / name / kind.dated_by[0]
        file.parent.mkdir()
        file.touch()
        os.utime(file, ns=(10**18 - age, 10**18 - age))
    (tmp_path / "of-another-kind").mkdir()
    assert [folder.path.name for folder in kind.all_in(tmp_path)] == list(names)
    assert kind.find(tmp_path, "last") == kind(tmp_path / "b-third")
    assert kind.find(tmp_path, "second") == kind(tmp_path / "a-second")
    assert kind.find(Path("elsewhere"), str(tmp_path / "c-first")) == kind(tmp_path / "c-first")
    with pytest.raises(UserError, match=f"there is no {kind.kind} under .* named 'fourth'"):
        kind.find(tmp_path, "fourth")


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_stays_empty_is_removed_and_no_other(kind: Any, tmp_path: Path) -> None:
    def stop(*, keeping: bool) -> None:
        with kind.kept_if_used(tmp_path / "out", "mlp") as folder:
            if keeping:
                folder.record.write_text("what was found")
            raise KeyboardInterrupt

    for keeping in (False, True):
        with pytest.raises(KeyboardInterrupt):
            stop(keeping=keeping)
        assert len(list((tmp_path / "out").iterdir())) == keeping
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"cannot write to --out '{tmp_path / 'file'}'"):
        kind.new(tmp_path / "file", "mlp")


def test_names_tell_the_time_the_words_and_never_repeat() -> None:
    names = {new_name(stem_of("path/my_task.py:net"), "strong", letters=6) for _ in range(50)}
    assert len(names) == 50
    for name in names:
        day, second, *words, unique = name.split("-")
        assert (len(day), len(second), words, len(unique)) == (8, 6, ["my_task", "strong"], 6)


@pytest.mark.parametrize("torn", ["", "{", '{"number": 7'])
def test_a_torn_last_line_is_left_out_by_the_reader_and_removed_by_the_writer(tmp_path: Path, torn: str) -> None:
    path, lines = tmp_path / "lines.jsonl", [Line(number=i) for i in range(3)]
    assert read_lines(path, Line, "a line") == []
    append_lines(path, lines[:2])
    with path.open("a") as file:
        file.write(torn)
    assert read_lines(path, Line, "a line") == lines[:2]
    append_lines(path, lines[2:])
    assert path.read_text() == "".join(f"{line.model_dump_json()}\n" for line in lines)


def test_a_damaged_line_is_named_and_blank_lines_are_allowed_where_said(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text('{"number": 1}\n\n{"number": 2}\n')
    assert [line.number for line in read_lines(path, Line, "a line", blank_lines=True)] == [1, 2]
    with pytest.raises(UserError, match=r"lines\.jsonl' is damaged: line 2 is not a line"):
        read_lines(path, Line, "a line")
