"""The record of a piece of advice: its rows, the commands to type, and what it is based on."""

import shlex
import time
from collections.abc import Iterator, Sequence
from typing import Literal

from manyhands.advice.rank import Book, Way, affordable, pick, sure, ways
from manyhands.advice.reasons import explain, next_bottleneck
from manyhands.advice.request import CheckedAdvice
from manyhands.advice.search import SERIAL, Candidate, quotient
from manyhands.advice.train import Recipe
from manyhands.calibration.busy import say_if_busy
from manyhands.errors import UserError
from manyhands.machine import facts
from manyhands.record.advice import AdvicePoint, AdviceRecord, AdviceRow
from manyhands.record.simulation import Estimate
from manyhands.record.texts import count, figure


def make_record(
    asked: CheckedAdvice,
    book: Book,
    found: Sequence[Candidate],
    status: Literal["complete", "interrupted"],
    folder: str,
    *,
    rows_meet: bool,
) -> AdviceRecord:
    """Write down the best ways, why they are, all that was looked at, and what it is based on."""
    known, cluster, critical = asked.predictor.calibration, asked.cluster, book.law.critical
    every = sure(ways(found, book, cluster))
    alone = next(way for way in every if _is_alone(way, asked.batch_size))
    best = pick(affordable(every, asked.max_cost))
    _check_any(best, every, asked)
    rows = [_row(way, alone, book, asked) for way in affordable(every, asked.max_cost)]
    single = _row(alone, alone, book, asked)
    named = [_row(way, alone, book, asked) for way in best]
    named = [row.model_copy(update={"reasons": explain(row, single, rows, asked.limit)}) for row in named]
    return AdviceRecord(
        id=folder,
        status=status,
        task=asked.predictor.task,
        command=asked.command,
        made=time.strftime("%Y-%m-%d %H:%M:%S"),
        wall_s=time.perf_counter() - asked.begun_s,
        target_accuracy=asked.target,
        cluster=asked.cluster_name,
        currency=cluster.currency if cluster and cluster.price_per_hour else "",
        max_cost=asked.max_cost,
        considered=len(found),
        looked_at=[_point(way, alone) for way in every],
        alone=single,
        best=named,
        critical_batch=critical.rows,
        critical_low=critical.low,
        critical_high=critical.high,
        noise=critical.sentence,
        next=next_bottleneck(named, critical.rows if critical.rows is not None else critical.low),
        doubts=list(_doubts(book, asked)),
        measured=_measured(book),
        assumed=_assumed(named, asked, rows_meet=rows_meet),
        trainings=book.trainings,
        machine=known.machine,
        calibrated=known.made,
        versions=facts.versions(),
    )


def _is_alone(way: Way, batch_size: int) -> bool:
    return way.candidate.engine == SERIAL and way.candidate.batch_size == batch_size


def _check_any(best: Sequence[Way], every: Sequence[Way], asked: CheckedAdvice) -> None:
    if best:
        return
    cheapest = min(every, key=lambda way: (way.cost.value if way.cost else 0.0, way.order))
    cost, currency = cheapest.cost.value if cheapest.cost else 0.0, asked.cluster.currency if asked.cluster else ""
    raise UserError(
        f"nothing reaches {100 * asked.target:g} % for {asked.max_cost:g} {currency}; the cheapest takes "
        f"{count(cheapest.candidate.workers, 'worker')} and costs {figure(cost)} {currency}"
    )


def _row(way: Way, alone: Way, book: Book, asked: CheckedAdvice) -> AdviceRow:
    one, split, recipe = way.candidate, way.candidate.found.split, way.recipe
    speed_up = quotient(alone.time_s, way.time_s) if way is not alone else Estimate(value=1, low=1, high=1)
    samples = way.steps.value * one.batch_size / (alone.steps.value * alone.candidate.batch_size)
    return AdviceRow(
        engine=one.engine,
        sync=one.sync,
        workers=one.workers,
        servers=one.found.servers,
        nodes=one.found.point.nodes,
        batch_size=one.batch_size,
        lr=recipe.lr,
        warmup=recipe.warmup,
        steps=way.steps,
        steps_from="training" if way.trained else "noise scale",
        samples_factor=samples,
        step_ms=one.step_s.scaled(1e3),
        compute_ms=1e3 * split.compute_s,
        serial_ms=1e3 * split.serial_s,
        comm_ms=1e3 * split.comm_s,
        wait_ms=1e3 * split.wait_s,
        time_s=way.time_s,
        speed_up=speed_up,
        efficiency=speed_up.scaled(1 / one.workers),
        cost=way.cost,
        command=_command(one, recipe, book, asked),
    )


