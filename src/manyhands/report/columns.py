"""The columns of a sweep's tables: the papers' own, and what they lacked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from manyhands.record import Row
from manyhands.record.texts import (
    NOTHING,
    cell_name,
    duration,
    duration_with_span,
    figure,
    fixed,
    num_bytes,
    percent,
    plain,
    rate,
    times,
    with_span,
)


@dataclass(frozen=True)
class Column:
    """One column: its heading, what it means, and what stands in it for a row."""

    heading: str
    about: str
    text: Callable[[Row], str]
    shown: Callable[[Sequence[Row]], bool] = lambda rows: True
    """Whether it tells anything in a table of these rows."""
    measured: bool = True
    """Whether it comes from runs, so that there is none where all of them failed."""

    def of(self, row: Row) -> str:
        """Return what stands in this column for a row."""
        return NOTHING if self.measured and not row.repeats else self.text(row)


def marked_name(row: Row) -> str:
    """Name a row; ✗ where all runs failed, ‡ where some did, † where ranks had to share cores."""
    marks = [("✗", row.failed and not row.repeats), ("‡", row.failed and row.repeats), ("†", row.oversubscribed)]
    return " ".join([cell_name(row.cell), *(mark for mark, holds in marks if holds)])


def split_percent(row: Row, part: str) -> float | None:
    """Return the share of a step's time that one of its parts takes; None where a step takes none."""
    whole = row.compute_ms + row.serial_ms + row.comm_ms + row.wait_ms
    return 100 * float(getattr(row, f"{part}_ms")) / whole if whole else None


def _varies(field: str) -> Callable[[Sequence[Row]], bool]:
    return lambda rows: len({getattr(row.cell, field) for row in rows}) > 1


def _share(part: str) -> Callable[[Row], str]:
    return lambda row: percent(split_percent(row, part))


def _speed_up(row: Row) -> str:
    return with_span(times(row.speed_up.value), row.speed_up) if row.speed_up else NOTHING


def _efficiency(row: Row) -> str:
    if row.efficiency is None:
        return NOTHING
    return with_span(percent(100 * row.efficiency.value, 0), row.efficiency, 100, 0)


def _karp_flatt(row: Row) -> str:
    if row.karp_flatt is None or not 0 <= row.karp_flatt.value <= 1:  # records of earlier versions have such
        return NOTHING
    return with_span(percent(100 * row.karp_flatt.value), row.karp_flatt, 100, 1)


def _improvement(row: Row) -> str:
    """Write the time saved; where none was, the speed-up tells how much slower it is."""
    return percent(row.improvement_pct) if (row.improvement_pct or 0.0) >= 0 else NOTHING


def _rate(row: Row) -> str:
    return rate(row.samples_per_s.value if row.samples_per_s else None)


def _batch(row: Row) -> str:
    return "full" if row.cell.batch_size == "full" else f"{row.cell.batch_size:,}"


RUN = Column("run", "Engine × workers, and the strategy where it is not allreduce.", marked_name, measured=False)
WORKERS = Column(
    "workers", "Workers that shared the work.", lambda r: f"{r.cell.size:,}", _varies("size"), measured=False
)
BATCH = Column("batch", "Samples of a step, over all workers.", _batch, _varies("batch_size"), measured=False)
IMAGE = Column(
    "image",
    "Side of the images.",
    lambda r: f"{r.cell.image_size}²" if r.cell.image_size else "as is",
    _varies("image_size"),
    measured=False,
)
DATA = Column(
    "data", "How often the data was repeated.", lambda r: f"×{r.cell.replicate}", _varies("replicate"), measured=False
)
REPEATS = Column("repeats", "Runs that went well; figures are their medians.", lambda r: f"{r.repeats}", measured=False)
READ = Column("read", "Time to read the data.", lambda r: duration(r.read_s))
STEP = Column(
    "time per batch",
    "Time of a step once the run had warmed up, with its interval.",
    lambda r: duration_with_span(r.step_ms),
)
EPOCH = Column("per epoch", "Time of a pass over the data.", lambda r: duration(r.epoch_s))
TOTAL = Column("total", "Time of the whole run, reading and testing included.", lambda r: duration(r.total_s))
RATE = Column("samples/s", "Samples that the workers get through in a second, together.", _rate)
SPEED_UP = Column(
    "speed-up",
    "How many times as fast as one worker, with its interval.",
    _speed_up,
)
EFFICIENCY = Column("efficiency", "Speed-up as a share of the number of workers, with its interval.", _efficiency)
IMPROVEMENT = Column(
    "PI",
    "Performance improvement: time saved as a share of one worker's, (T1 − Tn) / T1; none where nothing was saved.",
    _improvement,
)
KARP_FLATT = Column(
    "Karp–Flatt",
    "Share of the work that would have to be serial to explain the speed-up of a strong sweep, with its interval.",
    _karp_flatt,
    lambda rows: any(_karp_flatt(row) != NOTHING for row in rows),
)
COMPUTE = Column("compute", "Forward and backward pass, which the workers share out.", _share("compute"))
SERIAL = Column("serial", "What every worker repeats: the optimiser's step and the loop around it.", _share("serial"))
COMM = Column("comm", "What the exchanges themselves took.", _share("comm"))
WAIT = Column("wait", "Waiting for the slowest worker.", _share("wait"))
SENT = Column("sent/step", "Bytes that leave the ranks in a step, summed.", lambda r: num_bytes(r.bytes_per_step))
MESSAGES = Column(
    "messages/step", "Calls that exchange something in a step, summed.", lambda r: plain(r.messages_per_step)
)
MEMORY = Column("memory/rank", "Memory of the rank that took the most.", lambda r: num_bytes(r.max_rss_bytes))
ENERGY = Column(
    "energy",
    "What the machine used during a run, as its counters tell.",
    lambda r: NOTHING if r.energy_j is None else f"{figure(r.energy_j)} J",
    lambda rows: any(row.energy_j is not None for row in rows),
)
TRAIN_LOSS = Column("train loss", "Mean loss over the last epoch of training.", lambda r: fixed(r.train_loss, 4))
TEST_LOSS = Column("test loss", "Loss on data that was not trained on.", lambda r: fixed(r.test_loss, 4))
ACCURACY = Column(
    "accuracy", "Share of the test data that is guessed right.", lambda r: percent(100 * r.test_accuracy, 2)
)

WHO = (RUN, BATCH, IMAGE, DATA)
"""What tells the rows apart."""

SPEED = (*WHO, RATE, SPEED_UP, EFFICIENCY, IMPROVEMENT, ACCURACY)
"""How fast, in a narrow table."""

SPLIT = (*WHO, STEP, COMPUTE, SERIAL, COMM, WAIT, SENT)
"""Where a step's time goes, in a narrow table."""

EVERYTHING = (
    *(RUN, WORKERS, BATCH, IMAGE, DATA, REPEATS),
    *(READ, STEP, EPOCH, TOTAL, RATE, SPEED_UP, EFFICIENCY, IMPROVEMENT, TRAIN_LOSS, TEST_LOSS, ACCURACY),
    *(COMPUTE, SERIAL, COMM, WAIT, SENT, MESSAGES, KARP_FLATT, MEMORY, ENERGY),
)
"""All columns: the papers' own first."""
