"""Recommend what would help a row, with the gain in samples/s that its times predict or that the sweep measured."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from math import ceil, inf, sqrt
from statistics import NormalDist
from statistics import median as median_of
from typing import NamedTuple

from manyhands import launch, spec, sync
from manyhands.errors import UserError
from manyhands.measurement.stats import ratio, through
from manyhands.record.labels import with_coverage
from manyhands.record.sweep import Cause, Cell, Fit, Interval, Remedy, Row
from manyhands.record.texts import count, in_brackets
from manyhands.scaling.analysis.losses import Loss, Repeat
from manyhands.scaling.analysis.measured import strategy_of
from manyhands.scaling.analysis.rows import rates
from manyhands.sync.base import check_features

MOST = 3
LEAST_GAIN_PCT = 1.0
"""Remedies that bring less are not shown."""
PERIOD = 8
MEASURED = "measured here"
"""How the gain of a remedy is told that the sweep has tried."""
OVERLAPPING = {"mpi", "torch", "ray"}
"""Engines on which an all-reduce progresses by itself; with threads nobody else is there to do it."""
PROCESSES = {"mpi", "torch", "ray"}
"""Engines whose workers do not share an interpreter."""
WAITING: set[Cause] = {"comm", "wait", "slow-rank", "straggler", "uneven", "others"}
"""Causes that hold time in which a rank had no core, where there are more ranks than cores."""
CROWDED: set[Cause] = {"oversubscription"}
NO_CAUSE: set[Cause] = {"unattributed", "servers"}
"""Parts that no remedy is against."""
BACKWARD = 2 / 3
"""Share of the backward pass in compute: it makes two products for each one of the forward pass."""
SLACK = 0.25
"""How far a predicted saving of time may be off, besides how it differs from repeat to repeat."""
AT_LEAST = 0.5
"""The least share of a saving to count on where ranks compute at the same time afterwards, as they did not before: they
then share the machine."""


def remedies(loss: Loss, rows: list[Row], fits: list[Fit]) -> list[Remedy]:
    """Return the few remedies that bring most, best first; only those against causes that cost something."""
    candidates = [*_fewer_workers(loss, rows, fits), *_processes(loss, rows), *_more_machines(loss)]
    if loss.row.others and loss.row.others.disturbed:  # predictions would blame communication
        # Beside other programs, fewer workers may have been faster for that reason alone.
        crowded = [remedy for remedy in candidates if MEASURED in remedy.sentence or remedy.cause in CROWDED]
        candidates = [*(crowded if loss.row.oversubscribed else []), *_end_others(loss)]
    # Where ranks share cores, the time of exchanges and waiting includes time in which a rank had no core.
    elif not loss.row.oversubscribed:
        candidates += [*_strategies(loss, rows), *_larger_batch(loss, rows), *_even_batch(loss)]
        candidates += [*_slow_rank(loss), *_faster_data(loss)]
    worth = [remedy for remedy in candidates if remedy.gain_pct >= LEAST_GAIN_PCT and _applies(loss, remedy)]
    return sorted(worth, key=lambda remedy: -remedy.gain_pct)[:MOST]


def _applies(loss: Loss, remedy: Remedy) -> bool:
    """Return whether a remedy was measured, or is against something that costs time here."""
    return MEASURED in remedy.sentence or loss.parts.get(remedy.cause, 0.0) >= LEAST_GAIN_PCT


def _end_others(loss: Loss) -> Iterator[Remedy]:
    """Recommend to end the programs that take the run's cores."""
    if "others" in loss.parts:
        gain = _predicted(loss, lambda repeat: repeat.lost_ms.get("others", 0.0), least=AT_LEAST)
        assert loss.row.others
        used = f"{loss.row.others.cores:.1f} of {loss.row.others.of:g} cores on {loss.row.others.host}"
        yield _remedy("others", f"End the other programs, which use {used}", gain, "", "and measure again")


def _slow_rank(loss: Loss) -> Iterator[Remedy]:
    """Recommend to look at the rank that is slow in most repeats."""
    slow = loss.slow_rank
    if slow is None:
        return
    what = f"Find out why rank {slow.rank} on {slow.host} is slow"
    if loss.hosts > 1:
        what += ", or leave that host out"
    gain = _predicted(loss, lambda repeat: repeat.lost_ms.get("slow-rank", 0.0), least=AT_LEAST)
    yield _remedy("slow-rank", what, gain, "", "if it becomes as fast as the others")


