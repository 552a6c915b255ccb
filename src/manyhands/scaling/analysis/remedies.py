"""What would help a row, with the growth of samples per second that its own numbers predict or the sweep measured."""

from collections.abc import Iterator
from functools import cache
from math import ceil, inf
from typing import NamedTuple

from manyhands import launch, spec, sync
from manyhands.errors import UserError
from manyhands.measurement.stats import median, paired, through
from manyhands.record.labels import with_coverage
from manyhands.record.sweep import Cause, Cell, Fit, Interval, Remedy, Row
from manyhands.record.texts import count, in_brackets
from manyhands.scaling.analysis.losses import Loss
from manyhands.scaling.analysis.measured import strategy_of
from manyhands.scaling.analysis.rows import rates
from manyhands.sync.base import check_features

MOST = 3
LEAST_GAIN_PCT = 1.0
"""A remedy that brings less is not worth the trouble."""
PERIOD = 8
OVERLAPPING = {"mpi", "torch", "ray"}
"""Engines on which a sum goes on by itself; threads have no one else to do it meanwhile."""
PROCESSES = {"mpi", "torch", "ray"}
"""Engines whose workers do not share an interpreter."""
BACKWARD = 2 / 3
"""Share of the backward pass in compute: it makes two products for each one of the forward pass."""


def remedies(loss: Loss, rows: list[Row], fits: list[Fit]) -> list[Remedy]:
    """Return the few remedies that bring most, best first."""
    found = [*_fewer_workers(loss, rows, fits), *_processes(loss, rows), *_more_machines(loss)]
    # Where ranks share cores, what looks like exchanges and waiting is time in which a rank had no core.
    if not loss.row.oversubscribed:
        found += [
            *_seldom(loss, rows),
            *_overlap(loss, rows),
            *_sharded(loss, rows),
            *_larger_batch(loss, rows),
            *_even_batch(loss),
        ]
    worth = [remedy for remedy in found if remedy.gain_pct >= LEAST_GAIN_PCT]
    return sorted(worth, key=lambda remedy: -remedy.gain_pct)[:MOST]


def _seldom(loss: Loss, rows: list[Row]) -> Iterator[Remedy]:
    """Exchange every few steps: that much less to send, and to wait for."""
    text = f"local-sgd:period={PERIOD}"
    if strategy_of(loss.cell.sync).exchanges != "step" or not _can_run(loss.cell.engine, text):
        return
    saved_ms = (1 - 1 / PERIOD) * (loss.row.comm_ms + loss.row.wait_ms)
    what, note = "Exchange only now and then", "not the answer of one worker any more, so look at the accuracy"
    yield _strategy(loss, rows, text, _larger(loss, "comm", "wait"), what, "about", saved_ms, note)


def _overlap(loss: Loss, rows: list[Row]) -> Iterator[Remedy]:
    """Exchange while the backward pass still computes, which hides one behind the other."""
    if loss.cell.sync != "allreduce" or loss.cell.engine not in OVERLAPPING:
        return
    saved_ms = min(loss.row.comm_ms, BACKWARD * loss.row.compute_ms)
    yield _strategy(loss, rows, "overlap", "comm", "Exchange while the backward pass computes", "at most", saved_ms)


def _sharded(loss: Loss, rows: list[Row]) -> Iterator[Remedy]:
    """Let each worker update its own slice of the weights."""
    strategy = strategy_of(loss.cell.sync)
    if not strategy.exact or strategy.updates != "all" or not _can_run(loss.cell.engine, "sharded"):
        return
    saved_ms = loss.row.serial_ms * (1 - 1 / loss.cell.size)
    what, note = "Share out the optimiser's step", "it costs an all-gather of the weights"
    yield _strategy(loss, rows, "sharded", "serial", what, "at most", saved_ms, note)


def _strategy(
    loss: Loss, rows: list[Row], text: str, cause: Cause, what: str, about: str, saved_ms: float, note: str = ""
) -> Remedy:
    """Return the remedy of another strategy; one of its kind that was measured counts, whatever its options."""
    tried = [row for row in rows if _name(row.cell.sync) == _name(text) and _but_for_sync(row.cell, loss.cell)]
    best = _best(loss, tried)
    if best:
        return _remedy(cause, what, best.gain, f"--sync {best.row.cell.sync}", note)
    return _remedy(cause, what, (about, _gain_pct(loss, loss.step_ms - saved_ms)), f"--sync {text}", note)


