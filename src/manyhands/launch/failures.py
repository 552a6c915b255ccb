"""Let ranks that were started from outside agree, before the run begins, on a text or on who of them failed.

Until the run begins, ranks meet only to agree. So a rank that fails takes part in the next agreement of the others,
whichever that is; all of them then leave, and a message that all have in common is printed once.
"""

import json
import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from manyhands.comm.texts import gather_texts
from manyhands.errors import ManyhandsError, exit_status
from manyhands.launch.environment import OuterWorld, outer_world
from manyhands.launch.guard.meeting import World, world_of
from manyhands.launch.guard.process import SAY_S
from manyhands.launch.guard.state import TEXT_BYTES, FailureKnown, Phase, own_state


class OthersFailed(ManyhandsError):
    """Another rank has failed, and reports it itself; this one leaves with its exit status."""

    def __init__(self, sentence: str, status: int) -> None:
        self.status = status
        super().__init__(sentence)


class Statement(NamedTuple):
    """What a rank brings to an agreement: with status 0 a text to agree on, with any other why it failed."""

    status: int
    text: str
    host: str = ""


def agree_in_world(comm: World, text: str) -> str:
    """Return rank 0's text; raise `OthersFailed` if a rank has failed."""
    statements = _exchange(comm, Statement(0, text if comm.rank == 0 else ""))
    for rank, statement in enumerate(statements):
        if statement.status:
            own_state().known = FailureKnown.RANKS
            raise OthersFailed(f"rank {rank} on {statement.host} failed: {statement.text}", statement.status)
    return statements[0].text


@contextmanager
def sharing_failures() -> Iterator[None]:
    """Tell the other ranks of a failure before the run begins: they would wait for this one."""
    state = own_state()
    state.phase = min(state.phase, Phase.MET)  # an earlier run of this process has ended
    try:
        yield
    except Exception as error:
        outer = outer_world()
        if outer is not None:
            explained = isinstance(error, ManyhandsError)
            text = str(error) if explained else "".join(traceback.format_exception(error)).rstrip()
            _share(outer, error, text, exit_status(error))
            if not isinstance(error, OthersFailed):
                time.sleep(SAY_S)  # mpiexec drops what other ranks have just printed when this one ends
        raise


def name_to_say(error: Exception, outer: OuterWorld, sentence: str, status: int) -> str | None:
    """Tell the other ranks why this one fails; return the prefix of the sentence to print, or None to print nothing.

    A sentence that all ranks have in common is printed by the first of them, without a rank's name.
    """
    state = own_state()
    statements = _share(outer, error, sentence, status)
    state.known = FailureKnown.RANKS if state.phase >= Phase.RUNNING else max(state.known, FailureKnown.USER)
    if state.phase >= Phase.RUNNING:
        return ""
    texts = [(statement.status, statement.text) for statement in statements]
    if texts and texts[outer.rank] in texts[: outer.rank]:
        return None
    return "" if len(set(texts)) == 1 else f"rank {outer.rank} on {socket.gethostname()}: "


def _share(outer: OuterWorld, error: Exception, text: str, status: int) -> list[Statement]:
    """Take part, once for an error, in the next agreement of the others; return every rank's statement, if they met."""
    statements: list[Statement] | None = getattr(error, "statements_of_ranks", None)
    state = own_state()
    if statements is not None or isinstance(error, OthersFailed) or state.phase >= Phase.RUNNING:
        return statements or []
    statements, state.text = [], text.encode(errors="backslashreplace").replace(b"\0", b" ")[:TEXT_BYTES]
    statement = Statement(status, text, socket.gethostname())
    try:
        comm = world_of(outer.engine)
        if comm.size == outer.size:
            statements = _exchange(comm, statement)
            state.known = FailureKnown.RANKS
        else:  # each rank is alone in a world of one, and all fail alike
            statements = [statement] * outer.size
    except (ManyhandsError, ImportError, RuntimeError):
        pass  # there is nobody to tell, and the guard ends those that wait
    error.statements_of_ranks = statements  # type: ignore[attr-defined]
    return statements


def _exchange(comm: World, statement: Statement) -> list[Statement]:
    """Return every rank's statement."""
    texts = gather_texts(comm, json.dumps(statement))
    with suppress(ManyhandsError, RuntimeError):  # a rank that leaves at once must not cut off what others still read
        comm.barrier()
    return [Statement(*json.loads(text)) for text in texts]
