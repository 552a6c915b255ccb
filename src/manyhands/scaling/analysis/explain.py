"""Say in words where the lost percents of every row went, each sentence with its number, and what would help."""

from collections.abc import Callable
from math import ceil

from manyhands.measurement.budget import ENOUGH_REPEATS
from manyhands.record.labels import cell_names, with_coverage
from manyhands.record.sweep import Cause, Cell, Finding, Fit, Kind, LostShare, Measure, Row
from manyhands.record.texts import count, duration, in_brackets, num_bytes, plain
from manyhands.scaling.analysis.losses import Loss
from manyhands.scaling.analysis.measured import Measured, strategy_of
from manyhands.scaling.analysis.remedies import remedies

WORTH_A_SENTENCE_PCT = 0.5
"""Smaller parts are summed up as the rest."""


def explain(
    kind: Kind, cells: list[Cell], measures: list[Measure], cores: int, rows: list[Row], fits: list[Fit]
) -> list[Finding]:
    """Return a finding for every row of several workers."""
    measured = Measured(kind, cells, measures, cores)
    return [_finding(measured, row, rows, fits) for row in rows if row.cell.size > 1]


def _finding(measured: Measured, row: Row, rows: list[Row], fits: list[Fit]) -> Finding:
    name = cell_names(other.cell for other in rows)[row.cell.key]
    baseline = measured.baseline(row.cell)
    alone = next((other for other in rows if other.cell == baseline), None)
    if row.samples_per_s is None:
        return _bare(row, f"{name}: {row.failed}")
    if row.efficiency is None or alone is None:
        rate = f"{row.samples_per_s.value:,.0f} samples/s"
        return _bare(row, f"{name}: {rate}, with no speed-up to tell", _why_no_speed_up(row, alone))
    loss = Loss(measured, row, alone)
    disturbance = _disturbance(loss)
    return Finding(
        row=row.cell.key,
        headline=f"{name}: {_headline(measured.kind, row)}",
        parts=[LostShare(cause=cause, percent=percent) for cause, percent in loss.parts.items()],
        sentences=[*disturbance, *_sentences(loss), *_doubts(loss)],
        remedies=[] if disturbance else remedies(loss, rows, fits),  # who would blame communication
    )


def _disturbance(loss: Loss) -> list[str]:
    """Say first what other programs took: a rank without a core looks like one that communicates or waits."""
    row, alone = loss.row, loss.alone
    if row.others is None or not row.others.disturbed:
        return []
    beside = f", and {alone.others.cores:.1f} beside one worker alone" if alone.others else ""
    said = str(row.others)
    return [
        f"{said[0].upper()}{said[1:]} while this was measured{beside}: what follows, communication and waiting above "
        "all, holds time in which a worker had no core; measure again on a quiet machine."
    ]


def _bare(row: Row, headline: str, *sentences: str) -> Finding:
    return Finding(row=row.cell.key, headline=headline, parts=[], sentences=list(sentences), remedies=[])


def _why_no_speed_up(row: Row, alone: Row | None) -> str:
    why = f": {alone.failed.rstrip('.')}" if alone else ""
    return f"There is no run of one worker alone to compare {count(row.repeats, 'run')} with{why}."


def _headline(kind: Kind, row: Row) -> str:
    assert row.speed_up
    assert row.efficiency
    fast = "as fast as one worker" if kind == "strong" else "the samples/s of one worker"
    interval = in_brackets(with_coverage(row.efficiency, 100, 1))
    lost = f"{100 * (1 - row.efficiency.value):.1f} % of the time was lost"
    if row.efficiency.value > 1:
        lost = f"superlinear, {100 * (row.efficiency.value - 1):.1f} % of the time was won"
    return f"{row.speed_up.value:.2f}× {fast}, efficiency {100 * row.efficiency.value:.1f} %{interval}; {lost}"


def _sentences(loss: Loss) -> list[str]:
    """Return a sentence for each part, the largest loss first, then gains; of a row that won time, gains first."""
    assert loss.row.efficiency
    superlinear = loss.row.efficiency.value > 1
    order = sorted(loss.parts.items(), key=lambda part: ((part[1] < 0) != superlinear, -abs(part[1])))
    large = [(cause, percent) for cause, percent in order if abs(percent) >= WORTH_A_SENTENCE_PCT]
    rest = sum(percent for _, percent in order) - sum(percent for _, percent in large)
    said = [_sentence(loss, cause, percent) for cause, percent in large]
    if len(large) < len(order) and abs(rest) >= 0.05:
        said.append(f"The rest, {rest:.1f} %, is spread over what is too small to tell apart.")
    return said


def _sentence(loss: Loss, cause: Cause, percent: float) -> str:
    words = (LOST if percent > 0 else WON)[cause]
    return words(loss, f"{abs(percent):.1f} %" + (" (which may be noise)" if cause in loss.doubtful else ""))


def _doubts(loss: Loss) -> list[str]:
    """Say what speaks against trusting the numbers too far."""
    row = loss.row
    assert row.efficiency
    said = []
    if row.repeats < ENOUGH_REPEATS:
        said.append(f"{count(row.repeats, 'run')} cannot tell a loss from noise; {ENOUGH_REPEATS} repeats can.")
    elif row.efficiency.low <= 1 <= row.efficiency.high:
        interval = in_brackets(with_coverage(row.efficiency, 100, 1))
        said.append(f"All this is within the noise: the efficiency may as well be 100 %{interval}.")
    if row.oversubscribed:
        said.append(
            f"{loss.ranks} ranks share {count(loss.measured.cores, 'core')}: "
            "communication and waiting hold time in which a rank had no core."
        )
    if row.failed:
        said.append(f"{row.failed.rstrip('.')}.")
    return said