def _faster_data(loss: Loss) -> Iterator[Remedy]:
    """Recommend a source of data that gives rows at once, or processes that read samples ahead."""
    gain = _predicted(loss, lambda repeat: repeat.view.data_ms, most_pct=inf)  # one worker alone gains, too
    if by_sample := [repeat.run for repeat in loss.repeats if repeat.run.by_sample]:
        more = max(2, 2 * max(run.data_workers for run in by_sample))
        what, note = f"Let {more} processes of each worker read samples ahead", "if they keep up, on free cores"
        yield _remedy("data", what, gain, f"--data-workers {more}", note)
        return
    what, note = "Keep the data in memory or on a faster disk", "if rows then take no time to gather"
    yield _remedy("data", what, gain, "", note)


def _strategies(loss: Loss, rows: list[Row]) -> Iterator[Remedy]:
    """Recommend other strategies: rarer exchanges, none that wait, overlap with the backward pass, a sharded
    optimiser's step."""
    engine, strategy = loss.cell.engine, strategy_of(loss.cell.sync)
    seldom, servers = f"local-sgd:period={PERIOD}", "async-server"
    note = "not the answer of one worker any more, so look at the accuracy"
    if strategy.exchanges == "step" and _can_run(engine, seldom):
        gain = _predicted(loss, lambda repeat: _seldom_saves_ms(loss, repeat))
        cause = _larger(loss, "comm", "wait", "straggler")
        yield _strategy(loss, rows, seldom, cause, "Exchange only now and then", gain, note)
    fits_cores = loss.cell.size + strategy_of(servers).num_servers() <= loss.measured.cores
    if strategy.lockstep and strategy.exchanges == "step" and fits_cores and _can_run(engine, servers):
        gain = _predicted(loss, lambda repeat: _stragglers_wait_ms(loss, repeat))._replace(about="at most")
        yield _strategy(loss, rows, servers, "straggler", "Let nobody wait: an asynchronous server", gain, note)
    if loss.cell.sync == "allreduce" and engine in OVERLAPPING:
        gain = _predicted(loss, lambda repeat: min(repeat.run.comm_ms, BACKWARD * repeat.run.compute_ms))
        what = "Exchange while the backward pass computes"
        yield _strategy(loss, rows, "overlap", "comm", what, gain._replace(about="at most"))
    if strategy.exact and strategy.updates == "all" and _can_run(engine, "sharded"):
        gain = _predicted(loss, lambda repeat: repeat.view.serial_ms * (1 - 1 / loss.cell.size))
        what, note = "Share out the optimiser's step", "it costs an all-gather of the weights"
        yield _strategy(loss, rows, "sharded", "serial", what, gain._replace(about="at most"), note)


def _seldom_saves_ms(loss: Loss, repeat: Repeat) -> float:
    """Return the time of a step that an exchange every `PERIOD` steps saves.

    Ranks then wait for the sum of several steps. A slow rank is as slow in the sum, long steps of one rank or another
    level out: the largest of n sums of k steps with the deviation σ exceeds their mean by about σ √k times what the
    largest of n normal variables does.
    """
    exchange_ms = (1 - 1 / PERIOD) * repeat.run.comm_ms
    typical, slowest = repeat.run.typical, repeat.run.slowest
    if typical is None or slowest is None:
        return exchange_ms + (1 - 1 / PERIOD) * repeat.run.wait_ms
    n, waited_ms = loss.cell.size, _stragglers_wait_ms(loss, repeat)
    largest = NormalDist().inv_cdf((n - 0.375) / (n + 0.25))
    return exchange_ms + waited_ms - min(waited_ms, largest * (typical.sd_ms + slowest.sd_ms) / 2 / sqrt(PERIOD))


def _stragglers_wait_ms(loss: Loss, repeat: Repeat) -> float:
    """Return the mean time of a step in which ranks wait for long steps of others, not for a rank that is always late.

    Of the time that stragglers cost, this is without the long steps themselves.
    """
    always_ms = sum(repeat.lost_ms.get(cause, 0.0) for cause in ("slow-rank", "uneven"))
    on_average_ms = always_ms * (1 - 1 / loss.cell.size)  # all but the late rank itself wait
    return max(0.0, min(repeat.lost_ms.get("straggler", 0.0), repeat.run.wait_ms - on_average_ms))


