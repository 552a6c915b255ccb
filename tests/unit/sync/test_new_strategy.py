"""A new strategy is one new file: no other one is edited."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyhands import registry, sync
from manyhands.cli.main import main
from manyhands.errors import UserError
from manyhands.sync import Sync

SOURCE = '''"""Nap: every worker sleeps through some steps."""

from dataclasses import dataclass
from typing import ClassVar, final

from manyhands.comm import Comm
from manyhands.replica import Replica
from manyhands.sync.base import Sync


@final
@dataclass(kw_only=True, slots=True)
class MyStrategy(Sync):
    """Sum the gradients, but apply them in every third step alone."""

    exact: ClassVar[bool] = False

    option: int = 2
    """Steps from one that is applied to the next."""

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        """Sum, and apply sometimes."""
        comm.all_reduce_(replica.grads)
        if i % self.option == 0:
            replica.apply()

    def notes(self) -> dict[str, float]:
        """Tell the option."""
        return {"option": self.option}
'''


@pytest.fixture
def my_strategy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Put a file beside the strategies, as if it lay in their folder."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / "my_strategy.py").write_text(SOURCE)
    monkeypatch.setattr(sync, "__path__", [*sync.__path__, str(folder)])
    yield "my-strategy"
    sys.modules.pop("manyhands.sync.my_strategy", None)
    vars(sync).pop("my_strategy", None)


def test_it_is_found_and_trains(train, my_strategy: str) -> None:  # type: ignore[no-untyped-def]
    options = {"engine": "threads", "workers": 3, "steps": 9}
    third = train(**options, sync=f"{my_strategy}:option=3")
    assert [rank.notes for rank in third.ranks] == [{"option": 3.0}] * 3
    assert third.sync == "my-strategy:option=3"
    every = train(**options, sync=f"{my_strategy}:option=1")
    assert every.weights_sha256 == train(**options).weights_sha256
    assert every.weights_sha256 != third.weights_sha256


def test_its_options_are_checked(my_strategy: str) -> None:
    with pytest.raises(UserError, match="option of sync 'my-strategy' must be a whole number, got 'x'"):
        sync.make(f"{my_strategy}:option=x")
    with pytest.raises(UserError, match="optoin"):
        sync.make(f"{my_strategy}:optoin=3")


def test_it_resumes(train, my_strategy: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    options = {"engine": "threads", "workers": 2, "sync": f"{my_strategy}:option=3"}
    whole = train(**options, steps=9)
    part = train(**options, steps=9, checkpoint_every=5)
    (tmp_path / part.id / "record.json").unlink()  # as if it had been killed
    assert train(resume=part.id).weights_sha256 == whole.weights_sha256


def test_it_is_listed_with_its_help(
    my_strategy: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["manyhands", "syncs", my_strategy, "--json"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    entry = json.loads(capfd.readouterr().out)
    assert entry["does"] == "Sum the gradients, but apply them in every third step alone."
    assert [(o["name"], o["default"], o["help"]) for o in entry["options"]] == [
        ("option", 2, "Steps from one that is applied to the next.")
    ]
    assert not entry["equals_serial"]


def test_without_its_file_it_is_not_there() -> None:
    assert "my-strategy" not in registry.names(sync, Sync)
    with pytest.raises(UserError, match="there is no sync 'my-strategy'"):
        sync.make("my-strategy")
