"""Why one way to an accuracy is better than others, in plain words."""

from collections.abc import Iterator, Sequence

from manyhands.record.advice import AdviceRow
from manyhands.record.texts import count, duration, figure, workers_name

PARTS = {
    "compute_ms": ("computing", "faster processors would help most"),
    "serial_ms": (
        "what every worker repeats (the optimiser's step and the loop)",
        "a larger batch, whose steps are fewer, would help most",
    ),
    "comm_ms": ("communication and waiting", "a faster network, and processors that are alike, would help most"),
}
"""Parts of a step's time, and what would shorten each."""


def explain(row: AdviceRow, alone: AdviceRow, rows: Sequence[AdviceRow], limit: str) -> Iterator[str]:
    """Yield sentences that compare a row with more workers and with a larger batch.

    `rows` are all ways that come into question, the soonest first; `limit` says what bounds the workers.
    """
    if row.workers > 1:
        single = next((other for other in rows if other.workers == 1 and other.batch_size == row.batch_size), None)
        against = f" instead of the {duration(single.step_ms.value / 1e3)} of one" if single else ""
        yield (
            f"{row.workers:,} workers take {duration(row.step_ms.value / 1e3)} for a step{against}; "
            f"{100 * row.exchange:.0f} % of that is communication and waiting."
        )
    more = next((other for other in rows if other.workers > row.workers), None)
    if more is None:
        yield f"It uses as many workers as there may be: {limit}."
    elif more.time_s.value > row.time_s.value:
        name = f"{workers_name(more.engine, more.workers)} {more.sync}, batch {more.batch_size:,}"
        yield (
            f"{more.workers:,} workers would at best take {duration(more.time_s.value)} ({name}): "
            f"communication and waiting would be {100 * more.exchange:.0f} % of a step."
        )
    if row.batch_size != alone.batch_size:
        yield (
            f"A batch of {row.batch_size:,} takes {figure(row.steps.value)} steps where {alone.batch_size:,} takes "
            f"{figure(alone.steps.value)}, for {figure(row.samples_factor)} times as many samples."
        )
    setting = (row.engine, row.sync, row.workers)
    alike = [other for other in rows if (other.engine, other.sync, other.workers) == setting]
    larger = [other for other in alike if other.batch_size > row.batch_size]
    if larger:
        closest = min(larger, key=lambda other: other.batch_size)
        yield (
            f"A batch of {closest.batch_size:,} would take {duration(closest.time_s.value)}, "
            f"for {figure(closest.samples_factor / row.samples_factor)} times as many samples as this one."
        )


def next_bottleneck(best: Sequence[AdviceRow], critical: float) -> list[str]:
    """Return sentences on what keeps the best row from being faster, and whether it is the best for sure."""
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
    close = [place for place, row in enumerate(best) if place and row.time_s.low < first.time_s.high]
    if close:
        single, others = f"the {('second', 'third')[close[0] - 1]} is", f"the other {count(len(close), 'way')} are"
        said.append(f"Within the intervals, {single if len(close) == 1 else others} as good.")
    if first.workers > 1 and first.speed_up.low < 1:
        said.append("One worker may be as soon there: the interval of the best's speed-up begins below 1.")
    return said
