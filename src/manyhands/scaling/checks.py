"""Checks before the first run of a sweep: cells that cannot run, a budget that is too short, a busy machine."""

import math
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from manyhands import tasks
from manyhands.errors import UserError, check
from manyhands.machine import facts
from manyhands.machine.load import CoreMeter, others_of
from manyhands.measurement.budget import END_S, REPORT, START_S, Clock, least_s, parse_duration, too_short
from manyhands.scaling.analysis.measured import strategy_of
from manyhands.scaling.cells import make_cells, why_not
from manyhands.scaling.observer import Predict, SweepObserver
from manyhands.scaling.request import SweepRequest

PREDICT_S = 2.0
"""Seconds after which no further prediction is begun."""


def blocked_cells(request: SweepRequest) -> dict[str, str]:
    """Return the reasons why cells cannot run, by the cells' keys."""
    task = tasks.load(request.task)
    blocked = {cell.key: reason for cell in make_cells(request) if (reason := why_not(request, cell, task))}
    check_not_all(request, blocked)
    return blocked


def check_not_all(request: SweepRequest, reasons: Mapping[str, str]) -> None:
    """Raise UserError where nothing can run but one worker alone."""
    compared = [cell.key for cell in make_cells(request) if cell.role == "cell"]
    if all(key in reasons for key in compared):
        raise UserError(f"nothing of this sweep can run: {reasons[compared[0]]}")


def set_clock(clock: Clock, request: SweepRequest) -> float:
    """Set the clock's budget and its reserve for after the runs; return the estimated time to start a process.

    The estimate is the time that this process took to start, which shows how busy the machine is.
    """
    start_s = clock.elapsed_s + (0.0 if clock.spent_s else START_S)
    clock.budget_s = parse_duration(request.budget) if request.budget else math.inf
    clock.reserve_s = END_S + REPORT * start_s
    return start_s


def reserve_for(predict: Predict | None, clock: Clock, request: SweepRequest, blocked: Mapping[str, str]) -> None:
    """Reserve time for predictions, where there will be rows that cannot be measured with a core for each rank."""
    crowded = any(cell.size + strategy_of(cell.sync).num_servers() > facts.cores() for cell in make_cells(request))
    if predict is not None and (blocked or crowded):
        clock.reserve_s += PREDICT_S


def within_budget(
    request: SweepRequest, blocked: Mapping[str, str], start_s: float, clock: Clock, observe: SweepObserver
) -> SweepRequest:
    """Raise UserError where not every cell can run once within the budget, unless the user agrees to exceed it."""
    cells = [cell for cell in make_cells(request) if cell.key not in blocked]
    takes_s = least_s(cells, start_s, request.step_s)
    if request.over_budget or takes_s <= clock.left_s:
        return request
    sentence = too_short(request.budget, clock, cells, takes_s)
    check(observe.confirm(sentence), sentence)
    return request.model_copy(update={"over_budget": True})


def say_if_busy(cores: CoreMeter, request: SweepRequest, observe: SweepObserver) -> None:
    """Warn the user where other programs use the cores that the workers will need."""
    others = others_of([cores.read(max(request.workers)).to_json()])
    if others is not None and others.disturbed:
        observe.say(f"{others} just now: times will be too long and speed-ups mean little, unless they end")


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Make SIGTERM end a sweep like Ctrl-C; do nothing outside the main thread, where Python forbids it."""
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