def _comm(loss: Loss, percent: str) -> str:
    row = loss.row
    sent = f"{num_bytes(row.bytes_per_step)} in {count(row.messages_per_step, 'message')}"
    return f"{percent} went to communication: {_of_step(loss, row.comm_ms)}, in which all workers together send {sent}."


def _wait(loss: Loss, percent: str) -> str:
    n, uneven = loss.cell.size, loss.batch % loss.cell.size
    why = f"; {loss.batch} samples do not divide evenly by {n}, so some have {ceil(loss.batch / n)}" if uneven else ""
    return f"{percent} went to waiting for the slowest worker: {_of_step(loss, loss.row.wait_ms)}{why}."


def _serial(loss: Loss, percent: str) -> str:
    strategy = strategy_of(loss.cell.sync)
    work = ("coding gradients, " if strategy.codec else "") + SERIAL_WORK[strategy.updates]
    return f"{percent} is serial work, which every worker does: {_of_step(loss, loss.row.serial_ms)} for {work}."


def _small_batch(loss: Loss, percent: str) -> str:
    return f"{percent} was lost to small batches: {_small_and_whole(loss, 'longer')}."


def _oversubscription(loss: Loss, percent: str) -> str:
    return f"{percent} was lost because {loss.ranks} ranks take turns on {count(loss.measured.cores, 'core')}."


def _memory(loss: Loss, percent: str) -> str:
    shared = "memory bandwidth, caches and clock"
    if loss.cell.engine == "threads" or loss.cell.threads > 1:
        shared = f"Python's interpreter lock, {shared}"
    return f"{percent} was lost to sharing one machine ({shared}): {_beside_and_alone(loss, 'longer')}."


def _won_memory(loss: Loss, percent: str) -> str:
    return f"{percent} was won, since caches or clock helped: {_beside_and_alone(loss, 'less')}."


def _won_small_batch(loss: Loss, percent: str) -> str:
    return f"{percent} was won, since caches helped with smaller batches: {_small_and_whole(loss, 'less')}."


def _won_serial(loss: Loss, percent: str) -> str:
    now, before = duration(loss.row.serial_ms / 1e3), duration(loss.alone.serial_ms / 1e3)
    return f"{percent} was won in the optimiser's step and the loop around it: {now} a step, one worker takes {before}."


def _won_comm(loss: Loss, percent: str) -> str:
    return f"{percent} was won in communication, of which one worker alone had more."


def _won_wait(loss: Loss, percent: str) -> str:
    return f"{percent} was won in waiting, of which one worker alone had more."


def _won_oversubscription(loss: Loss, percent: str) -> str:
    return f"{percent} was won though {loss.ranks} ranks take turns on {count(loss.measured.cores, 'core')}."


def _unclear(loss: Loss, percent: str) -> str:
    return f"{percent} was lost in computing, {_why_unclear(loss)}."


def _won_unclear(loss: Loss, percent: str) -> str:
    return f"{percent} was won in computing, {_why_unclear(loss)}."


def _why_unclear(loss: Loss) -> str:
    """Say why small batches and sharing the machine are not told apart: the probe failed, and why."""
    which = f"one worker alone with {ceil(loss.batch / loss.cell.size)} samples"
    reasons = loss.measured.failures(loss.probe) if loss.probe else []
    failed = f"the probe ({which}) failed: {reasons[0].rstrip('.')}" if reasons else f"there is no probe ({which})"
    return f"where small batches and sharing the machine cannot be told apart, because {failed}"


SERIAL_WORK = {
    "all": "the optimiser's step and the loop around it",
    "slice": "its slice of the optimiser's step and the loop around it",
    "root": "the loop around the exchange, and the optimiser's step at one of them",
    "servers": "the loop around the exchange",
}
"""What every worker does in each step besides compute and exchange, by who runs the optimiser (`Sync.updates`)."""

Sentence = Callable[[Loss, str], str]
LOST: dict[Cause, Sentence] = {
    "comm": _comm,
    "wait": _wait,
    "serial": _serial,
    "small-batch": _small_batch,
    "oversubscription": _oversubscription,
    "memory": _memory,
    "unclear": _unclear,
}
WON: dict[Cause, Sentence] = {
    "comm": _won_comm,
    "wait": _won_wait,
    "serial": _won_serial,
    "small-batch": _won_small_batch,
    "oversubscription": _won_oversubscription,
    "memory": _won_memory,
    "unclear": _won_unclear,
}


def _of_step(loss: Loss, ms: float) -> str:
    return f"{duration(ms / 1e3)} of a step of {duration(loss.step_ms / 1e3)}"


def _small_and_whole(loss: Loss, longer: str) -> str:
    own = loss.batch / loss.cell.size
    whole = round(own / loss.share)
    return (
        f"for {plain(own)} samples one worker alone takes {_lost(loss, 'small-batch')} {longer} "
        f"than 1/{loss.cell.size} of its {duration(loss.alone.compute_ms / 1e3)} for {whole:,}"
    )


def _beside_and_alone(loss: Loss, longer: str) -> str:
    takes = duration(loss.row.compute_ms / 1e3)
    return f"computing takes {takes} a step, {_lost(loss, 'memory')} {longer} than one worker alone"


def _lost(loss: Loss, cause: Cause) -> str:
    """Return the time that a part stands for, lost or won: as its percent does, it pairs repeats."""
    return duration(abs(loss.parts[cause]) / 100 * loss.step_ms / 1e3)
