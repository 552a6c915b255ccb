"""How much of the cores other programs use: processor time of the machine, less that of a run's own processes.

A load average would count the run itself. Where a container may use less than the cores it sees, the processor time of
its control group counts instead.
"""

import json
import os
import resource
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import final

from manyhands.machine import facts
from manyhands.record.run import Others

SHORTEST_S = 0.3
"""Shortest time to measure over: the system counts in hundredths of a second."""
_TICK_S = 1 / (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)
_IDLE, _GUEST = (3, 4, 5, 6), 8
"""Columns of /proc/stat that are idle, waiting for a disk or interrupts; columns from `_GUEST` on are counted twice."""


@dataclass(frozen=True)
class CoreUse:
    """Use of the cores over some time, as one rank measured it."""

    host: str
    pid: int
    """Ranks that are threads of one process share its processor time."""
    threads: int
    """Threads that the rank computes with."""
    wall_s: float
    own_s: float
    """Processor time of its process."""
    busy_s: dict[str, float]
    """Processor time of all programs on each core that it may use; or of its container, by the name of `limit`."""
    limit: float
    """Cores that its container may use together; 0 for all it sees."""

    def to_json(self) -> str:
        """Return it as text, for `others_of`."""
        return json.dumps(asdict(self))


@final
class CoreMeter:
    """Counts processor time since it was made; with `children`, also that of processes which this one has started."""

    def __init__(self, *, children: bool = False) -> None:
        self._cpu_s = _with_children_s if children else time.process_time
        self._begun_s, self._own_s, self._busy_s = time.perf_counter(), self._cpu_s(), _busy_s()

    def read(self, threads: int = 1) -> CoreUse:
        """Return the use of the cores since then, of a rank that computes with `threads` threads."""
        now, limit = _busy_s(), facts.cpu_limit()
        return CoreUse(
            host=socket.gethostname(),
            pid=os.getpid(),
            threads=threads,
            wall_s=time.perf_counter() - self._begun_s,
            own_s=self._cpu_s() - self._own_s,
            busy_s={core: now[core] - before_s for core, before_s in self._busy_s.items() if core in now},
            limit=limit.cores if limit else 0.0,
        )


def others_of(texts: Sequence[str]) -> Others | None:
    """Return other programs' use of the cores, from the `CoreUse` texts of all ranks; of several hosts, the worst.

    None where the system does not count it, or the time was too short.
    """
    uses = [CoreUse(**json.loads(text)) for text in texts]
    hosts = [[use for use in uses if use.host == host] for host in dict.fromkeys(use.host for use in uses)]
    return worst(map(_others_on, hosts))


def worst(hosts: Iterable[Others | None]) -> Others | None:
    """Return the host where other programs took the largest share of the cores; None where nothing is known."""
    known = [others for others in hosts if others is not None]
    return max(known, key=lambda others: others.cores / others.of, default=None)


def _others_on(uses: Sequence[CoreUse]) -> Others | None:
    """Return other programs' use of the cores that the ranks of one host may use together."""
    busy_s: dict[str, list[float]] = {}
    for use in uses:
        for core, seconds in use.busy_s.items():
            busy_s.setdefault(core, []).append(seconds / max(use.wall_s, 1e-9))
    if not busy_s or min(use.wall_s for use in uses) < SHORTEST_S:
        return None
    processes = {use.pid: use.own_s / use.wall_s for use in uses}
    whole = sum(sum(shares) / len(shares) for shares in busy_s.values())
    of = uses[0].limit or float(len(busy_s))
    return Others(
        host=uses[0].host,
        cores=round(min(of, max(0.0, whole - sum(processes.values()))), 2),
        of=of,
        wanted=sum(use.threads for use in uses),
    )


def _with_children_s() -> float:
    return sum(os.times()[:4])  # user and system time, of this process and of its children


def _busy_s() -> dict[str, float]:
    """Return the processor time of all programs on each core that this process may use, or of its container."""
    limit = facts.cpu_limit()
    if limit is not None:
        return {"container": limit.used_s()}
    try:
        with open("/proc/stat") as f:
            lines = [line.split() for line in f if line.startswith("cpu") and not line.startswith("cpu ")]
    except OSError:
        return {}
    mine = {f"cpu{core}" for core in facts.core_ids()}
    return {name: _TICK_S * _not_idle(list(map(int, ticks))) for name, *ticks in lines if name in mine}


def _not_idle(ticks: Sequence[int]) -> int:
    """Return the ticks of programs; time that a hypervisor gave to other machines counts, since this one did not get
    it, but interrupts do not, since a run's own messages make them."""
    return sum(count for i, count in enumerate(ticks[:_GUEST]) if i not in _IDLE)


def starved_s() -> float:
    """Return for how long this thread could have run but had no core; 0 where the system does not count it."""
    try:
        with open("/proc/thread-self/schedstat", "rb") as f:
            return int(f.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def interruptions() -> int:
    """Return how often another program has taken this thread's core; 0 where the system does not count it."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return resource.getrusage(who).ru_nivcsw if who is not None else 0