def _point(way: Way, alone: Way) -> AdvicePoint:
    one, time_s = way.candidate, way.time_s.value
    return AdvicePoint(
        engine=one.engine,
        sync=one.sync,
        workers=one.workers,
        batch_size=one.batch_size,
        steps=way.steps.value,
        step_ms=1e3 * one.step_s.value,
        time_s=time_s,
        efficiency=alone.time_s.value / time_s / one.workers,
        cost=way.cost.value if way.cost else None,
        trained=way.trained,
    )


def _command(one: Candidate, recipe: Recipe, book: Book, asked: CheckedAdvice) -> str:
    """Write what to type: as it was trained and calibrated, for as many steps as it takes."""
    words = ["manyhands", "train", asked.task, "--engine", one.engine]
    if one.workers > 1:
        words += ["--workers", f"{one.workers}", "--sync", one.sync]
    if one.batch_size != asked.batch_size:
        words += ["--batch-size", f"{one.batch_size}", "--lr", f"{recipe.lr:g}"]
    if recipe.warmup:
        words += ["--warmup", f"{recipe.warmup:g}"]
    words += ["--steps", f"{book.sure_steps(recipe)}", "--blas-threads", "1"]
    return shlex.join(words)


def _doubts(book: Book, asked: CheckedAdvice) -> Iterator[str]:
    """Say what all is built on that is not sure: the calibration, and that one worker alone gets there."""
    busy = list[str]()
    say_if_busy(asked.predictor.calibration, busy.append)
    yield from busy
    own = book.recipe("allreduce", 1, asked.batch_size)
    alike = [each for each in book.trainings if (each.workers, each.batch_size) == (own.workers, own.batch_size)]
    for each in alike:
        if each.steps is None:
            yield (
                f"one worker with the task's own settings did not get there with seed {each.seed}: it reached "
                f"{100 * each.accuracy:.1f} % in {figure(each.epochs)} epochs; a run that you start may not either"
            )


def _measured(book: Book) -> list[str]:
    said = []
    for key in dict.fromkeys((each.sync, each.workers, each.batch_size) for each in book.trainings):
        alike = [each for each in book.trainings if (each.sync, each.workers, each.batch_size) == key]
        spec, workers, size = key
        who = "one worker" if workers == 1 else f"{workers:,} workers with {spec}"
        steps = ", ".join(f"{each.steps:,}" if each.steps else f"not in {each.made:,}" for each in alike)
        told = "" if size == book.law.batch_size else f"; the noise scale told {figure(book.law.steps(size).value)}"
        said.append(
            f"trained as {who}, batch {size:,}, learning rate {alike[0].lr:g}: {steps} steps "
            f"({count(len(alike), 'seed')}){told}"
        )
    return said


def _assumed(named: Sequence[AdviceRow], asked: CheckedAdvice, *, rows_meet: bool) -> list[str]:
    said = [
        "the times are of training alone: to start, read data and test comes on top",
        "a command has as many steps as the seed that took longest; the times are of the mean over the seeds",
    ]
    if any(row.steps_from == "noise scale" for row in named):
        said.append("there was no time to train all of these: the steps of some are told by the noise scale alone")
    if rows_meet:
        said.append("n workers need the steps of one, although this network mixes the rows of a batch")
    if asked.cluster is not None:
        said.append(
            f"a core of the cluster is {figure(asked.cluster.core_speed)} times as fast as one of this calibration"
        )
        said.append("mpiexec knows the nodes; if not, add --mpiexec 'mpiexec -hosts a,b'")
    return said
