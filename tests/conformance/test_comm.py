"""Every comm obeys the same laws, in groups of 1, 2, 3 and 5 ranks that the real launchers start."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import pytest
from comm_checks import CHECKS, NEEDS, run_checks
from shapes import Group, groups

from manyhands import launch
from manyhands.errors import UserError
from manyhands.launch.on_ray.cluster import cluster

pytestmark = pytest.mark.timeout(300)

Results = Callable[[Group], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Start every group of an engine once, one after the other, and keep what each of its ranks found."""
    out = tmp_path_factory.mktemp("comm")

    @cache
    def of_engine(engine: str) -> dict[Group, list[dict[str, Any]]]:
        own = [group for group in groups() if group.engine == engine]
        largest = max(own, key=lambda group: group.size)
        with cluster(largest.config(), largest.size) if engine == "ray" else nullcontext():  # Ray starts slowly
            return {group: group.launch(run_checks, out) for group in own}

    return lambda group: of_engine(group.engine)[group]


@pytest.mark.parametrize("group", groups(), ids=str)
def test_comm(group: Group, results: Results) -> None:
    """Every check that the engine's features allow has run on every rank, bare and traced, and holds."""
    due = {name for name in CHECKS if name not in NEEDS or NEEDS[name] in group.features}
    assert len(due) > 10
    told = results(group)
    assert len(told) == group.size
    for rank, texts in enumerate(told):
        assert texts.keys() == {f"{name}-{label}" for name in due for label in ("bare", "traced")}, f"rank {rank}"
    wrong = [f"rank {rank}: {name}: {text}" for rank, texts in enumerate(told) for name, text in texts.items() if text]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("engine", launch.names())
def test_engines_check_before_they_start(engine: str) -> None:
    launcher = launch.make(engine)
    for group in groups():
        if group.engine == engine:
            launcher.check(group.config())
    if engine != "hybrid":
        with pytest.raises(UserError, match="hybrid"):
            launcher.check(Group(engine, 2, 2).config())
