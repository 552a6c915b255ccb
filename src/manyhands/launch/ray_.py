"""Engine `ray`: a head that hands out work to the processes of a Ray cluster (the papers' OmpCluster row).

Ray places the ranks, one actor each, and tells when one has died; their tensors travel between them directly, as
those of engine torch do. A rank reserves a core, or its share of a GPU, if the cluster has enough of them free;
otherwise the ranks share those that are free, instead of waiting for each other.
"""

import json
import math
import os
import re
import sys
import threading
import time
from typing import Any, final

from manyhands.comm.torch_ import PeerLost, TorchComm
from manyhands.config import RunConfig
from manyhands.errors import ManyhandsError, RankFailed, check
from manyhands.launch.base import Launcher, Observer, Worker, check_one_thread
from manyhands.launch.environment import check_alone
from manyhands.launch.mailbox import LiveFolder, Tail, failure_of, live_folder, read_failures, read_status, show_pulses
from manyhands.launch.on_ray.actor import FAILURE, RankActor
from manyhands.launch.on_ray.cluster import check_ray, cluster, forgiving_ray, line_of
from manyhands.launch.processes import check_importable
from manyhands.launch.signals.interrupt import stop_on_signal, tell
from manyhands.launch.signals.waiting import StopMonitor
from manyhands.launch.supervisor import FAILURE_GRACE_S, POLL_S, by_blame, stop_monitor
from manyhands.sync.base import num_ranks
from manyhands.training.job import Job

START_S = 120.0
"""How long the cluster may take to place the ranks."""

_SIGNAL = re.compile(r"\*\*\* (SIG\w+) received")
_DETAIL = re.compile(r"Worker exit detail: (.*)", re.DOTALL)
GONE = "its process is gone: killed by signal 9 (SIGKILL: kill -9, or out of memory), or ended by itself"


