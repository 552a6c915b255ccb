"""The words: every sentence has its number, the largest part comes first, and doubts are said aloud."""

import re

import pytest
from made_up import CAUSED_BY, NOTHING, finding_of, made_up_cells, made_up_measures, made_up_sweep

from manyhands.record.run import Others
from manyhands.record.sweep import Finding, SweepRecord
from manyhands.scaling.analysis.analyse import analyse

NAMED = {
    "comm": "went to communication",
    "wait": "waiting for the slowest worker",
    "serial": "serial work",
    "small-batch": "small batches",
    "oversubscription": "8 ranks take turns on 2 cores",
    "memory": "sharing one machine",
}


@pytest.mark.parametrize("cause", CAUSED_BY)
def test_the_first_sentence_names_the_cause_with_its_percent(cause: str) -> None:
    record = made_up_sweep("strong", (1, 8), ("mpi",), **{**NOTHING, **CAUSED_BY[cause]})
    finding = finding_of(record, "mpi 8")
    (percent,) = [part.percent for part in finding.parts if part.cause == cause]
    assert finding.sentences[0].startswith(f"{percent:.1f} %")
    assert NAMED[cause] in finding.sentences[0]
    assert not any(words in sentence for words in NAMED.values() for sentence in finding.sentences[1:])


def test_sentences_are_ordered_by_their_numbers_which_are_those_of_the_parts() -> None:
    for finding in made_up_sweep().findings:
        causes = [s for s in finding.sentences if "medians of the parts" not in s]
        numbers = [float(match[1]) for s in causes if (match := re.match(r"([\d.]+) %", s))]
        assert numbers == sorted(numbers, reverse=True)
        parts = [part.percent for part in finding.parts if part.cause != "unattributed"]
        assert numbers == pytest.approx(sorted((p for p in parts if abs(p) >= 0.5), reverse=True), abs=0.051)


def test_what_medians_leave_over_is_told_as_not_attributed() -> None:
    record = made_up_sweep(noise=0.3)
    told = 0
    for finding in record.findings:
        (rest,) = [part.percent for part in finding.parts if part.cause == "unattributed"]
        sentences = [s for s in finding.sentences if "the medians of the parts over 5 runs do not sum up" in s]
        assert bool(sentences) is (abs(rest) >= 0.5)
        assert all(s.startswith(f"{abs(rest):.1f} %") for s in sentences)
        told += len(sentences)
    assert told


def test_every_sentence_carries_a_number() -> None:
    for finding in made_up_sweep(cores=4, repeats=3, failing={"mpi 8 allreduce batch 64 repeat 1": "killed"}).findings:
        for sentence in [finding.headline, *finding.sentences, *(remedy.sentence for remedy in finding.remedies)]:
            assert re.search(r"\d", sentence), sentence


def test_the_headline_tells_speed_up_efficiency_and_what_was_lost() -> None:
    record = made_up_sweep("strong", (1, 2), ("mpi",))
    (row,) = [row for row in record.rows if row.cell.engine == "mpi"]
    assert row.speed_up
    assert row.efficiency
    low, value, high = (100 * bound for bound in (row.efficiency.low, row.efficiency.value, row.efficiency.high))
    assert finding_of(record, "mpi 2").headline == (
        f"mpi ×2: {row.speed_up.value:.2f}× as fast as one worker, efficiency {value:.1f} % "
        f"(93.8 %: {low:.1f}–{high:.1f}); {100 - value:.1f} % of the time was lost"
    )


def test_other_programs_come_before_communication_and_no_remedy_is_told_beside_them() -> None:
    cells = made_up_cells("strong", (1, 2), ("mpi",))
    quiet = made_up_measures(cells, cores=2, comm_ms=0.5)
    others = Others(host="here", cores=1.3, of=2.0, wanted=2)
    busy = [m.model_copy(update={"others": others if m.cell.startswith("cell") else None}) for m in quiet]
    for measures, disturbed in ((quiet, False), (busy, True)):
        (finding,) = analyse("strong", cells, measures, 2).findings
        first = finding.sentences[0]
        assert first.startswith("Other programs used 1.3 of 2 cores while this was measured:") is disturbed
        assert any("went to communication" in sentence for sentence in finding.sentences)
        assert bool(finding.remedies) is not disturbed


