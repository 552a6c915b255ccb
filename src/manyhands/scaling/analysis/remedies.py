"""Recommend what would help a row, with the gain in samples/s that its times predict or that the sweep measured."""

from collections.abc import Iterator
from functools import cache
from math import ceil, inf

from manyhands import launch, spec, sync
from manyhands.errors import UserError
from manyhands.measurement.stats import ratio, through
from manyhands.record.labels import with_coverage
from manyhands.record.sweep import Cause, Cell, Fit, Interval, Remedy, Row
from manyhands.record.texts import count, in_brackets
from manyhands.scaling.analysis.losses import Loss
from manyhands.scaling.analysis.measured import strategy_of
from manyhands.scaling.analysis.rows import rates
from manyhands.sync.base import check_features

MOST = 3
LEAST_GAIN_PCT = 1.0
"""Remedies that bring less are not shown."""
PERIOD = 8
OVERLAPPING = {"mpi", "torch", "ray"}
"""Engines on which an all-reduce progresses by itself; with threads nobody else is there to do it."""
PROCESSES = {"mpi", "torch", "ray"}
"""Engines whose workers do not share an interpreter."""
BACKWARD = 2 / 3
"""Share of the backward pass in compute: it makes two products for each one of the forward pass."""


def remedies(loss: Loss, rows: list[Row], fits: list[Fit]) -> list[Remedy]:
    """Return the few remedies that bring most, best first."""
    candidates = [*_fewer_workers(loss, rows, fits), *_processes(loss, rows), *_more_machines(loss)]
    # Where ranks share cores, the time of exchanges and waiting includes time in which a rank had no core.
    if not loss.row.oversubscribed:
        candidates += [*_strategies(loss, rows), *_larger_batch(loss, rows), *_even_batch(loss)]
    worth = [remedy for remedy in candidates if remedy.gain_pct >= LEAST_GAIN_PCT]
    return sorted(worth, key=lambda remedy: -remedy.gain_pct)[:MOST]


def _strategies(loss: Loss, rows: list[Row]) -> Iterator[Remedy]:
    """Recommend other strategies: rarer exchanges, overlap with the backward pass, a sharded optimiser's step."""
    row, engine, strategy = loss.row, loss.cell.engine, strategy_of(loss.cell.sync)
    seldom = f"local-sgd:period={PERIOD}"
    if strategy.exchanges == "step" and _can_run(engine, seldom):
        saved_ms = (1 - 1 / PERIOD) * (row.comm_ms + row.wait_ms)
        what, note = "Exchange only now and then", "not the answer of one worker any more, so look at the accuracy"
        yield _strategy(loss, rows, seldom, _larger(loss, "comm", "wait"), what, "about", saved_ms, note)
    if loss.cell.sync == "allreduce" and engine in OVERLAPPING:
        saved_ms = min(row.comm_ms, BACKWARD * row.compute_ms)
        yield _strategy(loss, rows, "overlap", "comm", "Exchange while the backward pass computes", "at most", saved_ms)
    if strategy.exact and strategy.updates == "all" and _can_run(engine, "sharded"):
        saved_ms = row.serial_ms * (1 - 1 / loss.cell.size)
        what, note = "Share out the optimiser's step", "it costs an all-gather of the weights"
        yield _strategy(loss, rows, "sharded", "serial", what, "at most", saved_ms, note)


def _strategy(
    loss: Loss, rows: list[Row], text: str, cause: Cause, what: str, about: str, saved_ms: float, note: str = ""
) -> Remedy:
    """Return the remedy of the strategy `text`: as measured, with whatever options, else as predicted."""
    name = spec.parse(text)[0]
    tried = [row for row in rows if spec.parse(row.cell.sync)[0] == name and row.cell == _but(loss, sync=row.cell.sync)]
    if best := _fastest(loss, tried):
        return _remedy(cause, what, best[1], f"--sync {best[0].cell.sync}", note)
    return _remedy(cause, what, (about, _gain_pct(loss, loss.step_ms - saved_ms)), f"--sync {text}", note)


def _larger_batch(loss: Loss, rows: list[Row]) -> Iterator[Remedy]:
    """Recommend twice the batch: the costs of a step are then shared by twice the samples."""
    if loss.cell.batch_size == "full" or loss.steps_per_epoch < 2:
        return
    batch = 2 * loss.batch
    step_ms = loss.step_ms + (1 - _start_share(loss)) * (loss.row.compute_ms + loss.row.wait_ms)
    best = _fastest(loss, [row for row in rows if row.cell == _but(loss, batch_size=batch)])
    what, note = f"Take twice the batch, {batch:,} samples", "fewer and larger steps, which changes the mathematics"
    gain = best[1] if best else ("about", _gain_pct(loss, step_ms, work=2.0))
    yield _remedy(_larger(loss, "comm", "serial", "small-batch"), what, gain, f"--batch-size {batch}", note)


def _start_share(loss: Loss) -> float:
    """Return the share of one worker's compute that does not grow with its batch, by baseline and probe."""
    samples = loss.batch / loss.cell.size
    whole = samples / loss.share
    if not loss.has_probe or whole == samples or loss.undisturbed_ms <= 0:
        return 0.0
    sample_ms = (loss.alone.compute_ms - loss.undisturbed_ms) / (whole - samples)
    return min(1.0, max(0.0, 1 - sample_ms * samples / loss.undisturbed_ms))


