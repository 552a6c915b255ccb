"""Messages between virtual ranks: on their way through the ports, and in the mailboxes of those that take them."""

from collections import defaultdict, deque
from dataclasses import dataclass
from typing import final

from torch import Tensor

from manyhands.comm.base import ANY

Tag = tuple[int, int]
"""Of the group, and of the message."""


@final
@dataclass(slots=True, eq=False)
class Message:
    """On its way, or not taken yet."""

    arrives_s: float
    number: int
    source: int
    tag: Tag
    content: Tensor


@final
class Mailbox:
    """Messages to one rank that it has not taken. Its port passes one at a time, so they arrive as they were posted."""

    def __init__(self) -> None:
        self._from: dict[tuple[int, Tag], deque[Message]] = defaultdict(deque)
        self._order: dict[Tag, deque[Message]] = defaultdict(deque)
        """By tag, from whomever; of these only the first is sure not to be taken yet."""

    def put(self, message: Message) -> None:
        """Keep a message."""
        self._from[message.source, message.tag].append(message)
        self._order[message.tag].append(message)

    def first(self, source: int, tag: Tag) -> Message | None:
        """Return the one that arrives first of those that fit."""
        waiting = self._order[tag] if source == ANY else self._from[source, tag]
        return waiting[0] if waiting else None

    def drop(self, message: Message) -> None:
        """Let the first message of its source and tag go."""
        self._from[message.source, message.tag].popleft()
        order = self._order[message.tag]
        while order and not self._is_here(order[0]):
            order.popleft()

    def _is_here(self, message: Message) -> bool:
        waiting = self._from[message.source, message.tag]
        return bool(waiting) and waiting[0].number <= message.number


@final
class Port:
    """What is leaving a rank whose messages share its port fairly."""

    def __init__(self) -> None:
        self._leaving: list[tuple[float, Message]] = []
        """How long each would still take alone, the shortest first, and the message."""
        self._until_s = 0.0
        """When that was so."""

    def add(self, now_s: float, busy_s: float, latency_s: float, message: Message) -> None:
        """Let one more leave, which puts off the arrival of those that leave already."""
        self._pass(now_s - self._until_s)
        self._until_s = now_s
        self._leaving = sorted([*self._leaving, (busy_s, message)], key=lambda each: each[0])
        gone_s, before_s = now_s, 0.0
        for i, (left_s, each) in enumerate(self._leaving):
            gone_s += (left_s - before_s) * (len(self._leaving) - i)
            before_s = left_s
            each.arrives_s = max(each.arrives_s, gone_s + latency_s)

    def _pass(self, seconds: float) -> None:
        while self._leaving:
            share_s = min(self._leaving[0][0], seconds / len(self._leaving))
            seconds -= share_s * len(self._leaving)
            self._leaving = [(left_s - share_s, each) for left_s, each in self._leaving if left_s > share_s]
            if seconds <= 0:
                break