def test_headlines_of_a_sweep_differ() -> None:
    record = made_up_sweep(
        "strong", (1, 4), ("mpi", "hybrid"), ("allreduce", "local-sgd"), batch_sizes=(32, 64), image_sizes=(28, 56)
    )
    names = [finding.headline.partition(":")[0] + finding.headline.partition("sgd")[1] for finding in record.findings]
    assert len(set(names)) == len(names) == len([row for row in record.rows if row.cell.size > 1])


def test_small_parts_are_summed_up_as_the_rest() -> None:
    costs = {**NOTHING, "comm_ms": 0.2, "wait_share": 0.003, "sharing": 0.003}
    finding = finding_of(made_up_sweep("strong", (1, 2), ("mpi",), **costs), "mpi 2")
    small = sum(part.percent for part in finding.parts if part.percent < 0.5)
    assert small > 0.3
    assert len(finding.sentences) == 2
    assert finding.sentences[1].startswith(f"The rest, {small:.1f} %")


def test_more_than_ideal_is_called_superlinear_and_explained() -> None:
    finding = finding_of(made_up_sweep("strong", (1, 2), ("mpi",), **{**NOTHING, "start_ms": -0.3}), "mpi 2")
    assert "superlinear" in finding.headline
    assert "was won" in finding.headline
    assert "caches helped with smaller batches" in finding.sentences[0]
    crowded = {**NOTHING, "sharing": -0.1, "comm_ms": 0.01}
    finding = finding_of(made_up_sweep("weak", (1, 2), ("mpi",), **crowded), "mpi 2")
    assert "superlinear" in finding.headline
    assert "caches or clock helped" in finding.sentences[0]


def test_a_loss_within_the_noise_is_called_that() -> None:
    record = made_up_sweep("strong", (1, 2), ("mpi",), **{**NOTHING, "noise": 0.05})
    assert any("within the noise" in sentence for sentence in finding_of(record, "mpi 2").sentences)
    record = made_up_sweep("strong", (1, 2), ("mpi",), **{**NOTHING, "noise": 0.01, "comm_ms": 0.4})
    assert not any("within the noise" in sentence for sentence in finding_of(record, "mpi 2").sentences)


def test_a_part_that_changes_its_sign_from_repeat_to_repeat_may_be_noise() -> None:
    record = made_up_sweep("strong", (1, 2), ("mpi",), **{**NOTHING, "noise": 0.05, "comm_ms": 0.8})
    first, *others = finding_of(record, "mpi 2").sentences
    assert "communication" in first
    assert "noise" not in first
    assert any("which may be noise" in sentence for sentence in others)


def test_one_repeat_cannot_tell_the_noise() -> None:
    finding = finding_of(made_up_sweep("strong", (1, 2), ("mpi",), repeats=1), "mpi 2")
    assert "95 %" not in finding.headline
    assert any("1 run cannot tell" in sentence for sentence in finding.sentences)


def test_threads_are_told_of_the_interpreter_lock_they_share() -> None:
    record = made_up_sweep("strong", (1, 4), ("threads", "hybrid", "mpi"), **{**NOTHING, "sharing": 0.1})
    for part, told in (("threads 4", True), ("hybrid 2x2", True), ("mpi 4", False)):
        assert ("interpreter lock" in finding_of(record, part).sentences[0]) is told


def test_waiting_for_an_uneven_share_says_so() -> None:
    record = made_up_sweep("strong", (1, 2, 3), ("mpi",), **{**NOTHING, "wait_share": 0.1})
    assert "64 samples do not divide evenly by 3, so some have 22" in finding_of(record, "mpi 3").sentences[0]
    assert "evenly" not in finding_of(record, "mpi 2").sentences[0]