def _strategy(loss: Loss, rows: list[Row], text: str, cause: Cause, what: str, gain: "Gain", note: str = "") -> Remedy:
    """Return the remedy of the strategy `text`: as measured, with whatever options, else as predicted."""
    name = spec.parse(text)[0]
    tried = [row for row in rows if spec.parse(row.cell.sync)[0] == name and row.cell == _but(loss, sync=row.cell.sync)]
    if best := _fastest(loss, tried):
        return _remedy(cause, what, best[1], f"--sync {best[0].cell.sync}", note)
    return _remedy(cause, what, gain, f"--sync {text}", note)


def _larger_batch(loss: Loss, rows: list[Row]) -> Iterator[Remedy]:
    """Recommend twice the batch: the costs of a step are then shared by twice the samples."""
    if loss.cell.batch_size == "full" or loss.steps_per_epoch < 2:
        return
    batch = 2 * loss.batch
    best = _fastest(loss, [row for row in rows if row.cell == _but(loss, batch_size=batch)])
    what, note = f"Take twice the batch, {batch:,} samples", "fewer and larger steps, which changes the mathematics"
    # Long steps may come with each step, as those of an interrupted rank, or grow with the rows.
    gain = best[1] if best else _predicted(loss, _fixed_ms, work=2.0, perhaps_ms=_straggler_ms, most_pct=100.0)
    yield _remedy(_larger(loss, "comm", "serial", "data", "small-batch"), what, gain, f"--batch-size {batch}", note)


def _fixed_ms(repeat: Repeat) -> float:
    """Return the time of a step that does not grow with its batch."""
    seen = repeat.view
    alike = seen.compute_ms / max(seen.compute_ms - repeat.lost_ms.get("memory", 0.0), 1e-9)
    return seen.comm_ms + seen.serial_ms + repeat.start_ms * max(1.0, alike)


def _straggler_ms(repeat: Repeat) -> float:
    return max(0.0, repeat.lost_ms.get("straggler", 0.0))


def _even_batch(loss: Loss) -> Iterator[Remedy]:
    """Recommend a batch that divides evenly, so that no worker waits for those with a sample more."""
    n = loss.cell.size
    even = n * ceil(loss.batch / n)
    cause: Cause = "uneven" if "uneven" in loss.parts else "wait"
    if loss.cell.batch_size == "full" or even == loss.batch:
        return
    work = even / loss.batch

    def saved_ms(repeat: Repeat) -> float:
        more_ms = repeat.view.compute_ms * (work - 1)
        waited_ms = repeat.lost_ms.get("uneven", repeat.run.wait_ms)
        return (work - 1) * repeat.run.step_ms - max(0.0, more_ms - waited_ms)

    what = f"Take a batch that divides evenly by {n}, {even:,} samples"
    gain = _predicted(loss, saved_ms, work, least=AT_LEAST)
    yield _remedy(cause, what, gain, f"--batch-size {even}")


def _fewer_workers(loss: Loss, rows: list[Row], fits: list[Fit]) -> Iterator[Remedy]:
    """Recommend the fastest measured number of workers and, for an oversubscribed row, one worker per core."""
    cell, measured = loss.cell, loss.measured
    cause: Cause = "oversubscription" if loss.row.oversubscribed else _larger(loss, *_causes(loss))
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
        yield _remedy(cause, what, _crowd_gain(loss, fitting, fits), options)


def _crowd_gain(loss: Loss, workers: int, fits: list[Fit]) -> "Gain":
    """Predict the gain of a core for each worker: by Amdahl's law where it was fitted, else from the row's times."""
    assert loss.row.speed_up
    curve = (loss.cell.series, loss.alone.cell.batch_size, loss.alone.cell.image_size)
    for fit in fits:
        if fit.law == "amdahl" and fit.describes and (fit.series, fit.batch_size, fit.image_size) == curve:
            serial = fit.parameters["serial"].value
            saved = 1 - loss.row.speed_up.value * (serial + (1 - serial) / workers)
            return _predicted(loss, partial(_share_of_step_ms, saved))
    weak = loss.measured.kind == "weak"
    computing_ms = loss.alone.compute_ms * (1.0 if weak else 1 / workers)
    work = workers / loss.cell.size if weak else 1.0

    def saved_ms(repeat: Repeat) -> float:
        return (work - 1) * repeat.run.step_ms + repeat.run.compute_ms - computing_ms

    return _predicted(loss, saved_ms, work)


def _share_of_step_ms(share: float, repeat: Repeat) -> float:
    return share * repeat.run.step_ms


