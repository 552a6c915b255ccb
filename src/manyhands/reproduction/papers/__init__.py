"""The papers, one file each: published tables and claims, and the settings of ours to compare them with."""

from collections.abc import Callable

from manyhands.errors import unknown
from manyhands.reproduction.base import HostFacts, Paper
from manyhands.reproduction.papers import p000, p001, p002, p003, p004

ALL = "all"
PAPERS: dict[str, Callable[[HostFacts], Paper]] = {
    "000": p000.paper,
    "001": p001.paper,
    "002": p002.paper,
    "003": p003.paper,
    "004": p004.paper,
}


def papers_of(name: str, machine: HostFacts) -> list[Paper]:
    """Return the paper with the number `name`, or all of them; `machine` decides which rows can be measured."""
    if name != ALL and name not in PAPERS:
        unknown("paper", name, (*PAPERS, ALL))
    return [make(machine) for number, make in PAPERS.items() if name in (ALL, number)]
