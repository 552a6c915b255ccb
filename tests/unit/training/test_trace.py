"""The timeline tells what every rank did when, of the steps that were asked for, in a format that viewers open."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from manyhands import RunRecord
from manyhands.comm.spans import RankSpans, Span, Spans, chrome_trace

Event = dict[str, object]


def _events(out: Path, record: RunRecord) -> list[dict[str, object]]:
    found = json.loads((out / record.id / "trace.json").read_text())["traceEvents"]
    return [event for event in found if event["ph"] == "X"]


def test_only_the_steps_that_were_asked_for_are_kept() -> None:
    spans = Spans(2)
    spans.open(5)
    for step in range(10):
        spans.at(step)
        spans.add("x", "compute", step, step + 1)
    assert [span.step for span in spans.kept] == [5, 6]


def test_nothing_is_kept_unless_asked_for() -> None:
    spans = Spans()
    spans.open(0)
    spans.at(0)
    spans.add("x", "compute", 0, 1)
    assert spans.kept == []


def test_ranks_of_other_hosts_are_shifted_to_the_common_moment() -> None:
    span = Span("x", "compute", 11.0, 12.0, 0)
    ranks = [RankSpans(0, "worker", "a", [span], 10), RankSpans(1, "worker", "a", [span], 9)]
    ranks.append(RankSpans(2, "worker", "b", [span], 8))
    events = [e for e in json.loads(chrome_trace(ranks))["traceEvents"] if e["ph"] == "X"]
    assert [e["ts"] for e in events] == [1e6, 1e6, 3e6]
    assert all(e["dur"] == 1e6 for e in events)


@pytest.mark.parametrize(
    ("options", "ranks", "call"),
    [
        ({}, 1, "all-reduce"),
        ({"engine": "threads", "workers": 3}, 3, "all-reduce"),
        ({"engine": "threads", "workers": 2, "sync": "parameter-server:servers=2"}, 4, "send"),
        ({"engine": "threads", "workers": 2, "sync": "async-server"}, 3, "recv"),
    ],
)
def test_every_rank_has_its_spans(
    tmp_path: Path, train: Callable[..., RunRecord], options: dict[str, object], ranks: int, call: str
) -> None:
    events = _events(tmp_path, train(steps=20, trace=3, **options))
    assert {e["pid"] for e in events} == set(range(ranks))
    workers = [e for e in events if e["cat"] == "compute"]
    assert {(e["pid"], e["args"]["step"]) for e in workers} == {  # type: ignore[index]
        (rank, step) for rank in range(int(str(options.get("workers", 1)))) for step in (5, 6, 7)
    }
    assert call in {e["name"] for e in events if e["cat"] == "comm"}
    assert all(float(str(e["dur"])) >= 0 for e in events)


def test_a_short_run_is_traced_from_its_beginning(tmp_path: Path, train: Callable[..., RunRecord]) -> None:
    events = _events(tmp_path, train(steps=2, trace=3))
    assert {e["args"]["step"] for e in events} == {0, 1}  # type: ignore[index]


def test_servers_are_traced_in_the_steps_of_the_workers(tmp_path: Path, train: Callable[..., RunRecord]) -> None:
    servers = {"engine": "threads", "workers": 2, "sync": "parameter-server"}
    events = _events(tmp_path, train(steps=6, trace=6, **servers))
    steps = [{e["args"]["step"] for e in events if e["pid"] == rank} for rank in range(3)]  # type: ignore[index]
    assert steps == [set(range(6))] * 3


def test_without_being_asked_for_there_is_none(tmp_path: Path, train: Callable[..., RunRecord]) -> None:
    assert not (tmp_path / train(steps=2).id / "trace.json").exists()
