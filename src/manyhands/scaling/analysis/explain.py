"""Explain in words where the lost time of every row went, each sentence with its number, and what would help."""

from math import ceil

import numpy as np

from manyhands.measurement.budget import ENOUGH_REPEATS
from manyhands.measurement.measure import usual_ms
from manyhands.record.labels import cell_names, unpaired_note, with_coverage
from manyhands.record.sweep import Cause, Finding, Fit, Kind, LostShare, Row
from manyhands.record.texts import count, in_brackets, milliseconds, num_bytes, plain
from manyhands.scaling.analysis.losses import Loss
from manyhands.scaling.analysis.measured import Measured, strategy_of
from manyhands.scaling.analysis.remedies import remedies

WORTH_A_SENTENCE_PCT = 0.5
"""Smaller parts are summed up as the rest."""
SERIAL_WORK = {
    "all": "the optimiser's step and the loop around it",
    "slice": "its slice of the optimiser's step and the loop around it",
    "root": "the loop around the exchange, and the optimiser's step at one of them",
    "servers": "the loop around the exchange",
}
"""What every worker does in each step besides compute and exchange, by who runs the optimiser (`Sync.updates`)."""


def explain(measured: Measured, rows: list[Row], fits: list[Fit]) -> list[Finding]:
    """Return a finding for every row of several workers."""
    return [_finding(measured, row, rows, fits) for row in rows if row.cell.size > 1]


def _finding(measured: Measured, row: Row, rows: list[Row], fits: list[Fit]) -> Finding:
    name = cell_names(other.cell for other in rows)[row.cell.key]
    baseline = measured.baseline(row.cell)
    alone = next((other for other in rows if other.cell == baseline), None)
    finding = Finding(row=row.cell.key, headline=f"{name}: {row.failed}", parts=[], sentences=[], remedies=[])
    if row.samples_per_s is None:
        return finding
    if row.efficiency is None or alone is None:
        why = f": {alone.failed.rstrip('.')}" if alone else ""
        finding.headline = f"{name}: {row.samples_per_s.value:,.0f} samples/s, with no speed-up to tell"
        finding.sentences = [f"There is no run of one worker alone to compare {count(row.repeats, 'run')} with{why}."]
        return finding
    loss = Loss(measured, row, alone)
    disturbance = _disturbance(loss)
    return Finding(
        row=row.cell.key,
        headline=f"{name}: {_headline(measured.kind, row)}",
        parts=[LostShare(cause=cause, percent=percent) for cause, percent in loss.parts.items()],
        sentences=[*disturbance, *_sentences(loss), *_doubts(loss)],
        remedies=remedies(loss, rows, fits),
    )


def _disturbance(loss: Loss) -> list[str]:
    """Say which cores other programs used: a rank without a core looks like one that communicates or waits."""
    row, alone = loss.row, loss.alone
    if row.others is None or not row.others.disturbed:
        return []
    beside = f", and {alone.others.cores:.1f} beside one worker alone" if alone.others else ""
    text = str(row.others)
    return [
        f"{text[0].upper()}{text[1:]} while this was measured{beside}: what follows, communication and waiting above "
        "all, may hold more time in which a worker had no core; measure again on a quiet machine."
    ]


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
    """Return a sentence for each part, the largest loss first, then gains; of a superlinear row, gains first.

    What is not attributed comes last.
    """
    assert loss.row.efficiency
    superlinear = loss.row.efficiency.value > 1
    order = sorted(
        loss.parts.items(),
        key=lambda part: (part[0] == "unattributed", (part[1] < 0) != superlinear, -abs(part[1])),
    )
    large = [(cause, percent) for cause, percent in order if abs(percent) >= WORTH_A_SENTENCE_PCT]
    rest = sum(percent for _, percent in order) - sum(percent for _, percent in large)
    lost, won, noise = _lost(loss), _won(loss), " (which may be noise)"
    sentences = [
        f"{abs(percent):.1f} %{noise if cause in loss.doubtful else ''} {(lost if percent > 0 else won)[cause]}."
        for cause, percent in large
    ]
    if len(large) < len(order) and abs(rest) >= 0.05:
        sentences.append(f"The rest, {rest:.1f} %, is spread over what is too small to tell apart.")
    return sentences


