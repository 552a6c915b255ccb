"""Ranks that were started together agree on a text, or on who of them failed."""

from collections.abc import Callable
from typing import Any

import pytest

from manyhands.comm import Comm
from manyhands.launch.failures import OthersFailed, Statement, _exchange, agree_in_world

Ranks = Callable[[Callable[[Comm], Any], int], list[Any]]


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("text", ["", "runs/a b", "naïve ☃", "x" * 5000, "two\nlines\0"])
def test_all_ranks_get_the_first_ones_text(ranks: Ranks, size: int, text: str) -> None:
    agree: Callable[[Any], str] = lambda comm: agree_in_world(comm, text if comm.rank == 0 else "other")  # noqa: E731
    assert ranks(agree, size) == [text] * size


@pytest.mark.parametrize("failing", [0, 2])
def test_ranks_that_agree_learn_of_the_one_that_fails(ranks: Ranks, failing: int) -> None:
    def work(comm: Any) -> str:
        if comm.rank == failing:
            return str(_exchange(comm, Statement(2, "no file", "here"))[failing].text)
        with pytest.raises(OthersFailed, match=f"rank {failing} on here failed: no file") as caught:
            agree_in_world(comm, "text")
        return str(caught.value.status)

    assert ranks(work, 3) == ["no file" if rank == failing else "2" for rank in range(3)]
