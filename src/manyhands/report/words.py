"""Headline, laws and explanation of a sweep as sentences, for terminal and page; causes are from `scaling/analysis`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from manyhands.record.labels import cell_names, coverage, least_coverage, span, with_coverage, with_span, workers_span
from manyhands.record.sweep import LARGE_ERROR_PCT, Fit, Remedy, Row, SweepRecord
from manyhands.record.texts import count, day, duration, figure, in_brackets, percent, rate
from manyhands.report.curves import Curve, curves
from manyhands.report.tables.sweeps import LAWS


@dataclass(frozen=True)
class Passage:
    """A paragraph of the page; of a sweep, the explanation of one curve."""

    title: str
    headline: str = ""
    sentences: Sequence[str] = ()
    remedies: Sequence[str] = ()
    others: Sequence[str] = ()
    """Short lines on the remaining cases, such as the other numbers of workers."""
    fits: Sequence[str] = ()
    """Sentences on the fitted laws."""


def explanation(record: SweepRecord) -> list[str]:
    """Return the explanation of a sweep as lines: findings, remedies, and what the fitted laws mean."""
    lines = []
    for passage in passages(record):
        lines += [passage.headline] if passage.headline else []
        lines += [f"  {sentence}" for sentence in passage.sentences]
        lines += [f"  → {remedy}" for remedy in passage.remedies]
        lines += [*passage.others, *passage.fits]
    return lines


def passages(record: SweepRecord) -> list[Passage]:
    """Return a passage for each curve: on its largest number of workers in full, on the others by their headlines."""
    known = curves(record)
    explained = [_passage(curve, curve.name if len(known) > 1 else "") for curve in known]
    return [passage for passage in explained if passage.headline or passage.fits]


def _passage(curve: Curve, series: str) -> Passage:
    """Return a passage on the finding of most workers; of those that had a core each, where there are any."""
    fits = fit_sentences(curve.fits, series)
    if not curve.findings:
        return Passage(curve.name, fits=fits)
    own_cores = [(row, finding) for row, finding in curve.findings if not row.oversubscribed]
    _, chosen = max(own_cores or curve.findings, key=lambda pair: pair[0].cell.size)
    return Passage(
        curve.name,
        chosen.headline,
        chosen.sentences,
        [remedy_sentence(remedy) for remedy in chosen.remedies],
        [finding.headline for _, finding in curve.findings if finding is not chosen],
        fits,
    )


def remedy_sentence(remedy: Remedy) -> str:
    """Return a sentence on a remedy and its gain, with the options to try it."""
    how = f"; try {remedy.command}" if remedy.command and remedy.command not in remedy.sentence else ""
    return f"{remedy.sentence.rstrip('.')}{how}"


def fit_sentences(fits: Sequence[Fit], series: str = "") -> list[str]:
    """Return a sentence on each law fitted to a curve; a single one where none fits."""
    if not fits or any(fit.describes for fit in fits):
        return [fit_sentence(fit, series) for fit in fits]
    errors = ", ".join(f"{LAWS[fit.law]} {_why_not(fit)}" for fit in fits)
    return [f"no law fits{in_brackets(series)}: {errors}"]


def _why_not(fit: Fit) -> str:
    """Return why a law does not describe the measurements."""
    if fit.is_slower:
        return f"error {percent(fit.error_pct, 0)}, since the workers are slower than one"
    if fit.error_pct < LARGE_ERROR_PCT:
        if not all(parameter.is_known for parameter in fit.parameters.values()):
            return "needs two repeats or more"
        name, vague = max(fit.parameters.items(), key=lambda p: 0.0 if p[0] == "rate" else p[1].high - p[1].low)
        return f"{name} may be {span(vague, 100, 0)} %"
    return f"error {percent(fit.error_pct, 0)}"


def fit_sentence(fit: Fit, series: str = "") -> str:
    """Return a sentence on what a fitted law means: the serial share, the limit, or the best number of workers."""
    law = f"{LAWS[fit.law]} ({series})" if series else LAWS[fit.law]
    if not fit.describes:
        return f"{law}: does not fit: {_why_not(fit)}"
    if fit.law == "usl":
        return f"{law}: {_usl(fit)}"
    serial = fit.parameters["serial"]
    interval = with_coverage(serial, 100, 1)
    share = f"{percent(100 * serial.value)} of the work is serial{in_brackets(interval)}"
    if fit.law == "gustafson":
        adds = serial.model_copy(update={"value": 1 - serial.value, "low": 1 - serial.high, "high": 1 - serial.low})
        return f"{law}: {share}, so each further worker adds the work of {with_span(f'{adds.value:.2f}', adds)}"
    if serial.value <= 0:
        return f"{law}: no serial part shows{in_brackets(interval and f'{interval} %')}, so it sets no limit"
    return f"{law}: {share}, so no number of workers exceeds {figure(1 / serial.value, 2)}×"


def _usl(fit: Fit) -> str:
    contention, coherency = fit.parameters["contention"], fit.parameters["coherency"]
    why = f"contention {percent(100 * contention.value)}, coherency {percent(100 * coherency.value, 2)}"
    if fit.best_workers is None:
        return f"no point shows where adding workers stops helping ({why})"
    best = fit.best_workers
    interval = f"{coverage(best)}: {workers_span(best)}" if best.is_shown else ""
    return f"adding workers stops helping at {best.value:.0f}{in_brackets(interval, why)}"


def task_name(task: str) -> str:
    """Return a task's name without the folders of its file."""
    return Path(task).name or task