def _doubts(loss: Loss) -> list[str]:
    """Say why the numbers may not be reliable."""
    row = loss.row
    assert row.efficiency
    doubts = []
    if row.repeats < ENOUGH_REPEATS:
        doubts.append(f"{count(row.repeats, 'run')} cannot tell a loss from noise; {ENOUGH_REPEATS} repeats can.")
    elif row.efficiency.low <= 1 <= row.efficiency.high:
        interval = in_brackets(with_coverage(row.efficiency, 100, 1))
        doubts.append(f"All this is within the noise: the efficiency may as well be 100 %{interval}.")
    if row.oversubscribed:
        doubts.append(
            f"{loss.ranks} ranks share {count(loss.measured.cores, 'core')}: "
            "communication and waiting hold time in which a rank had no core."
        )
    if row.unpaired:
        doubts.append(f"{unpaired_note(row)}.")
    if row.failed:
        doubts.append(f"{row.failed.rstrip('.')}.")
    return doubts


def _lost(loss: Loss) -> dict[Cause, str]:
    """Return what a loss went to, by cause."""
    row, cell, step = loss.row, loss.cell, f"of a step of {milliseconds(loss.step_ms)}"
    sent = f"{num_bytes(row.bytes_per_step)} in {count(row.messages_per_step, 'message')}"
    divides, larger = loss.batch % cell.size == 0, ceil(loss.batch / cell.size)
    uneven = "" if divides else f"; {loss.batch} samples do not divide evenly by {cell.size}, so some have {larger}"
    strategy = strategy_of(cell.sync)
    work = ("coding gradients, " if strategy.codec else "") + SERIAL_WORK[strategy.updates]
    threads = cell.engine == "threads" or cell.threads > 1
    shared = ("Python's interpreter lock, " if threads else "") + "memory bandwidth, caches and clock"
    comm, wait, serial = (milliseconds(ms) for ms in (row.comm_ms, row.wait_ms, row.serial_ms))
    return {
        "comm": f"went to communication: {comm} {step}, in which all workers together send {sent}",
        "wait": f"went to waiting for the slowest worker: {wait} {step}{uneven}",
        "slow-rank": f"was lost because {_slow_rank(loss)}",
        "straggler": f"went to stragglers, long steps of one rank or another: {_time_of(loss, 'straggler')} {step}"
        f"{_last(loss)}",
        "uneven": f"was lost because {loss.batch} samples do not divide evenly by {cell.size}: the others wait "
        f"{_time_of(loss, 'uneven')} {step} for those that have {larger}",
        "others": f"was lost because other programs had the cores: {_time_of(loss, 'others')} {step}",
        "data": f"was lost in gathering data: {_data(loss)}",
        "serial": f"is serial work, which every worker does: {serial} {step} for {work}",
        "small-batch": f"was lost to small batches: {_small_and_whole(loss, 'longer')}",
        "oversubscription": f"was lost because {_turns(loss)}",
        "memory": f"was lost to sharing one machine ({shared}): {_beside_and_alone(loss, 'longer')}",
        "unclear": f"was lost in computing, {_why_unclear(loss)}",
        "servers": f"is the time of {count(loss.ranks - cell.size, 'server')}, whose cores compute no gradients",
        "unattributed": f"is not attributed: {_not_a_sum(loss)}",
    }


def _won(loss: Loss) -> dict[Cause, str]:
    """Return where a gain came from, by cause."""
    now, before = milliseconds(loss.row.serial_ms), milliseconds(loss.alone.serial_ms)
    return {
        "comm": "was won, since one worker alone spent more time on communication",
        "wait": "was won, since one worker alone spent more time waiting",
        "slow-rank": "was won by a slow rank",
        "straggler": "was won, since one worker alone had more long steps",
        "uneven": "was won by uneven shares",
        "others": "was won by other programs",
        "data": f"was won, since one worker alone gathers data for longer: {_data(loss)}",
        "serial": f"was won in the optimiser's step and the loop around it: {now} a step, one worker takes {before}",
        "small-batch": f"was won, since caches helped with smaller batches: {_small_and_whole(loss, 'less')}",
        "oversubscription": f"was won though {_turns(loss)}",
        "memory": f"was won, since caches or clock helped: {_beside_and_alone(loss, 'less')}",
        "unclear": f"was won in computing, {_why_unclear(loss)}",
        "unattributed": f"is counted twice: {_not_a_sum(loss)}",
    }


