"""Failures before the run begins, in a world that was started from outside: the ranks agree on whose it is.

Until then ranks meet only to agree: on a text, or that somebody has failed. So a rank that fails takes part in the
next agreement of the others, whichever that is; all of them then leave, and what all have to say is said once.
"""

import socket
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import torch

from manyhands.comm.torch_ import text_row
from manyhands.errors import ManyhandsError, exit_status, printable
from manyhands.launch.environment import OuterWorld, outer_world
from manyhands.launch.guard.process import SAY_S
from manyhands.launch.guard.state import FailureKnown, Phase, own_state
from manyhands.launch.rank import World
from manyhands.launch.spawn import world_of


class OthersFailed(ManyhandsError):
    """This rank is fine, but another is not, and says so itself."""

    def __init__(self, sentence: str, status: int) -> None:
        self.status = status
        super().__init__(sentence)


class Word(NamedTuple):
    """What a rank has to say: a text to agree on, or with a status other than 0 why it failed."""

    status: int
    text: str
    host: str = ""


def agree_in_world(comm: World, text: str) -> str:
    """Return rank 0's text, if no rank has failed."""
    words = _exchange(comm, Word(0, text if comm.rank == 0 else ""))
    for rank, word in enumerate(words):
        if word.status:
            own_state().known = FailureKnown.RANKS
            raise OthersFailed(f"rank {rank} on {word.host} failed: {word.text}", word.status)
    return words[0].text


@contextmanager
def sharing_failures() -> Iterator[None]:
    """Tell the other ranks of a failure before the run begins: they would wait for this one."""
    state = own_state()
    state.phase = min(state.phase, Phase.MET)  # a run before this one has ended
    try:
        yield
    except Exception as error:
        outer = outer_world()
        if outer is not None:
            _tell(outer, error, _word_of(error))
            if not isinstance(error, OthersFailed):
                time.sleep(SAY_S)  # mpiexec drops what other ranks have just printed when this one ends
        raise


def name_to_say(error: Exception, outer: OuterWorld, sentence: str, status: int) -> str | None:
    """Tell the other ranks why this one fails; return the name to begin the sentence with, or None to be silent.

    What all ranks have to say is said by the first of them, without a name.
    """
    state = own_state()
    words = _tell(outer, error, Word(status, sentence, socket.gethostname()))
    state.known = FailureKnown.RANKS if state.phase >= Phase.RUNNING else max(state.known, FailureKnown.USER)
    if state.phase >= Phase.RUNNING:
        return ""
    texts = [(word.status, word.text) for word in words]
    if texts and texts[outer.rank] in texts[: outer.rank]:
        return None
    return "" if len(set(texts)) == 1 else f"rank {outer.rank} on {socket.gethostname()}: "


def _word_of(error: Exception) -> Word:
    explained = isinstance(error, ManyhandsError)
    text = str(error) if explained else "".join(traceback.format_exception(error)).rstrip()
    return Word(exit_status(error), text, socket.gethostname())


def _tell(outer: OuterWorld, error: Exception, word: Word) -> list[Word]:
    """Take part in the next agreement of the others, once for an error; return every rank's word, if they met."""
    told: list[Word] | None = getattr(error, "words_of_ranks", None)
    state = own_state()
    if told is not None or isinstance(error, OthersFailed) or state.phase >= Phase.RUNNING:
        return told or []
    told, state.text = [], word.text
    try:
        comm = world_of(outer.engine)
        if comm.size == outer.size:
            told = _exchange(comm, word)
            state.known = FailureKnown.RANKS
        else:  # a world of one each, where all fail alike
            told = [word] * outer.size
    except (ManyhandsError, ImportError, RuntimeError):
        pass  # there is nobody to tell, and the guard ends those that wait
    error.words_of_ranks = told  # type: ignore[attr-defined]
    return told


def _exchange(comm: World, word: Word) -> list[Word]:
    """Return every rank's word."""
    text = printable("\0".join((word.host, word.text)))
    head = torch.tensor([word.status, len(text.encode())])
    heads = comm.all_gather(head)
    rows = comm.all_gather(text_row(text, int(heads[:, 1].max())))
    with suppress(ManyhandsError, RuntimeError):  # a rank that leaves at once must not cut off what others still read
        comm.barrier()
    words = []
    for (status, length), row in zip(heads.tolist(), rows, strict=True):
        host, _, said = bytes(row[:length].tolist()).decode().partition("\0")
        words.append(Word(status, said, host))
    return words
