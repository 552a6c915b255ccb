"""Engine `ray`: a head that hands out work to the processes of a Ray cluster (the papers' OmpCluster row).

Ray places the ranks, one actor each, and tells when one has died; their tensors travel between them directly, as
those of engine torch do. A rank reserves a core, or its share of a GPU, where the cluster has enough of them free;
where it has not, the ranks share what there is, instead of waiting for each other.
"""

import json
import math
import os
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, final

from manyhands.comm.torch_ import PeerLost, TorchComm
from manyhands.config import RunConfig
from manyhands.errors import ManyhandsError, RankFailed, check
from manyhands.launch.base import Launcher, Observer, Worker
from manyhands.launch.environment import check_alone
from manyhands.launch.mailbox import LiveFolder, failure_of, read_failures, read_pulse, read_status
from manyhands.launch.on_ray.actor import FAILURE, RankActor, output_of
from manyhands.launch.on_ray.cluster import check_ray, cluster, forgiving_ray
from manyhands.launch.processes import check_importable
from manyhands.launch.signals.interrupt import stop_on_signal, tell
from manyhands.launch.signals.waiting import Patience
from manyhands.launch.supervisor import FAILURE_GRACE_S, POLL_S, patience_with
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
        """Allow any number of workers of one thread each."""
        check_alone(config.engine)
        hint = "choose --engine hybrid for threads inside MPI processes"
        check(config.threads == 1, f"--threads belongs to engine hybrid; {hint}")
        check_importable(config)
        check_ray(config)

    def launch(self, worker: Worker, job: Job, observe: Observer) -> list[dict[str, Any]]:
        """Have actors run the worker."""
        folder, size = LiveFolder(job.run), num_ranks(job.config)
        folder.open()
        try:
            folder.write_job(job, f"{worker.__module__}:{worker.__qualname__}")
            with stop_on_signal() as stop, cluster(job.config, size) as ray:
                ranks = _RayRanks(ray, job.config, folder, size)
                try:
                    return ranks.work(observe, stop, patience_with(folder, job))
                finally:
                    ranks.kill()
        finally:
            folder.close()


