"""The record of a piece of advice: its rows, the commands to type, and what it is based on."""

import shlex
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Literal

from manyhands.advice.reasons import explain, next_bottleneck
from manyhands.advice.request import CheckedAdvice
from manyhands.advice.search import SERIAL, Book, Candidate, Way, affordable, pick, quotient, sure, ways
from manyhands.calibration.busy import say_if_busy
from manyhands.errors import UserError
from manyhands.machine import facts
from manyhands.record.advice import AdvicePoint, AdviceRecord, AdviceRow
from manyhands.record.simulation import Estimate
from manyhands.record.texts import count, figure
from manyhands.simulation.devices import by_formula


def make_record(
    checked: CheckedAdvice,
    book: Book,
    considered: Sequence[Candidate],
    status: Literal["complete", "interrupted"],
    folder: str,
    *,
    rows_meet: bool,
) -> AdviceRecord:
    """Return the best ways with their reasons, all candidates, and what the advice is based on."""
    request, cluster, noise = checked.request, checked.cluster, book.law.noise
    known = checked.predictor.calibration
    ranked = sure(ways(considered, book, cluster))
    within = affordable(ranked, request.max_cost)
    if not within:
        raise UserError(_nothing_affordable(ranked, checked))
    by_itself = [way for way in ranked if way.engine == SERIAL]
    alone = next(way for way in by_itself if way.predicted.point.batch_size == checked.batch_size)
    rows = {way: _row(way, alone, book, checked) for way in ranked}
    best = []
    for way in pick(within):
        reasons = explain(rows[way], rows[alone], [rows[other] for other in within], checked.limit)
        best.append(rows[way].model_copy(update={"reasons": list(reasons)}))
    return AdviceRecord(
        id=folder,
        status=status,
        task=checked.predictor.task,
        command=request.command,
        made=time.strftime("%Y-%m-%d %H:%M:%S"),
        wall_s=time.perf_counter() - checked.begun_s,
        target_accuracy=request.target_accuracy,
        cluster=checked.cluster_name,
        currency=cluster.currency if cluster and cluster.price_per_hour else "",
        max_cost=request.max_cost,
        considered=len(considered),
        looked_at=list(map(_point, rows.values())),
        alone=rows[alone],
        best=best,
        critical_batch=noise.scale,
        critical_low=noise.low,
        critical_high=noise.high,
        noise=noise.sentence,
        next=next_bottleneck(best, noise.critical_batch),
        doubts=list(_doubts(book, checked)),
        measured=_measured(book),
        assumed=list(_assumed(best, checked, rows_meet=rows_meet)),
        trainings=book.trainings,
        machine=known.machine,
        calibrated=known.made,
        circumstances=checked.circumstances,
        versions=facts.versions(),
    )


def _nothing_affordable(ranked: Sequence[Way], checked: CheckedAdvice) -> str:
    request, currency = checked.request, checked.cluster.currency if checked.cluster else ""
    cost, workers = min((way.cost.value, way.predicted.point.workers) for way in ranked if way.cost)
    return (
        f"nothing reaches {100 * request.target_accuracy:g} % for {request.max_cost:g} {currency}; the cheapest takes "
        f"{count(workers, 'worker')} and costs {figure(cost)} {currency}"
    )


def _row(way: Way, alone: Way, book: Book, checked: CheckedAdvice) -> AdviceRow:
    point, split = way.predicted.point, way.predicted.split
    speed_up = quotient(alone.time_s, way.time_s) if way is not alone else Estimate(value=1, low=1, high=1)
    samples = way.steps.value * point.batch_size / (alone.steps.value * alone.predicted.point.batch_size)
    return AdviceRow(
        engine=way.engine,
        sync=way.predicted.sync,
        workers=point.workers,
        servers=way.predicted.servers,
        nodes=point.nodes,
        batch_size=point.batch_size,
        lr=way.recipe.lr,
        warmup=way.recipe.warmup,
        steps=way.steps,
        steps_from="training" if way.trained else "noise scale",
        samples_factor=samples,
        step_ms=way.step_s.scaled(1e3),
        compute_ms=1e3 * split.compute_s,
        serial_ms=1e3 * split.serial_s,
        comm_ms=1e3 * split.comm_s,
        wait_ms=1e3 * split.wait_s,
        time_s=way.time_s,
        speed_up=speed_up,
        efficiency=speed_up.scaled(1 / (point.workers + way.predicted.servers)),
        cost=way.cost,
        command=_command(way, book, checked),
    )