def _slow_rank(loss: Loss) -> str:
    """Name the slow rank, and by how much it is slower; where it is not the same in most runs, say that."""
    slow = loss.slow_rank
    views = [repeat.view for repeat in loss.repeats if repeat.view.slow]
    if slow is None:
        ranks = ", ".join(dict.fromkeys(f"rank {view.slow.rank}" for view in views if view.slow))
        return (
            f"a rank is slow in {len(views)} of {count(len(loss.repeats), 'run')} ({ranks}): see what runs on its core"
        )
    same = next(view for view in views if view.slow == slow)
    assert same.typical
    rows = "" if slow.rows == same.typical.rows else f" for {slow.rows} rows, others have {same.typical.rows}"
    takes, others = milliseconds(usual_ms(slow)), milliseconds(usual_ms(same.typical))
    return (
        f"rank {slow.rank} on {slow.host} is slow: it computes {takes} a step{rows}, the others {others}, "
        f"and is the last in {100 * slow.last:.0f} % of the steps"
    )


def _last(loss: Loss) -> str:
    """Say which rank is the last most often, if steps of all ranks end together."""
    slowest = [repeat.run.slowest for repeat in loss.repeats if repeat.run.slowest and repeat.run.slowest.last]
    if not slowest or loss.slow_rank:
        return ""
    usual = sorted(slowest, key=lambda steps: steps.last)[len(slowest) // 2]
    return f"; the slowest, rank {usual.rank}, was the last in {100 * usual.last:.0f} % of the steps"


def _data(loss: Loss) -> str:
    beside = float(np.median([repeat.view.data_ms for repeat in loss.repeats]))
    samples, whole = plain(loss.batch / loss.cell.size), round(loss.batch / loss.cell.size / loss.share)
    alone = f"one worker alone takes {milliseconds(loss.alone.gather_ms)} for {whole:,}"
    return f"{milliseconds(beside)} for {samples} samples, {alone}"


def _not_a_sum(loss: Loss) -> str:
    return f"the medians of the parts over {count(loss.row.repeats, 'run')} do not sum up to that of the loss"


def _turns(loss: Loss) -> str:
    return f"{loss.ranks} ranks take turns on {count(loss.measured.cores, 'core')}"


def _why_unclear(loss: Loss) -> str:
    """Say why small batches and sharing the machine cannot be told apart: the probe failed, and why."""
    which = f"one worker alone with {ceil(loss.batch / loss.cell.size)} samples"
    reasons = loss.measured.failures(loss.probe) if loss.probe else []
    failed = f"the probe ({which}) failed: {reasons[0].rstrip('.')}" if reasons else f"there is no probe ({which})"
    return f"where small batches and sharing the machine cannot be told apart, because {failed}"


def _small_and_whole(loss: Loss, longer: str) -> str:
    samples = loss.batch / loss.cell.size
    return (
        f"for {plain(samples)} samples one worker alone takes {_time_of(loss, 'small-batch')} {longer} "
        f"than 1/{loss.cell.size} of its {milliseconds(loss.alone_compute_ms)} for {round(samples / loss.share):,}"
    )


def _beside_and_alone(loss: Loss, longer: str) -> str:
    takes = milliseconds(loss.compute_ms)
    return f"computing takes {takes} a step, {_time_of(loss, 'memory')} {longer} than one worker alone"


def _time_of(loss: Loss, cause: Cause) -> str:
    """Return the time, lost or won, of a part: like its percentage, it pairs repeats."""
    return milliseconds(loss.ms_of(abs(loss.parts.get(cause, 0.0))))