def test_crowded_cores_are_a_doubt_of_their_own() -> None:
    record = made_up_sweep("strong", (1, 4), ("mpi",), **{**NOTHING, "comm_ms": 0.2, "cores": 2})
    assert any("4 ranks share 2 cores" in sentence for sentence in finding_of(record, "mpi 4").sentences)


def test_failures_are_told() -> None:
    failing = {"threads 2": "out of memory", "mpi 2 allreduce batch 64 repeat 1": "rank 1 died."}
    record = made_up_sweep("strong", (1, 2), ("threads", "mpi"), failing=failing)
    assert finding_of(record, "threads 2").headline == "threads ×2: 5 of 5 runs failed: out of memory"
    assert finding_of(record, "mpi 2").sentences[-1] == "1 of 5 runs failed: rank 1 died."


def test_without_a_probe_no_cause_is_named_and_nothing_is_promised_of_it() -> None:
    costs = {**NOTHING, "start_ms": 0.3, "comm_ms": 0.1}
    for engine in ("mpi", "threads"):
        record = made_up_sweep("strong", (1, 4), (engine,), failing={"probe": "out of memory."}, **costs)
        finding = finding_of(record, f"{engine} 4")
        (percent,) = [part.percent for part in finding.parts if part.cause == "unclear"]
        assert finding.sentences[0] == (
            f"{percent:.1f} % was lost in computing, where small batches and sharing the machine cannot be told apart, "
            "because the probe (one worker alone with 16 samples) failed: out of memory."
        )
        assert finding.remedies, "what is known of communication still helps"
        assert {remedy.cause for remedy in finding.remedies} <= {"comm", "serial"}


def test_large_numbers_of_messages_are_written_out() -> None:
    cells = made_up_cells("strong", (1, 2), ("mpi",))
    runs = [
        run.model_copy(update={"messages_per_step": 1_234_567.0})
        for run in made_up_measures(cells, **{**NOTHING, "comm_ms": 0.4})
    ]
    (finding,) = analyse("strong", cells, runs, 8).findings
    assert "1,234,567 messages" in finding.sentences[0]


def test_a_failed_baseline_leaves_rates_and_a_sentence_that_says_so() -> None:
    record = made_up_sweep("strong", (1, 2), ("mpi",), failing={"baseline": "rank 0 was killed"})
    finding = finding_of(record, "mpi 2")
    assert "samples/s" in finding.headline
    assert "no speed-up" in finding.headline
    (sentence,) = finding.sentences
    assert "no run of one worker alone" in sentence
    assert "rank 0 was killed" in sentence
    assert finding.parts == finding.remedies == []


def test_a_sweep_of_which_nothing_was_measured_is_no_error() -> None:
    cells = made_up_cells("strong", (1, 2), ("mpi",))
    found = analyse("strong", cells, [], 2)
    assert [finding.headline for finding in found.findings] == ["mpi ×2: not measured"]
    assert found.fits == []
    assert analyse("weak", [], [], 2) == ([], [], [])


def test_full_batches_are_explained_too() -> None:
    for kind in ("strong", "weak"):
        cells = made_up_cells(kind, (1, 2), ("mpi",))
        cells = [_full(cell, kind) for cell in cells]
        (finding,) = analyse(kind, cells, made_up_measures(cells), 8).findings  # type: ignore[arg-type]
        assert sum(part.percent for part in finding.parts) > 0
        assert not any("batch" in remedy.command for remedy in finding.remedies)


def _full(cell, kind):  # type: ignore[no-untyped-def]
    if cell.role == "probe":
        return cell.model_copy(update={"batch_size": 30_000})
    replicate = cell.size if kind == "weak" else 1
    return cell.model_copy(update={"batch_size": "full", "replicate": replicate})


def test_a_record_survives_being_written() -> None:
    record = made_up_sweep()
    again = SweepRecord.model_validate_json(record.model_dump_json())
    assert again.rows == record.rows
    assert again.fits == record.fits
    assert all(isinstance(finding, Finding) for finding in again.findings)
    assert again.findings == record.findings
