"""What people see while a command works."""

from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console

from manyhands.cli import calibrate, show

Shown = Callable[[], list[str]]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Read what a log has, line by line."""
    log = StringIO()
    monkeypatch.setattr(show, "people", Console(file=log, highlight=False))
    return lambda: log.getvalue().splitlines()


def test_a_log_has_a_line_for_every_tenth_of_every_phase(shown: Shown) -> None:
    with show.meter() as tell:
        for phase, total in (("predicting", 1.0), ("running", 40.0)):
            for done in range(101):
                tell(phase, total * done / 100, total, phase)
    tenths = [f"{10 * tenth:3d} %" for tenth in range(1, 11)]
    assert shown() == [f"{each} {phase}" for phase in ("predicting", "running") for each in tenths]


def test_a_log_has_the_lines_that_are_asked_for_and_more_when_nothing_was_said_for_long(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    with show.meter() as tell:
        tell("running", 1, 200, "too soon")
        tell("running", 1, 200, "a [result]", line=True)
        tell("advising", 0, None, "too soon")
        monkeypatch.setattr(show, "LINE_S", -1.0)
        tell("advising", 0, None, "who knows how long")
    assert shown() == ["  0 % a [result]", "who knows how long"]


def test_a_terminal_has_a_bar_that_goes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    monkeypatch.setattr(show, "people", Console(file=screen, force_terminal=True, width=100))
    with show.meter() as tell:
        tell("predicting", 1, 1, "first")
        tell("running", 1, 4, "a [result]")
    assert "25 % · ETA 0:00 · a [result]" in screen.getvalue()


@pytest.mark.parametrize(("gigabyte_per_s", "says"), [(1.25, "10.0 Gb/s"), (1e3, "too fast to tell")])
def test_bandwidths_are_those_of_cluster_files(gigabyte_per_s: float, says: str) -> None:
    assert calibrate._rate(gigabyte_per_s) == says