def _even_batch(loss: Loss) -> Iterator[Remedy]:
    """Recommend a batch that divides evenly, so that no worker waits for those with a sample more."""
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
    """Recommend the fastest measured number of workers and, for an oversubscribed row, one worker per core."""
    cell, measured = loss.cell, loss.measured
    cause: Cause = "oversubscription" if loss.row.oversubscribed else _larger(loss, *loss.parts)
    tried = [loss.alone]
    for row in rows:
        same_series = row.cell.role == "cell" and row.cell.series == cell.series and row.cell.size < cell.size
        if same_series and measured.baseline(row.cell) == loss.alone.cell:
            tried.append(row)
    if best := _fastest(loss, tried):
        fastest, gain = best
        yield _remedy(cause, f"Take {count(fastest.cell.size, 'worker')}", gain, _worker_options(fastest.cell))
    fitting = (measured.cores - (loss.ranks - cell.size)) // cell.threads * cell.threads
    if loss.row.oversubscribed and fitting >= 1 and fitting not in {row.cell.size for row in tried}:
        what = f"Take {count(fitting, 'worker')}, as many as there are cores for"
        options = _worker_options(_but(loss, workers=fitting // cell.threads))
        yield _remedy(cause, what, ("about", _crowd_gain_pct(loss, fitting, fits)), options)


def _crowd_gain_pct(loss: Loss, workers: int, fits: list[Fit]) -> float:
    """Predict the gain of a core for each worker: by Amdahl's law where it was fitted, else from the row's times."""
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
    """Recommend processes instead of threads, which share an interpreter."""
    if loss.cell.engine != "threads":
        return
    what = "Take processes instead of threads"
    tried = [row for engine in sorted(PROCESSES) for row in rows if row.cell == _but(loss, engine=engine)]
    if best := _fastest(loss, tried):
        causes = [cause for cause in loss.parts if not loss.row.oversubscribed or cause not in ("comm", "wait")]
        yield _remedy(_larger(loss, *causes), what, best[1], f"--engine {best[0].cell.engine}")
    elif _can_run("mpi", loss.cell.sync) and not loss.is_unclear:
        gain = _gain_pct(loss, loss.step_ms * (1 - loss.parts["memory"] / 100))
        yield _remedy("memory", what, ("at most", gain), "--engine mpi", "if their exchanges cost no more")


def _more_machines(loss: Loss) -> Iterator[Remedy]:
    """Recommend more machines, with a core for every worker."""
    if loss.cell.engine not in PROCESSES | {"hybrid"} or loss.is_unclear:
        return
    crowding = loss.parts["memory"] + loss.parts["oversubscription"]
    gain = ("at most", _gain_pct(loss, loss.step_ms - loss.ms_of(crowding), cores=loss.cell.size))
    what, note = "Spread the workers over more machines", "if their network costs no more than exchanges do here"
    hosts = "--mpiexec 'mpiexec -hosts a,b'" if loss.cell.engine in ("mpi", "hybrid") else ""
    yield _remedy(_larger(loss, "memory", "oversubscription"), what, gain, hosts, note)


def _fastest(loss: Loss, tried: list[Row]) -> tuple[Row, Interval] | None:
    """Return the fastest of some rows, and its gain in percent over the row to improve, paired by repeats."""
    base, gains = rates(loss.measured, loss.cell), []
    for row in tried:
        if row.repeats:
            faster = ratio(rates(loss.measured, row.cell), base)
            gains.append((row, through(lambda value: (value - 1) * 100, faster)))
    return max(gains, key=lambda gain: gain[1].value, default=None)


def _remedy(cause: Cause, what: str, gain: Interval | tuple[str, float], command: str, note: str = "") -> Remedy:
    """Return what to do and its gain in percent: as measured, or as predicted, "about" or "at most"."""
    if isinstance(gain, Interval):
        # A gain that may be noise counts as none.
        gain_pct = gain.value if gain.is_known and gain.low > 0 else 0.0
        interval = in_brackets(with_coverage(gain, 1, 1))
        brings = f"measured here: {gain_pct:.1f} % more samples/s{interval}"
    else:
        about, gain_pct = gain
        brings = f"{about} {gain_pct:.1f} % more samples/s"
    sentence = f"{what}: {brings}; {note}." if note else f"{what}: {brings}."
    return Remedy(cause=cause, sentence=sentence, gain_pct=gain_pct, command=command)


def _gain_pct(loss: Loss, step_ms: float, work: float = 1.0, cores: int | None = None) -> float:
    """Return the gain in samples/s, in percent, if a step of `work` times the batch takes `step_ms`."""
    return min(_most_pct(loss, cores), (work * loss.step_ms / max(step_ms, 0.01 * loss.step_ms) - 1) * 100)


def _most_pct(loss: Loss, cores: int | None = None) -> float:
    """Return the upper bound of any gain: every worker, or core, as fast as one worker alone."""
    assert loss.row.speed_up
    return (min(loss.cell.size, cores or loss.measured.cores) / loss.row.speed_up.value - 1) * 100


def _larger(loss: Loss, *causes: Cause) -> Cause:
    return max(causes, key=lambda cause: loss.parts.get(cause, -inf))


def _but(loss: Loss, **change: int | str) -> Cell:
    """Return the row's cell with one setting changed."""
    return loss.cell.model_copy(update=change)


@cache
def _can_run(engine: str, text: str) -> bool:
    try:
        check_features(sync.make(text), launch.make(engine).features, engine)
    except UserError:
        return False
    return True


def _worker_options(cell: Cell) -> str:
    """Return the command-line options for the workers of a cell."""
    if cell.role == "baseline":
        return f"--engine {cell.engine} --workers 1"
    return f"--workers {cell.workers}" + (f" --threads {cell.threads}" if cell.threads > 1 else "")