def _larger_batch(loss: Loss, rows: list[Row]) -> Iterator[Remedy]:
    """Take twice the batch: what comes once a step comes half as often for each sample."""
    if loss.cell.batch_size == "full" or loss.steps_per_epoch < 2:
        return
    batch = 2 * loss.batch
    step_ms = loss.step_ms + (1 - _start_share(loss)) * (loss.row.compute_ms + loss.row.wait_ms)
    best = _best(loss, _alike(loss, rows, batch_size=batch))
    what, note = f"Take twice the batch, {batch:,} samples", "fewer and larger steps, which changes the mathematics"
    gain = best.gain if best else ("about", _gain_pct(loss, step_ms, work=2.0))
    yield _remedy(_larger(loss, "comm", "serial", "small-batch"), what, gain, f"--batch-size {batch}", note)


def _start_share(loss: Loss) -> float:
    """Return what share of one worker's compute does not grow with its batch, by baseline and probe."""
    own = loss.batch / loss.cell.size
    whole = own / loss.share
    if not loss.has_probe or whole == own or loss.undisturbed_ms <= 0:
        return 0.0
    sample_ms = (loss.alone.compute_ms - loss.undisturbed_ms) / (whole - own)
    return min(1.0, max(0.0, 1 - sample_ms * own / loss.undisturbed_ms))


def _even_batch(loss: Loss) -> Iterator[Remedy]:
    """Take a batch that the workers share out evenly, so that none waits for those with a sample more."""
    n = loss.cell.size
    even = n * ceil(loss.batch / n)
    if loss.cell.batch_size == "full" or even == loss.batch or loss.parts["wait"] <= 0:
        return
    work = even / loss.batch
    more_ms = loss.row.compute_ms * (work - 1)
    gain = _gain_pct(loss, loss.step_ms + more_ms - min(more_ms, loss.row.wait_ms), work)
    what = f"Take a batch that divides evenly by {n}, {even:,} samples"
    yield _remedy("wait", what, ("about", gain), f"--batch-size {even}")


