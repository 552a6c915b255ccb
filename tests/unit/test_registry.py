"""A strategy is found by the name of its file; a new file is all that a new one needs."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from manyhands import launch, registry, sync
from manyhands.errors import UserError
from manyhands.launch import Launcher
from manyhands.sync import Sync

DROPPED = '''"""A strategy that was dropped in."""

from dataclasses import dataclass
from typing import ClassVar, final

from manyhands.comm import Comm
from manyhands.errors import check
from manyhands.replica import Replica
from manyhands.sync.base import Sync


class NotAStrategy:
    """Something else in the same file."""


@final
@dataclass(kw_only=True, slots=True)
class HeldBack(Sync):
    """Sum and apply every `period` steps."""

    exact: ClassVar[bool] = False
    requires: ClassVar[frozenset[str]] = frozenset({"split"})

    period: int = 2
    """Steps between two exchanges."""

    def __post_init__(self) -> None:
        check(self.period >= 1, f"period must be at least 1, got {self.period}")

    def step(self, replica: Replica, comm: Comm, i: int) -> None:
        """Sum, then apply."""
        comm.all_reduce_(replica.grads)
        if (i + 1) % self.period == 0:
            replica.apply()
'''


@pytest.fixture
def dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Put a strategy into a folder that belongs to the package for the time of a test."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    (folder / "held_back.py").write_text(DROPPED)
    (folder / "_private.py").write_text(DROPPED)
    (folder / "helpers.py").write_text('"""No strategy in here."""\n')
    monkeypatch.setattr(sync, "__path__", [*sync.__path__, str(folder)])
    importlib.invalidate_caches()
    yield "held-back"
    for name in ("held_back", "helpers"):
        sys.modules.pop(f"manyhands.sync.{name}", None)
        vars(sync).pop(name, None)


@pytest.mark.usefixtures("dropped")
def test_a_file_dropped_in_is_a_strategy() -> None:
    assert "held-back" in registry.names(sync, Sync)
    made = sync.make("held-back:period=3")
    assert type(made).__name__ == "HeldBack"
    assert made.period == 3  # type: ignore[attr-defined]


@pytest.mark.usefixtures("dropped")
def test_neither_helpers_nor_private_files_are_strategies() -> None:
    assert not {"helpers", "base", "-private", "_private"} & set(registry.names(sync, Sync))


@pytest.mark.usefixtures("dropped")
def test_its_options_are_checked_before_anything_starts(train, tiny) -> None:  # type: ignore[no-untyped-def]
    for spec, says in (("held-back:period=0", "at least 1"), ("held-back:perod=2", "did you mean 'period'")):
        with pytest.raises(UserError, match=says):
            train(sync=spec, steps=2)
    with pytest.raises(UserError, match="needs split, which engine 'hybrid' does not have"):
        train(sync="held-back", engine="hybrid", workers=2, steps=2)


@pytest.mark.usefixtures("dropped")
def test_it_trains(train) -> None:  # type: ignore[no-untyped-def]
    record = train(sync="held-back:period=2", engine="threads", workers=2, steps=4)
    assert (record.steps, record.sync) == (4, "held-back:period=2")


def test_the_file_is_gone_afterwards() -> None:
    assert "held-back" not in registry.names(sync, Sync)


@pytest.mark.parametrize(("package", "base"), [(sync, Sync), (launch, Launcher)])
def test_every_name_is_found_and_is_its_file(package, base: type) -> None:  # type: ignore[no-untyped-def]
    names = registry.names(package, base)
    assert names == sorted(names)
    for name in names:
        found = registry.find(package, base, name, "thing")
        assert issubclass(found, base)
        assert found.__module__.removesuffix("_") == f"{package.__name__}.{name.replace('-', '_')}"


def test_an_unknown_name_is_explained() -> None:
    with pytest.raises(UserError, match="there is no engine 'thread'; did you mean 'threads'"):
        launch.make("thread")
    with pytest.raises(UserError, match="there is no sync 'all-reduce'; did you mean 'allreduce'"):
        sync.make("all-reduce")


@pytest.mark.parametrize("name", ["base", "__init__", "local", "rank", ""])
def test_a_file_that_is_no_engine_is_none(name: str) -> None:
    with pytest.raises(UserError, match="there is no engine"):
        launch.make(name)