def headline(record: SweepRecord) -> str:
    """Return a sentence on the fastest row, and how much faster it is than one worker."""
    task, best = task_name(record.task), best_row(record)
    if best is None or best.speed_up is None or best.efficiency is None:
        return _without_speed_up(record)
    name, factor = cell_names(row.cell for row in record.rows)[best.cell.key], f"{best.speed_up.value:.2f}"
    interval = in_brackets(with_coverage(best.speed_up))
    if best.speed_up.high < 1:
        runs = f"No run of {task}{of_own_cores(record)}"
        return f"{runs} was faster than one worker; the nearest, {name}, has {factor}× its speed{interval}."
    if best.speed_up.low < 1:
        return f"{task} with {name} is not measurably faster than on one worker: {factor}×{interval}."
    reference = (best.ranks, "core") if best.ranks > best.cell.size else (best.cell.size, "worker")
    ideal = f"{100 * best.efficiency.value:.0f} % of what {count(*reference)} could do at best"
    shared = ", though its ranks had to share cores" if best.oversubscribed else ""
    if record.kind == "weak":
        return (
            f"With {name}, each worker with a batch of its own, {task} gets through {factor}× the samples "
            f"of one worker{interval}: {ideal}{shared}."
        )
    return f"{task} with {name} trains {factor}× as fast as on one worker{interval}: {ideal}{shared}."


def best_row(record: SweepRecord) -> Row | None:
    """Return the row of the greatest speed-up; of those whose ranks had a core each, where there are any."""
    rows = [r for r in record.rows if r.cell.role == "cell" and r.repeats and r.speed_up and r.efficiency]
    own_cores = [r for r in rows if not r.oversubscribed]
    return max(own_cores or rows, key=lambda r: r.speed_up.value if r.speed_up else 0.0, default=None)


def of_own_cores(record: SweepRecord) -> str:
    """Return words that restrict a claim to runs with a core for each rank; empty where it holds for all runs."""
    best = best_row(record)
    least = best.speed_up.value if best and best.speed_up else 0.0
    faster = any(r.oversubscribed and r.speed_up and r.speed_up.value > max(1.0, least) for r in record.rows)
    return " with a core for each rank" if faster else ""


def _without_speed_up(record: SweepRecord) -> str:
    task = task_name(record.task)
    measured = [r for r in record.rows if r.repeats and r.samples_per_s]
    if not measured:
        stopped = " before the sweep was stopped" if record.status == "interrupted" else ""
        return f"No run of {task} went well{stopped}."
    first = measured[0]
    speed = rate(first.samples_per_s.value if first.samples_per_s else None)
    name = cell_names(row.cell for row in record.rows)[first.cell.key]
    return f"{task} with {name} gets through {speed} samples/s; there is nothing to compare it with."


def circumstances(record: SweepRecord) -> str:
    """Return one line on what was measured, where, and how long it took."""
    repeated = f"{count(record.repeats, 'interleaved repeat')} of {count(record.steps, 'step')}"
    if not (record.repeats and record.steps):
        repeated = "stopped in its pilot round, before steps and repeats were chosen"
    took = f"took {duration(record.wall_s)}"
    return dotted(f"{record.kind} scaling", repeated, machine(record.hardware), day(record.started), took)


def certainty(record: SweepRecord) -> str:
    """Return a sentence on what the figures are, with the least coverage of their intervals."""
    least = least_coverage(row.step_ms for row in record.rows)
    most = max((row.repeats for row in record.rows), default=0)
    if least:
        return f"Figures are medians over the repeats; their intervals hold the true median in {least} of cases."
    if most > 1:
        best = max(row.step_ms.coverage_pct for row in record.rows if row.step_ms)
        few = f"Figures are medians of at most {most} repeats, too few for an interval"
        return f"{few}: the range of the repeats holds the true median in {best:.3g} % of cases."
    return "Figures are of one run each, which has no interval."


def dotted(*facts: str) -> str:
    """Return facts in one line, without empty ones."""
    return " · ".join(fact for fact in facts if fact)


def machine(hardware: Mapping[str, Any]) -> str:
    """Return a short description of the machine: `2 cores of an Intel Xeon`; empty where it is not known."""
    cores, cpu = hardware.get("cores"), hardware.get("cpu")
    parts = [count(cores, "core") if isinstance(cores, int) else "", str(cpu or "")]
    return " of ".join(part for part in parts if part)