def _fewer_workers(loss: Loss, rows: list[Row], fits: list[Fit]) -> Iterator[Remedy]:
    """Take the number of workers that was fastest or, where there are not cores for all, as many as cores."""
    cause: Cause = "oversubscription" if loss.row.oversubscribed else _larger(loss, *loss.parts)
    tried = [loss.alone, *(row for row in rows if _same_curve(loss, row) and row.cell.size < loss.cell.size)]
    best = _best(loss, tried)
    if best:
        yield _remedy(cause, f"Take {count(best.row.cell.size, 'worker')}", best.gain, _many(best.row.cell))
    threads, servers = loss.cell.threads, loss.ranks - loss.cell.size
    fitting = (loss.measured.cores - servers) // threads * threads
    if loss.row.oversubscribed and fitting >= 1 and fitting not in {row.cell.size for row in tried}:
        cell = loss.cell.model_copy(update={"workers": fitting // threads})
        what = f"Take {count(fitting, 'worker')}, as many as there are cores for"
        yield _remedy(cause, what, ("about", _crowd_gain_pct(loss, fitting, fits)), _many(cell))


def _crowd_gain_pct(loss: Loss, workers: int, fits: list[Fit]) -> float:
    """Predict the gain of having a core for each worker: by Amdahl's law, else with the row's own costs of a step."""
    assert loss.row.speed_up
    curve = (loss.cell.series, loss.alone.cell.batch_size, loss.alone.cell.image_size)
    for fit in fits:
        if fit.law == "amdahl" and fit.describes and (fit.series, fit.batch_size, fit.image_size) == curve:
            serial = fit.parameters["serial"].value
            return min(_most_pct(loss), (1 / (serial + (1 - serial) / workers) / loss.row.speed_up.value - 1) * 100)
    weak = loss.measured.kind == "weak"
    computing_ms = loss.alone.compute_ms * (1.0 if weak else 1 / workers)
    work = workers / loss.cell.size if weak else 1.0
    return _gain_pct(loss, loss.step_ms - loss.row.compute_ms + computing_ms, work)


def _processes(loss: Loss, rows: list[Row]) -> Iterator[Remedy]:
    """Take processes instead of threads, which share an interpreter."""
    if loss.cell.engine != "threads":
        return
    what = "Take processes instead of threads"
    best = _best(loss, [row for engine in sorted(PROCESSES) for row in _alike(loss, rows, engine=engine)])
    if best:
        causes = [cause for cause in loss.parts if not loss.row.oversubscribed or cause not in ("comm", "wait")]
        yield _remedy(_larger(loss, *causes), what, best.gain, f"--engine {best.row.cell.engine}")
    elif _can_run("mpi", loss.cell.sync) and not loss.is_unclear:
        gain = _gain_pct(loss, loss.step_ms * (1 - loss.parts["memory"] / 100))
        yield _remedy("memory", what, ("at most", gain), "--engine mpi", "if their exchanges cost no more")


def _more_machines(loss: Loss) -> Iterator[Remedy]:
    """Give the workers more machines."""
    if loss.cell.engine not in PROCESSES | {"hybrid"} or loss.is_unclear:
        return
    crowding = loss.parts["memory"] + loss.parts["oversubscription"]
    # These have cores for all.
    gain = ("at most", _gain_pct(loss, loss.step_ms * (1 - crowding / 100), cores=loss.cell.size))
    what, note = "Spread the workers over more machines", "if their network costs no more than exchanges do here"
    hosts = "--mpiexec 'mpiexec -hosts a,b'" if loss.cell.engine in ("mpi", "hybrid") else ""
    yield _remedy(_larger(loss, "memory", "oversubscription"), what, gain, hosts, note)


class FastestTried(NamedTuple):
    """The fastest of the rows that tried something."""

    row: Row
    gain: Interval
    """By how many percent it beats the row in question, repeat by repeat."""


def _best(loss: Loss, tried: list[Row]) -> FastestTried | None:
    own = rates(loss.measured, loss.cell)
    found = [
        FastestTried(row, _percent(median(paired(rates(loss.measured, row.cell), own)))) for row in tried if row.repeats
    ]
    return max(found, key=lambda best: best.gain.value, default=None)


def _percent(ratio: Interval) -> Interval:
    return through(lambda factor: (factor - 1) * 100, ratio)


def _remedy(cause: Cause, what: str, gain: Interval | tuple[str, float], command: str, note: str = "") -> Remedy:
    """Return what to do and what it brings: as measured, or as predicted, about or at most."""
    if isinstance(gain, Interval):
        # What may be noise brings nothing that one could count on.
        gain_pct = gain.value if gain.is_known and gain.low > 0 else 0.0
        interval = in_brackets(with_coverage(gain, 1, 1))
        brings = f"measured here: {gain_pct:.1f} % more samples/s{interval}"
    else:
        about, gain_pct = gain
        brings = f"{about} {gain_pct:.1f} % more samples/s"
    sentence = f"{what}: {brings}; {note}." if note else f"{what}: {brings}."
    return Remedy(cause=cause, sentence=sentence, gain_pct=gain_pct, command=command)


def _gain_pct(loss: Loss, step_ms: float, work: float = 1.0, cores: int | None = None) -> float:
    """Return how many percent more samples/s there are when a step takes so long, for so many times the batch."""
    return min(_most_pct(loss, cores), (work * loss.step_ms / max(step_ms, 0.01 * loss.step_ms) - 1) * 100)


def _most_pct(loss: Loss, cores: int | None = None) -> float:
    """Return the gain beyond which nothing is promised: that every worker, or core, does what one alone does."""
    assert loss.row.speed_up
    return (min(loss.cell.size, cores or loss.measured.cores) / loss.row.speed_up.value - 1) * 100


def _larger(loss: Loss, *causes: Cause) -> Cause:
    return max(causes, key=lambda cause: loss.parts.get(cause, -inf))


def _alike(loss: Loss, rows: list[Row], **other: int | str) -> list[Row]:
    """Return the rows that differ in nothing else."""
    wanted = loss.cell.model_copy(update=other)
    return [row for row in rows if row.cell == wanted]


def _but_for_sync(cell: Cell, other: Cell) -> bool:
    return cell.model_copy(update={"sync": other.sync}) == other


def _same_curve(loss: Loss, row: Row) -> bool:
    baseline = loss.measured.baseline(row.cell)
    return row.cell.role == "cell" and row.cell.series == loss.cell.series and baseline == loss.alone.cell


@cache
def _can_run(engine: str, text: str) -> bool:
    try:
        check_features(sync.make(text), launch.make(engine).features, engine)
    except UserError:
        return False
    return True


def _name(text: str) -> str:
    return spec.parse(text)[0]


def _many(cell: Cell) -> str:
    """Return the options that choose so many workers."""
    if cell.role == "baseline":
        return f"--engine {cell.engine} --workers 1"
    return f"--workers {cell.workers}" + (f" --threads {cell.threads}" if cell.threads > 1 else "")
