"""Every strategy keeps its promise on every engine, with 1, 2, 3 and 5 workers and batches that nothing divides.

A strategy added later is found by itself. One that says it is exact must give the serial answer; any other must at
least leave every rank with the same weights.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from shapes import Group, groups
from sync_cases import FIRST, MOST_SERVERS, Case, equals_serial, folder_of, runs, strategies, train_all, world

from manyhands.record.run import RunDir, read_steps

pytestmark = pytest.mark.timeout(300)

SERIAL = Group("serial", 1)
ROUND_OFF = 1e-12
"""Largest distance in float64 that another order of summation may make in some steps, relative to the weights."""


class Suite:
    """The runs of one group: where they are kept, and every rank's records."""

    def __init__(self, group: Group, run: RunDir, ranks: list[dict[str, Any]]) -> None:
        self._group, self._run, self._ranks = group, run, ranks

    def records(self, strategy: str, case: Case, mode: str) -> list[dict[str, Any]]:
        """Return every rank's record of one run; servers have rank 0's."""
        name = folder_of(self._run, self._group, strategy, case, mode).path.name
        return [records[name] for records in self._ranks if name in records]

    def weights(self, strategy: str, case: Case, mode: str) -> torch.Tensor:
        """Return the trained weights and statistics, one after the other."""
        stored = load_file(folder_of(self._run, self._group, strategy, case, mode).model)
        return torch.cat([stored[name].flatten().double() for name in sorted(stored)])

    def losses(self, strategy: str, case: Case, mode: str) -> list[float]:
        """Return the loss of each step."""
        return [step["loss"] for step in read_steps(folder_of(self._run, self._group, strategy, case, mode))]


Suites = Callable[[Group], Suite]


@pytest.fixture(scope="session")
def suites(tmp_path_factory: pytest.TempPathFactory) -> Suites:
    """Start a group once for all its runs, and together with all those that can be parts of one."""
    out = tmp_path_factory.mktemp("sync")

    @cache
    def started(group: Group) -> list[dict[str, dict[str, Any]]]:
        # The launcher fixes the threads inside matrix products where it is told that bits matter.
        sync = f"parameter-server:servers={MOST_SERVERS}" if "servers" in group.features else "allreduce"
        return group.launch(train_all, out, exact=True, sync=sync)

    @cache
    def of(group: Group) -> Suite:
        start = world(group.engine) if "servers" in group.features else group
        return Suite(group, RunDir(out / str(start)), [told[str(group)] for told in started(start)])

    return of


def _cases(mode: str) -> list[Any]:
    """Return the parameters of a test over all groups and runs; those that an engine cannot do stay visible."""
    found, known = [], strategies()
    for group in groups():
        for name, case, case_mode in runs(group.engine):
            if case_mode != mode or not equals_serial(name, case, group.size):
                continue
            missing = ", ".join(sorted(known[name].requires - group.features))
            skip = [pytest.mark.skip(reason=f"{name} needs {missing}, which {group.engine} lacks")] if missing else []
            found.append(pytest.param(group, name, case, id=f"{group}-{name}-{case.name}", marks=skip))
    return found


@pytest.mark.parametrize(("group", "strategy", "case"), _cases("float64"))
def test_strategies_give_the_serial_answer(group: Group, strategy: str, case: Case, suites: Suites) -> None:
    expected = suites(SERIAL).weights("allreduce", case, "float64")
    found = suites(group).weights(strategy, case, "float64")
    assert (found - expected).norm() <= ROUND_OFF * expected.norm()
    losses = suites(SERIAL).losses("allreduce", case, "float64")
    assert suites(group).losses(strategy, case, "float64") == pytest.approx(losses, rel=1e-11)


@pytest.mark.parametrize(("group", "strategy", "case"), _cases("exact"))
def test_exact_gives_the_serial_bits(group: Group, strategy: str, case: Case, suites: Suites) -> None:
    (expected,) = suites(SERIAL).records("allreduce", case, "exact")
    for record in suites(group).records(strategy, case, "exact"):
        for key in ("weights_sha256", "train_loss", "test_loss", "test_accuracy", "steps", "samples", "batch_size"):
            assert record[key] == expected[key], key
    assert suites(group).losses(strategy, case, "exact") == suites(SERIAL).losses("allreduce", case, "exact")


@pytest.mark.parametrize("group", groups(), ids=str)
def test_all_ranks_end_with_equal_weights(group: Group, suites: Suites) -> None:
    """That holds for every strategy that the engine's features allow, servers included."""
    possible = {name: strategy for name, strategy in strategies().items() if strategy.requires <= group.features}
    cases = [(name, case, mode) for name, case, mode in runs(group.engine) if name in possible]
    assert {name for name, _, _ in cases} == possible.keys()
    wrong = []
    for name, case, mode in cases:
        hashes = [record["weights_sha256"] for record in suites(group).records(name, case, mode)]
        if len(hashes) != group.size + possible[name].num_servers() or len(set(hashes)) != 1:
            wrong.append(f"{name}, {case.name}, {mode}: {hashes}")
    assert not wrong


def test_the_suite_trains(suites: Suites) -> None:
    """A suite in which nothing moves, or in which two cases are one, would prove nothing."""
    seen = set()
    for name, case, mode in runs("serial"):
        if name == FIRST:
            losses = suites(SERIAL).losses(name, case, mode)
            assert len(set(losses)) == len(losses), case.name
            (record,) = suites(SERIAL).records(name, case, mode)
            assert record["weights_sha256"] not in seen, case.name
            seen.add(record["weights_sha256"])
