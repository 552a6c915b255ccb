"""What is found out before a sweep starts its first run: cells that cannot run, a budget too short, a busy machine."""

import math
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from manyhands import tasks
from manyhands.errors import UserError, check
from manyhands.machine.load import CoreMeter, others_of
from manyhands.measurement.budget import END_S, REPORT, START_S, Clock, least_s, parse_duration, too_short
from manyhands.scaling.cells import make_cells, why_not
from manyhands.scaling.observer import SweepObserver
from manyhands.scaling.request import SweepRequest


def check_nothing_given(options: Mapping[str, Any]) -> None:
    """Refuse to change a sweep that is resumed."""
    for name, value in options.items():
        check(value is None, f"a resumed sweep keeps what it was asked for; leave --{name.replace('_', '-')} out")


def marks_of(asked: SweepRequest) -> dict[str, str]:
    """Return why cells cannot run, by their keys."""
    task = tasks.load(asked.task)
    marks = {cell.key: reason for cell in make_cells(asked) if (reason := why_not(asked, cell, task))}
    check_not_all(asked, marks)
    return marks


def check_not_all(asked: SweepRequest, reasons: Mapping[str, str]) -> None:
    """Refuse a sweep of which nothing can run but one worker alone."""
    compared = [cell.key for cell in make_cells(asked) if cell.role == "cell"]
    if all(key in reasons for key in compared):
        raise UserError(f"nothing of this sweep can run: {reasons[compared[0]]}")


def set_clock(clock: Clock, asked: SweepRequest) -> float:
    """Let the budget count, and keep time for what follows the runs; return what it takes to start a process here.

    That is what this process, which has done the same, has taken itself; on a busy machine it takes longer.
    """
    start_s = clock.elapsed_s + (0.0 if clock.spent_s else START_S)
    clock.budget_s = parse_duration(asked.budget) if asked.budget else math.inf
    clock.reserve_s = END_S + REPORT * start_s
    return start_s


def within_budget(
    asked: SweepRequest, marks: Mapping[str, str], start_s: float, clock: Clock, observe: SweepObserver
) -> SweepRequest:
    """Refuse a budget in which not every cell can run once, unless the user wants to take the time all the same."""
    cells = [cell for cell in make_cells(asked) if cell.key not in marks]
    takes_s = least_s(cells, start_s, asked.step_s)
    if asked.over_budget or takes_s <= clock.left_s:
        return asked
    sentence = too_short(asked.budget, clock, cells, takes_s)
    check(observe.confirm(sentence), sentence)
    return asked.model_copy(update={"over_budget": True})


def say_if_busy(cores: CoreMeter, asked: SweepRequest, observe: SweepObserver) -> None:
    """Say at once that other programs use the cores that the workers will need."""
    others = others_of([cores.read(max(asked.workers)).to_json()])
    if others is not None and others.disturbed:
        observe.say(f"{others} just now: times will be too long and speed-ups mean little, unless they end")


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end a sweep as Ctrl-C does; outside the main thread, where Python forbids it, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