@final
class _RayRanks:
    """The actors of one run."""

    def __init__(self, ray: Any, config: RunConfig, folder: LiveFolder, size: int) -> None:
        self._ray, self._folder = ray, folder
        shares = _shares(ray, config, size)
        actor = ray.remote(RankActor).options(max_restarts=0, scheduling_strategy="SPREAD", **shares)
        self._actors = [actor.remote() for _ in range(size)]
        self._pending: dict[Any, int] = {}
        self._pulses = _Tail(folder.pulses)
        self._outputs = [_Tail(output_of(folder, rank)) for rank in range(size)]
        self._crashes: dict[int, str] = {}
        self._told: list[ManyhandsError] = []

    def work(self, observe: Observer, stop: threading.Event, patience: Patience) -> list[dict[str, Any]]:
        """Hand every rank its work, and follow it to the end."""
        orders = self._orders(self._places())
        self._pending = {
            actor.run.remote(json.dumps(order)): order["rank"]
            for actor, order in zip(self._actors, orders, strict=True)
        }
        results: dict[int, dict[str, Any] | None] = {}
        fail_by = math.inf
        while self._pending:
            results.update(self._new_results())
            self._show(observe)
            now = time.monotonic()
            if failures := self._failures():
                # A rank that only lost another waits for that one to be found out.
                own = [error for error in failures if not isinstance(error, PeerLost)]
                fail_by = min(fail_by, now + FAILURE_GRACE_S)
                if own or now > fail_by:
                    raise (own or failures)[0]
            if stop.is_set() and not self._folder.stop.exists():
                self._folder.ask_to_stop()
            if patience.look(stop=stop.is_set()):
                patience.give_up()
        failed = [rank for rank, result in results.items() if result is None]
        if failed:
            raise self._late_failure(min(failed))
        return [result for rank in range(len(orders)) if (result := results[rank]) is not None]

    def kill(self) -> None:
        """End every actor, and wait until they are gone; where Ray itself is gone, they are too."""
        with forgiving_ray():
            for actor in self._actors:
                self._ray.kill(actor)
            if self._pending:
                self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=FAILURE_GRACE_S)

    def _places(self) -> list[dict[str, Any]]:
        """Wait until every actor is somewhere, and return where."""
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
            raise ManyhandsError(f"Ray could not start a rank: {_last_line(error)}") from error
        for place in places:
            check(
                place["sees_folder"],
                f"the run's folder '{live}' is not on {place['host']}: "
                "all machines of the cluster must share it; choose another --out",
            )
        return places

    def _orders(self, places: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write down what each rank must know."""
        ranks_at = Counter(place["node"] for place in places)
        cores_at: dict[str, set[int]] = defaultdict(set)
        for place in places:
            cores_at[place["node"]].update(place["cores"])
        everyone = {
            "size": len(places),
            "address": places[0]["address"],
            "job": str(self._folder.job.resolve()),
            "folder": os.getcwd(),
            "path": [p or os.getcwd() for p in sys.path],
        }
        return [
            {
                **everyone,
                "rank": rank,
                "ranks_here": ranks_at[place["node"]],
                "cores_here": len(cores_at[place["node"]]),
            }
            for rank, place in enumerate(places)
        ]

    def _late_failure(self, rank: int) -> ManyhandsError:
        """Wait for a failed rank's report: folders shared between hosts may show files late."""
        give_up = time.monotonic() + FAILURE_GRACE_S
        while True:
            failures = self._failures()
            for error in failures:
                if not isinstance(error, PeerLost):
                    return error
            if time.monotonic() > give_up:
                break
            time.sleep(POLL_S)
        if failures:
            return failures[0]
        _, step, host = read_status(self._folder, rank) or (0, -1, "a host of the cluster")
        return RankFailed(rank=rank, host=host, step=step, cause="it failed, and its report has not arrived")

    def _new_results(self) -> dict[int, dict[str, Any] | None]:
        """Wait a moment; return the results of ranks that have ended since, or raise if one has died."""
        done, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=POLL_S)
        results: dict[int, Any] = {}
        for ref in done:
            rank = self._pending.pop(ref)
            try:
                results[rank] = json.loads(self._ray.get(ref))
            except self._ray.exceptions.RayError as error:
                if not self._folder.result(rank).is_file():
                    raise self._death(rank, error) from error
                results[rank] = json.loads(self._folder.result(rank).read_text())  # Ray was lost on the way back
            if results[rank].keys() == {FAILURE}:
                self._told.append(failure_of(results[rank][FAILURE]))
                results[rank] = None
        return results

    def _failures(self) -> list[ManyhandsError]:
        """Return what ranks reported: in the live folder, or, where that is on a full disk, by what they returned."""
        return [*read_failures(self._folder), *self._told]

    def _death(self, rank: int, error: Exception) -> ManyhandsError:
        self._show(lambda pulse: None)
        status = read_status(self._folder, rank)
        if status is None:
            return ManyhandsError(f"Ray could not start rank {rank}: {_last_line(error)}")
        _, step, host = status
        return RankFailed(rank=rank, host=host, step=step, cause=_cause(str(error), self._crashes.get(rank, "")))

    def _show(self, observe: Observer) -> None:
        """Pass on what the ranks have told and printed since."""
        for line in self._pulses.lines():
            if pulse := read_pulse(line):
                observe(pulse)
        for rank, output in enumerate(self._outputs):
            for line in output.lines():
                if crash := _SIGNAL.search(line):
                    self._crashes[rank] = crash[1]
                tell(line)


@final
class _Tail:
    """A file that grows, read line by line."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0

    def lines(self) -> list[str]:
        """Return the whole lines that are new."""
        if not self._path.is_file():
            return []
        with open(self._path, "rb") as f:
            f.seek(self._read)
            whole, end, _ = f.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        return whole.decode(errors="replace").split("\n") if end else []


def _shares(ray: Any, config: RunConfig, size: int) -> dict[str, float]:
    """Return what each rank reserves: what is there must do, or the ranks would wait for each other for ever.

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
    """Say why a process died, as far as Ray knows: of a process that is killed it sees only that it is gone."""
    if crash:
        return f"killed by {crash}"
    told = _DETAIL.search(error)
    return GONE if told is None or "connection error code" in told[1] else " ".join(told[1].split())


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__
