"""Numbers in words that people read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyhands.record.texts import figure, plus_minus


@given(st.floats(1e-4, 99.0), st.integers(2, 4))
def test_a_number_has_as_many_figures_as_are_asked_for(value: float, digits: int) -> None:
    """Of numbers that have no more places before the point than that."""
    text = figure(value, digits)
    assert len(text.replace(".", "").lstrip("0")) == digits
    assert float(text) == pytest.approx(value, rel=0.51 * 10 ** (1 - digits))


def test_a_number_that_rounds_up_to_the_next_power_of_ten() -> None:
    assert [figure(value) for value in (9.9951, 0.99996, 99.96, 999.6)] == ["10.0", "1.00", "100", "1,000"]


def test_what_is_unknown_has_no_sides() -> None:
    assert [plus_minus(value) for value in (1.24, 0.0, None)] == ["±1.2 %", "±0.0 %", "–"]
