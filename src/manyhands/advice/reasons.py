"""Why one way to an accuracy is better than others, in plain words."""

from collections.abc import Iterator, Sequence

from manyhands.record.advice import AdviceRow
from manyhands.record.texts import count, duration, figure, workers_name

PARTS = {
    "compute_ms": ("computing", "faster cores would help most"),
    "serial_ms": (
        "what every worker repeats (the optimiser's step and the loop)",
        "a larger batch, whose steps are fewer, would help most",
    ),
    "comm_ms": ("communication and waiting", "a faster network, and cores that are alike, would help most"),
}
"""Where a step's time goes, and what would make it less."""


def name_of(row: AdviceRow) -> str:
    """Say a way in short: `mpi ×4 allreduce, batch 256`."""
    sync = "" if row.workers == 1 else f" {row.sync}"
    return f"{workers_name(row.engine, row.workers)}{sync}, batch {row.batch_size:,}"


def explain(row: AdviceRow, alone: AdviceRow, rows: Sequence[AdviceRow], limit: str) -> list[str]:
    """Say why this is a good way, and what speaks against more workers and a larger batch; `limit` bounds the workers.

    `rows` are all ways that come into question, the soonest first.
    """
    return [*_workers(row, rows, limit), *_batch(row, alone, rows)]


def _workers(row: AdviceRow, rows: Sequence[AdviceRow], limit: str) -> Iterator[str]:
    if row.workers > 1:
        single = next((each for each in rows if each.workers == 1 and each.batch_size == row.batch_size), None)
        against = f" instead of the {_ms(single)} of one" if single else ""
        yield (
            f"{row.workers:,} workers take {_ms(row)} for a step{against}; "
            f"{_exchange(row)} of that is communication and waiting."
        )
    more = next((each for each in rows if each.workers > row.workers), None)
    if more is None:
        yield f"It uses as many workers as there may be: {limit}."
    elif more.time_s.value > row.time_s.value:
        yield (
            f"{more.workers:,} workers would at best take {duration(more.time_s.value)} ({name_of(more)}): "
            f"communication and waiting would be {_exchange(more)} of a step."
        )


def _batch(row: AdviceRow, alone: AdviceRow, rows: Sequence[AdviceRow]) -> Iterator[str]:
    if row.batch_size != alone.batch_size:
        yield (
            f"A batch of {row.batch_size:,} takes {figure(row.steps.value)} steps where {alone.batch_size:,} takes "
            f"{figure(alone.steps.value)}, for {figure(row.samples_factor)} times as many samples."
        )
    alike = [each for each in rows if (each.engine, each.sync, each.workers) == (row.engine, row.sync, row.workers)]
    larger = min(
        (each for each in alike if each.batch_size > row.batch_size), key=lambda each: each.batch_size, default=None
    )
    if larger is not None:
        yield (
            f"A batch of {larger.batch_size:,} would take {duration(larger.time_s.value)}, "
            f"for {figure(larger.samples_factor / row.samples_factor)} times as many samples as this one."
        )


def next_bottleneck(best: Sequence[AdviceRow], critical: float) -> list[str]:
    """Say what keeps the best from being better, and whether it is the best for sure."""
    first = best[0]
    spent = {"compute_ms": first.compute_ms, "serial_ms": first.serial_ms, "comm_ms": first.comm_ms + first.wait_ms}
    part = max(spent, key=lambda name: spent[name])
    share = 100 * spent[part] / first.step_ms.value
    said = [f"The best spends {share:.0f} % of a step on {PARTS[part][0]}: {PARTS[part][1]}."]
    if 2 * first.batch_size > critical:
        said.append(
            f"Its batch is near the critical {figure(critical)}: a larger one would waste more samples than it saves "
            f"steps, so that many more workers would not help."
        )
    close = [each for each in best[1:] if each.time_s.low < first.time_s.high]
    if close:
        others = f"{_ordinal(best, close[0])} is" if len(close) == 1 else f"the other {count(len(close), 'way')} are"
        said.append(f"Within the intervals, {others} as good.")
    if first.workers > 1 and first.speed_up.low < 1:
        said.append("One worker may be as soon there: the interval of the best's speed-up begins below 1.")
    return said


def _ms(row: AdviceRow) -> str:
    return duration(row.step_ms.value / 1e3)


def _exchange(row: AdviceRow) -> str:
    return f"{100 * row.exchange:.0f} %"


def _ordinal(best: Sequence[AdviceRow], row: AdviceRow) -> str:
    return ("the first", "the second", "the third")[[each is row for each in best].index(True)]