def _processes(loss: Loss, rows: list[Row]) -> Iterator[Remedy]:
    """Recommend processes instead of threads, which share an interpreter."""
    if loss.cell.engine != "threads":
        return
    what = "Take processes instead of threads"
    tried = [row for engine in sorted(PROCESSES) for row in rows if row.cell == _but(loss, engine=engine)]
    if best := _fastest(loss, tried):
        causes = [cause for cause in _causes(loss) if not loss.row.oversubscribed or cause not in WAITING]
        yield _remedy(_larger(loss, *causes), what, best[1], f"--engine {best[0].cell.engine}")
    elif _can_run("mpi", loss.cell.sync) and not loss.is_unclear:
        gain = _predicted(loss, lambda repeat: repeat.lost_ms["memory"])._replace(about="at most")
        yield _remedy("memory", what, gain, "--engine mpi", "if their exchanges cost no more")


def _more_machines(loss: Loss) -> Iterator[Remedy]:
    """Recommend more machines, with a core for every worker."""
    if loss.cell.engine not in PROCESSES | {"hybrid"} or loss.is_unclear:
        return

    def crowding_ms(repeat: Repeat) -> float:
        return repeat.lost_ms["memory"] + repeat.lost_ms["oversubscription"]

    gain = _predicted(loss, crowding_ms, most_pct=_most_pct(loss, loss.cell.size))._replace(about="at most")
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


class Gain(NamedTuple):
    """A predicted gain in percent of samples/s."""

    about: str
    """How the prediction is meant: "about" or, for an upper bound, "at most"."""
    value: float
    low: float
    high: float


def _remedy(cause: Cause, what: str, gain: Interval | Gain, command: str, note: str = "") -> Remedy:
    """Return what to do and its gain in percent, as measured or as predicted."""
    if isinstance(gain, Interval):
        # A gain that may be noise counts as none.
        gain_pct, span = gain.value if gain.is_known and gain.low > 0 else 0.0, (gain.low, gain.high)
        brings = f"{MEASURED}: {gain_pct:.1f} % more samples/s{in_brackets(with_coverage(gain, 1, 1))}"
    else:
        at_most = gain.about == "at most"
        gain_pct, span = gain.value, (min(0.0, gain.low), gain.value) if at_most else (gain.low, gain.high)
        bounds = f" ({span[0]:.0f} to {span[1]:.0f})" if gain.about == "about" else ""
        brings = f"{gain.about} {gain_pct:.1f} % more samples/s{bounds}"
    sentence = f"{what}: {brings}; {note}." if note else f"{what}: {brings}."
    return Remedy(cause=cause, sentence=sentence, gain_pct=gain_pct, gain_span=span, command=command)


def _predicted(
    loss: Loss,
    saved_ms: Callable[[Repeat], float],
    work: float = 1.0,
    most_pct: float | None = None,
    least: float = 1 - SLACK,
    perhaps_ms: Callable[[Repeat], float] = lambda repeat: 0.0,
) -> Gain:
    """Return the gain in samples/s, in percent, if `work` steps of a repeat become one that takes `saved_ms` less.

    The bounds are those of the repeats, with a saving that is at least the share `least` and at most
    `SLACK` more; half of `perhaps_ms` is counted on, and between nothing and all of it may be saved. Where one worker
    alone would not gain, all workers can at most become as fast as that one: else `most_pct` is the bound.
    """

    def gain_pct(repeat: Repeat, trust: float, chance: float) -> float:
        now_ms = work * repeat.run.step_ms
        saving_ms = trust * (saved_ms(repeat) + chance * perhaps_ms(repeat))
        return min(most, (now_ms / max(now_ms - saving_ms, 0.01 * repeat.run.step_ms) - 1) * 100)

    most = _most_pct(loss) if most_pct is None else most_pct
    trusts = ((least, 0.0), (1.0, 0.5), (1 + SLACK, 1.0))
    low, usual, high = ([gain_pct(repeat, *trust) for repeat in loss.repeats] for trust in trusts)
    return Gain("about", median_of(usual), min([*low, *usual]), max([*usual, *high]))


def _most_pct(loss: Loss, cores: int | None = None) -> float:
    """Return the upper bound of any gain: every worker, or core, as fast as one worker alone."""
    assert loss.row.speed_up
    return (min(loss.cell.size, cores or loss.measured.cores) / loss.row.speed_up.value - 1) * 100


def _causes(loss: Loss) -> list[Cause]:
    """Return the parts that a remedy may be against."""
    return [cause for cause in loss.parts if cause not in NO_CAUSE]


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
