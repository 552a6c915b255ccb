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
from manyhands.launch.ray_cluster import cluster

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


@pytest.mark.parametrize("label", ["bare", "traced"])
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("group", groups(), ids=str)
def test_comm(group: Group, check: str, label: str, results: Results) -> None:
    if check in NEEDS and NEEDS[check] not in group.features:
        pytest.skip(f"engine {group.engine} does not have '{NEEDS[check]}'")
    wrong = {rank: told[f"{check}-{label}"] for rank, told in enumerate(results(group)) if told[f"{check}-{label}"]}
    assert not wrong, "\n".join(f"rank {rank}: {text}" for rank, text in wrong.items())


@pytest.mark.parametrize("group", groups(), ids=str)
def test_every_rank_answers(group: Group, results: Results) -> None:
    assert len(results(group)) == group.size


@pytest.mark.parametrize("engine", launch.names())
def test_engines_check_before_they_start(engine: str) -> None:
    launcher = launch.make(engine)
    for group in groups():
        if group.engine == engine:
            launcher.check(group.config())
    if engine != "hybrid":
        with pytest.raises(UserError, match="hybrid"):
            launcher.check(Group(engine, 2, 2).config())
