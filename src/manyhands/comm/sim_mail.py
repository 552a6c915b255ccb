"""Messages between virtual ranks: on their way through the senders' ports, and in the receivers' mailboxes."""

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import final

from torch import Tensor

from manyhands.comm.base import ANY

Tag = tuple[int, int]
"""Identity of the group, since groups may share ranks, and tag of the message."""


@final
@dataclass(slots=True, eq=False)
class Message:
    """A message that is on its way or not received yet."""

    arrives_s: float
    source: int
    tag: Tag
    content: Tensor
    taken: bool = False


@final
class Mailbox:
    """Messages to one rank that it has not received, in the order in which they were sent.

    That is also the order of their arrival, since the receiver's port passes one message at a time.
    """

    def __init__(self) -> None:
        self._by_source: dict[tuple[int, Tag], deque[Message]] = defaultdict(deque)
        self._by_tag: dict[Tag, deque[Message]] = defaultdict(deque)
        """From any source; messages behind the first may be taken already."""

    def put(self, message: Message) -> None:
        """Add a message that was sent to this rank."""
        self._by_source[message.source, message.tag].append(message)
        self._by_tag[message.tag].append(message)

    def take(self, source: int, tag: Tag) -> Message | None:
        """Remove and return the first message of this tag from `source`, which may be `ANY`; None if there is none."""
        queue = self._by_tag[tag] if source == ANY else self._by_source[source, tag]
        if not queue:
            return None
        message = queue[0]
        message.taken = True
        self._by_source[message.source, tag].popleft()
        of_tag = self._by_tag[tag]
        while of_tag and of_tag[0].taken:
            of_tag.popleft()
        return message


@final
class Port:
    """The messages that are leaving a rank at the same time, and share its bandwidth fairly."""

    def __init__(self) -> None:
        self._leaving: list[tuple[float, Message]] = []
        """Seconds that each message would still need if it had the port alone, shortest first."""
        self._updated_s = 0.0
        """The time for which `_leaving` holds."""

    def add(self, now_s: float, busy_s: float, latency_s: float, message: Message) -> None:
        """Let one more message leave, which delays the arrival of those that are leaving already."""
        self._pass(now_s - self._updated_s)
        self._updated_s = now_s
        self._leaving = sorted([*self._leaving, (busy_s, message)], key=lambda leaving: leaving[0])
        gone_s, before_s = now_s, 0.0
        for i, (remaining_s, delayed) in enumerate(self._leaving):
            gone_s += (remaining_s - before_s) * (len(self._leaving) - i)
            before_s = remaining_s
            delayed.arrives_s = max(delayed.arrives_s, gone_s + latency_s)

    def _pass(self, seconds: float) -> None:
        while self._leaving:
            share_s = min(self._leaving[0][0], seconds / len(self._leaving))
            seconds -= share_s * len(self._leaving)
            self._leaving = [(remaining_s - share_s, m) for remaining_s, m in self._leaving if remaining_s > share_s]
            if seconds <= 0:
                break