@final
class RayLauncher(Launcher):
    """`--workers` actors of a Ray cluster, or of a Ray started for the run."""

    features = TorchComm.features

    def check(self, config: RunConfig) -> None:
        check_alone(config.engine)
        check_one_thread(config)
        check_importable(config)
        check_ray(config)

    def launch(self, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
        size = num_ranks(job.config)
        with live_folder(job, worker) as folder, stop_on_signal() as stop, cluster(job.config, size) as ray:
            ranks = _RayRanks(ray, job.config, folder, size)
            try:
                return ranks.work(observe, stop, stop_monitor(folder, job, stop))
            finally:
                ranks.kill()


@final
class _RayRanks:
    """The actors of one run."""

    def __init__(self, ray: Any, config: RunConfig, folder: LiveFolder, size: int) -> None:
        self._ray, self._folder = ray, folder
        shares = _shares(ray, config, size)
        actor = ray.remote(RankActor).options(max_restarts=0, scheduling_strategy="SPREAD", **shares)
        self._actors = [actor.remote() for _ in range(size)]
        self._pending: dict[Any, int] = {}
        """The ranks that have not ended, by the references to their results."""
        self._pulses = Tail(folder.pulses)
        self._outputs = [Tail(folder.output(rank)) for rank in range(size)]
        self._crashes: dict[int, str] = {}
        """The signals that ranks printed when they crashed."""
        self._returned_failures: list[ManyhandsError] = []

    def work(self, observe: Observer, stop: threading.Event, monitor: StopMonitor) -> list[dict[str, Any]]:
        """Run the job's worker on every actor; return the results in rank order, or raise the first failure."""
        order = {
            "size": len(self._actors),
            "address": self._place(),
            "job": str(self._folder.job.resolve()),
            "folder": os.getcwd(),
            "path": [p or os.getcwd() for p in sys.path],
        }
        self._pending = {
            actor.run.remote(json.dumps({**order, "rank": rank})): rank for rank, actor in enumerate(self._actors)
        }
        results: dict[int, dict[str, Any]] = {}
        fail_by = math.inf
        while self._pending:
            results.update(self._new_results())
            self._show(observe)
            # A rank that cannot write into the live folder, where the disk is full, only returns its failure.
            if failures := by_blame([*read_failures(self._folder), *self._returned_failures]):
                fail_by = min(fail_by, time.monotonic() + FAILURE_GRACE_S)
                # Ranks that only lost another wait for the report of that one.
                if not (self._pending and isinstance(failures[0], PeerLost)) or time.monotonic() > fail_by:
                    raise failures[0]
            if stop.is_set():
                self._folder.ask_to_stop()
            monitor.look_or_give_up()
        return [results[rank] for rank in range(len(self._actors))]

    def kill(self) -> None:
        """Kill every actor, and wait until they are gone; if Ray itself is gone, they are too."""
        with forgiving_ray():
            for actor in self._actors:
                self._ray.kill(actor)
            if self._pending:
                self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=FAILURE_GRACE_S)

    def _place(self) -> str:
        """Wait until Ray has placed every actor; return the address of rank 0, where they meet."""
        live = str(self._folder.path.resolve())
        refs = [actor.place.remote(live) for actor in self._actors]
        _, missing = self._ray.wait(refs, num_returns=len(refs), timeout=START_S)
        check(
            not missing,
            f"Ray has not found a place for {len(missing)} of {len(refs)} ranks within {START_S:.0f} s; "
            "'ray status' tells what the cluster is busy with",
        )
        try:
            places = [json.loads(text) for text in self._ray.get(refs)]
        except self._ray.exceptions.RayError as error:
            raise ManyhandsError(f"Ray could not start a rank: {line_of(error, -1)}") from error
        for place in places:
            check(
                place["sees_folder"],
                f"the run's folder '{live}' is not on {place['host']}: "
                "all machines of the cluster must share it; choose another --out",
            )
        return str(places[0]["address"])

    def _new_results(self) -> dict[int, dict[str, Any]]:
        """Wait a moment; return the results of ranks that have ended meanwhile, or raise if one has died."""
        done, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=POLL_S)
        results: dict[int, dict[str, Any]] = {}
        for ref in done:
            rank = self._pending.pop(ref)
            try:
                result = json.loads(self._ray.get(ref))
            except self._ray.exceptions.RayError as error:
                if not self._folder.result(rank).is_file():
                    raise self._death(rank, error) from error
                result = json.loads(self._folder.result(rank).read_text())  # Ray was lost on the way back
            if result.keys() == {FAILURE}:
                self._returned_failures.append(failure_of(result[FAILURE]))
            else:
                results[rank] = result
        return results

    def _death(self, rank: int, error: Exception) -> ManyhandsError:
        self._show(lambda pulse: None)
        status = read_status(self._folder, rank)
        if status is None:
            return ManyhandsError(f"Ray could not start rank {rank}: {line_of(error, -1)}")
        cause = _cause(str(error), self._crashes.get(rank, ""))
        return RankFailed(rank=rank, host=status.host, step=status.step, cause=cause)

    def _show(self, observe: Observer) -> None:
        """Forward the ranks' new pulses to `observe`, and their new output to stderr."""
        show_pulses(self._pulses, observe)
        for rank, output in enumerate(self._outputs):
            for line in output.lines():
                if crash := _SIGNAL.search(line):
                    self._crashes[rank] = crash[1]
                tell(line)


def _shares(ray: Any, config: RunConfig, size: int) -> dict[str, float]:
    """Return what each rank reserves, together no more than is free, or the ranks would wait for each other for ever.

    The cluster's GPUs count, not those of this machine, which may have none.
    """
    free = ray.available_resources()
    shares = {"num_cpus": 1.0 if free.get("CPU", 0) >= size else 0.0}
    gpus, all_gpus = int(free.get("GPU", 0)), int(ray.cluster_resources().get("GPU", 0))
    why = f"all {all_gpus} GPUs of the Ray cluster are in use" if all_gpus else "the Ray cluster has no GPU"
    check(gpus > 0 or config.device != "cuda", f"--device cuda, but {why}; use --device cpu or auto")
    if gpus and config.device != "cpu":
        shares["num_gpus"] = 1 / math.ceil(size / gpus)
    return shares


def _cause(error: str, crash: str) -> str:
    """Return why a process died, as far as Ray knows: of one that was killed it only knows that it is gone."""
    if crash:
        return f"killed by {crash}"
    detail = _DETAIL.search(error)
    return GONE if detail is None or "connection error code" in detail[1] else " ".join(detail[1].split())
