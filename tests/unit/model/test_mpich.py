"""The algorithms that MPICH takes: which, and what they cost where ranks are no power of two."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.model.collectives import ALGORITHMS
from manyhands.model.fit_comm import TimedCall, cost_s, fit_comm
from manyhands.model.links import Link
from manyhands.model.mpich import chosen

WIRE = Link(0.0, 1e-6)
"""A link of which only the bytes count: a megabyte takes a second."""
LINK, GAMMA = Link(2e-5, 8e-9), 1e-9
SIZES = (64, 512, 4096, 32768, 2**18, 2**21)


def units(call: str, p: int) -> float:
    """How many times as long as one message a call of a megabyte takes."""
    return cost_s("mpich", call, p, 1e6, WIRE, 0.0)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("all-reduce", {2: 1.0, 3: 3.5, 4: 1.5, 5: 4.25, 8: 1.75}),
        ("reduce", {2: 1.0, 3: 2.5, 4: 1.5, 5: 3.25}),
        ("broadcast", {2: 1.0, 3: 2.0, 4: 2.0, 5: 3.0}),
        ("all-gather", {2: 1.0, 3: 2.0, 4: 3.0, 5: 4.0}),
    ],
)
def test_known_answers(call: str, expected: dict[int, float]) -> None:
    """As they were measured over links of 100 Mb/s, where nothing but the bytes counts."""
    assert {p: units(call, p) for p in expected} == pytest.approx(expected)


def test_between_hosts_all_children_of_a_tree_share_a_port() -> None:
    found = {p: cost_s("mpich-hosts", "broadcast", p, 1e6, WIRE, 0.0) for p in range(2, 8)}
    assert found == pytest.approx({2: 1, 3: 2, 4: 3, 5: 4, 6: 4, 7: 5})


@given(st.sampled_from(["all-reduce", "reduce"]), st.sampled_from([2, 4, 8, 64]), st.floats(2049, 1e9))
def test_powers_of_two_have_no_extra_ranks(call: str, p: int, n: float) -> None:
    usual = float(ALGORITHMS[call]["rabenseifner"](p, n, LINK, GAMMA))
    assert cost_s("mpich", call, p, n, LINK, GAMMA) == pytest.approx(usual)


@given(st.sampled_from(list(ALGORITHMS)), st.integers(2, 100), st.floats(0, 1e9))
def test_no_algorithm_is_cheaper_than_the_cheapest(call: str, p: int, n: float) -> None:
    assert cost_s("mpich", call, p, n, LINK, GAMMA) >= cost_s("messages", call, p, n, LINK, GAMMA) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("call", "p", "num_bytes", "name"),
    [
        ("all-reduce", 4, 2048, "recursive-doubling"),
        ("reduce", 4, 2048, "binomial"),
        ("broadcast", 7, 10**9, "binomial"),
        ("broadcast", 8, 12_287, "binomial"),
        ("broadcast", 8, 12_288, "scatter-doubling"),
        ("broadcast", 9, 12_288, "scatter-ring"),
        ("broadcast", 8, 524_288, "scatter-ring"),
        ("all-gather", 8, 65_535, "recursive-doubling"),
        ("all-gather", 8, 65_536, "ring"),
        ("reduce-scatter", 3, 524_288, "pairwise"),
    ],
)
def test_thresholds(call: str, p: int, num_bytes: int, name: str) -> None:
    assert chosen(call, p, num_bytes) is ALGORITHMS[call][name]


def test_a_few_calls_that_take_a_way_of_their_own_do_not_decide_the_fit() -> None:
    """A burst passes a shaped link at once, and of a tensor that came before it was asked for nothing is left to do."""
    names = ("all-reduce", "reduce", "broadcast", "all-gather", "send")
    points = [TimedCall(call, 2, n, cost_s("mpich", call, 2, n, LINK, GAMMA)) for call in names for n in SIZES]
    strange = [
        p._replace(seconds=p.seconds / 8) if p.call in ("broadcast", "send") and p.num_bytes == 32768 else p
        for p in points
    ]
    found = fit_comm("mpich", strange)
    assert found.link.full_duplex
    assert found.link.alpha_s == pytest.approx(LINK.alpha_s, rel=0.05)
    assert found.link.beta_s_per_byte == pytest.approx(LINK.beta_s_per_byte, rel=0.05)
    assert np.isfinite(found.gamma_s_per_byte)
