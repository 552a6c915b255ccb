"""How much of the cores other programs use: processor time of the machine, less that of a run's own processes.

A load average counts the run itself; processor time can be told apart. Where a container may use less than the cores
it sees, what its control group has used counts instead.
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
from manyhands.record import Others

SHORTEST_S = 0.3
"""Less time than this tells nothing: the system counts in hundredths of a second."""
_TICK_S = 1 / (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)
_IDLE, _GUEST = (3, 4, 5, 6), 8
"""Columns of /proc/stat: idle, waiting for a disk, and interrupts; from the second number on, time counted twice."""


@dataclass(frozen=True)
class CoreUse:
    """What one rank saw of the cores over some time."""

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
        """Write it, to be sent."""
        return json.dumps(asdict(self))


@final
class CoreMeter:
    """Counts processor time from when it is made; with `children`, that of processes which this one has started too."""

    def __init__(self, *, children: bool = False) -> None:
        self._cpu_s = _with_children_s if children else time.process_time
        self._begun_s, self._own_s, self._busy_s = time.perf_counter(), self._cpu_s(), _busy_s()

    def read(self, threads: int = 1) -> CoreUse:
        """Return what was used since by a rank that computes with so many threads."""
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
    """Put together what all ranks saw; of several hosts return the one where others took the largest share.

    None where the system does not tell, or the time was too short to tell anything.
    """
    uses = [CoreUse(**json.loads(text)) for text in texts]
    hosts = [[use for use in uses if use.host == host] for host in dict.fromkeys(use.host for use in uses)]
    return worst(map(_others_on, hosts))


def worst(found: Iterable[Others | None]) -> Others | None:
    """Return where others took the largest share of the cores, as far as is known."""
    known = [others for others in found if others is not None]
    return max(known, key=lambda others: others.cores / others.of, default=None)


def _others_on(uses: Sequence[CoreUse]) -> Others | None:
    """Return what others used of the cores that these ranks of one host may use together."""
    busy_s: dict[str, list[float]] = {}
    for use in uses:
        for core, seconds in use.busy_s.items():
            busy_s.setdefault(core, []).append(seconds / max(use.wall_s, 1e-9))
    if not busy_s or min(use.wall_s for use in uses) < SHORTEST_S:
        return None
    own = {use.pid: use.own_s / use.wall_s for use in uses}
    whole = sum(sum(each) / len(each) for each in busy_s.values())
    of = uses[0].limit or float(len(busy_s))
    return Others(
        host=uses[0].host,
        cores=round(min(of, max(0.0, whole - sum(own.values()))), 2),
        of=of,
        wanted=sum(use.threads for use in uses),
    )


def _with_children_s() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _busy_s() -> dict[str, float]:
    """Return the processor time that each core this process may use has given to anybody, or its container has used."""
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
    """Sum up what programs used; time that a hypervisor gave to other machines counts, since this one did not get it.

    Interrupts do not: a run's own messages make them.
    """
    return sum(count for i, count in enumerate(ticks[:_GUEST]) if i not in _IDLE)


def interruptions() -> int:
    """Return how often this thread has lost its core to another program, as far as the system tells."""
    who = getattr(resource, "RUSAGE_THREAD", None)
    return resource.getrusage(who).ru_nivcsw if who is not None else 0
