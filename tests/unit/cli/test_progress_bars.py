"""Bars: name, bar, how far and the time left are there however narrow the terminal is; the rest as there is room."""

import re
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from manyhands.cli import show
from manyhands.cli.bars import BarText, ProgressBars, clock, fitting
from manyhands.record.run import Pulse


def pulse(**more: object) -> Pulse:
    """Return how a run in its midst is doing."""
    known = {"step": 4710, "steps": 9420, "epoch": 31, "epochs": 60, "loss": 0.16781, "accuracy": 0.9735}
    times = {"samples_per_s": 15122.4, "eta_s": 14.2, "compute_s": 4.0, "comm_s": 4.6, "wait_s": 1.4}
    return Pulse.model_validate({**known, **times, **more})


def line_of(width: int, name: str, shown: Pulse) -> str:
    """Return the bar as a terminal of so many columns shows it."""
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, color_system=None, width=width)
    bars = ProgressBars(console)
    bar = bars.add(name)
    bars.show(bar, shown.step, shown.steps, show.pulse_parts(shown), left_s=show.left_s(shown))
    console.print(bars.progress.get_renderable())
    (line,) = screen.getvalue().splitlines()
    return line.rstrip()


@pytest.mark.parametrize("width", [50, 60, 80, 100, 120, 200])
def test_name_bar_step_percent_and_time_left_are_always_there(width: int) -> None:
    line = line_of(width, "mlp", pulse())
    assert re.match(r"mlp [━╸╺ ]{10,20} step 4,710/9,420 50 % · ETA 0:14", line)
    assert cell_len(line) <= width
    assert "…" not in line


def test_more_is_told_where_there_is_room_what_matters_most_first() -> None:
    assert line_of(80, "mlp", pulse()).endswith(" · ETA 0:14 · train loss 0.1678")
    assert line_of(200, "mlp", pulse()).endswith(
        "ETA 0:14 · train loss 0.1678 · accuracy 97.35 % · 15,122 samples/s · epoch 31/60 · "
        "compute 40 % comm 46 % wait 14 %"
    )


def test_a_name_that_is_too_long_loses_its_middle_and_nothing_else() -> None:
    line = line_of(80, "a_very_long_name_of_a_file_that_somebody_keeps.py:the_task_of_mine", pulse())
    assert line.startswith("a_very_")
    assert "task_of_mine ━" in line
    assert line.endswith("step 4,710/9,420 50 % · ETA 0:14")
    assert cell_len(line) <= 80


def test_a_clock_that_stands_still_tells_no_rate_and_no_time_left() -> None:
    still = pulse(samples_per_s=0.0, compute_s=0.0, comm_s=0.0, wait_s=0.0, eta_s=6.8e11)
    assert line_of(200, "mlp", still).endswith("50 % · train loss 0.1678 · accuracy 97.35 % · epoch 31/60")


@given(
    st.lists(st.tuples(st.text("abc 123", max_size=30), st.integers(0, 3), st.booleans()), max_size=6),
    st.integers(0, 90),
)
def test_parts_are_whole_or_end_in_a_whole_word(parts: list[tuple[str, int, bool]], room: int) -> None:
    told = fitting([BarText(*part) for part in parts], room)
    must = " · ".join(text for text, drop, _ in parts if not drop)
    assert cell_len(told) <= max(room, cell_len(must))
    if told:
        for piece in told.split(" · "):
            assert any(
                piece == text or (cuts and piece.endswith(" …") and f"{text} ".startswith(piece[:-1]))
                for text, _, cuts in parts
            )


@pytest.mark.parametrize(("seconds", "says"), [(0, "0:00"), (65, "1:05"), (7200, "2:00:00")])
def test_clocks(seconds: float, says: str) -> None:
    assert clock(seconds) == says


def test_a_log_and_a_bar_use_the_same_words(monkeypatch: pytest.MonkeyPatch) -> None:
    log = StringIO()
    monkeypatch.setattr(show, "people", Console(file=log, highlight=False))
    with show.progress("mlp") as observe:
        observe(pulse())
    bar = line_of(200, "mlp", pulse())
    assert log.getvalue().strip() == f"mlp {bar[bar.index('step') :]}"


def test_a_phase_of_parts_that_differ_tells_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    monkeypatch.setattr(show, "people", Console(file=screen, force_terminal=True, color_system=None, width=120))
    with show.meter() as tell:
        tell("training", 1.5, 6, "trained async-server on 4", one_s=12.0)
    assert re.search(
        r"training ━.* 25 % · ETA of this one 0:1[12] · trained async-server on 4 · elapsed 0:0", screen.getvalue()
    )