def _point(row: AdviceRow) -> AdvicePoint:
    """Return a row in short and without intervals."""
    values = {name: getattr(row, name).value for name in ("steps", "step_ms", "time_s", "efficiency")}
    names = {name: getattr(row, name) for name in ("engine", "sync", "workers", "batch_size")}
    return AdvicePoint(
        **names, **values, cost=row.cost.value if row.cost else None, trained=row.steps_from == "training"
    )


def _command(way: Way, book: Book, checked: CheckedAdvice) -> str:
    """Return the command line of a run with the settings of the training and the calibration."""
    point, recipe = way.predicted.point, way.recipe
    words = ["manyhands", "train", checked.request.task, "--engine", way.engine]
    if point.workers > 1:
        words += ["--workers", f"{point.workers}", "--sync", way.predicted.sync]
    if point.batch_size != checked.batch_size:
        words += ["--batch-size", f"{point.batch_size}", "--lr", f"{recipe.lr:g}"]
    if recipe.warmup:
        words += ["--warmup", f"{recipe.warmup:g}"]
    words += ["--steps", f"{book.sure_steps(recipe)}"]
    device = checked.predictor.calibration.device
    return shlex.join([*words, *(["--blas-threads", "1"] if device == "cpu" else ["--device", device])])


def _doubts(book: Book, checked: CheckedAdvice) -> Iterator[str]:
    """Yield what makes the advice less sure: a busy machine during the calibration, seeds that failed."""
    busy = list[str]()
    say_if_busy(checked.predictor.calibration, busy.append)
    yield from busy
    for training in book.trainings:
        if training.steps is None and (training.workers, training.batch_size) == (1, checked.batch_size):
            yield (
                f"one worker with the task's own settings did not get there with seed {training.seed}: it reached "
                f"{100 * training.accuracy:.1f} % in {figure(training.epochs)} epochs; a run that you start may not "
                "either"
            )


def _measured(book: Book) -> list[str]:
    """Return a sentence for each recipe that was trained."""
    said = []
    for key, group in groupby(book.trainings, lambda training: (training.sync, training.workers, training.batch_size)):
        spec, workers, size = key
        alike = list(group)
        who = "one worker" if workers == 1 else f"{workers:,} workers with {spec}"
        steps = ", ".join(f"{t.steps:,}" if t.steps else f"not in {t.made:,}" for t in alike)
        law = book.law
        told = "" if size == law.batch_size else f"; the noise scale told {figure(law.steps(size).value)}"
        said.append(
            f"trained as {who}, batch {size:,}, learning rate {alike[0].lr:g}: {steps} steps "
            f"({count(len(alike), 'seed')}){told}"
        )
    return said


def _assumed(best: Sequence[AdviceRow], checked: CheckedAdvice, *, rows_meet: bool) -> Iterator[str]:
    """Yield the assumptions behind the advice."""
    yield "the times are of training alone: to start, read data and test comes on top"
    yield "a command has as many steps as the seed that took longest; the times are of the mean over the seeds"
    if any(row.steps_from == "noise scale" for row in best):
        yield "there was no time to train all of these: the steps of some are told by the noise scale alone"
    if rows_meet:
        yield "n workers need the steps of one, although this network mixes the rows of a batch"
    known, on_cpu = checked.predictor.calibration, checked.predictor.calibration.device == "cpu"
    if checked.cluster is not None:
        speed, kind = figure(checked.cluster.core_speed), "core" if on_cpu else "GPU"
        yield f"a {kind} of the cluster is {speed} times as fast as one of this calibration"
        yield (
            "mpiexec knows the nodes; if not, add --mpiexec 'mpiexec -hosts a,b'"
            if on_cpu
            else "torchrun starts the ranks where there are several nodes: torchrun … -m manyhands train …"
        )
    elif formula := by_formula(known, checked.predictor.engine):
        yield formula
