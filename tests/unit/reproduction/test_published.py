"""What was typed in from the papers: where they say a thing twice, both must agree, or the contradiction is known."""

import pytest

from manyhands.data import Split
from manyhands.replica.fused import FusedReplica
from manyhands.reproduction.base import HostFacts, Paper, Published, printed
from manyhands.reproduction.papers import PAPERS, p000, p001, p002, p003, p004

MACHINES = [HostFacts(1), HostFacts(2), HostFacts(16, 1)]


def last_place(text: str) -> float:
    """Return the unit of the last digit that is printed."""
    return 10.0 ** -len(text.partition(".")[2])


def number(text: str) -> float:
    return printed(text).low


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("43.67", 43.67, 43.67),
        ("9,511.66", 9511.66, 9511.66),
        ("2.5–3.5", 2.5, 3.5),
        ("about 10", 10, 10),
        ("−48.08", -48.08, -48.08),
    ],
)
def test_figures_are_read_as_they_are_printed(text: str, low: float, high: float) -> None:
    assert printed(text) == Published(text, low, high)


def test_paper_000_shares_add_up_to_its_total() -> None:
    total_s = number(p000.TOTAL_S)
    assert sum(number(self_s) for _, _, self_s, *_ in p000.FUNCTIONS) == pytest.approx(total_s, abs=0.06)
    for _, share, self_s, *_ in p000.FUNCTIONS:
        assert 100 * number(self_s) / total_s == pytest.approx(number(share), abs=0.01)
    calls = [int(calls) for _, _, _, calls, _ in p000.FUNCTIONS]
    assert calls == [6_000_000 + 10_000, 6_000_000, 6_000_000 + 10_000]  # 100 epochs, and the test images


def test_paper_000_functions_have_their_like_in_ours() -> None:
    assert all(hasattr(FusedReplica, name) for name in ("_forward", "_backward", "_loss"))
    assert {ours for *_, ours in p000.FUNCTIONS} == {f"FusedReplica.{n}" for n in ("_forward", "_backward", "_loss")}
    assert hasattr(Split, "_scaled")


def test_paper_000_epoch_is_a_hundredth_of_its_total() -> None:
    assert number(p000.TOTAL_S) / p000.EPOCHS == pytest.approx(number(p000.EPOCH_S), abs=0.005)


def test_paper_000_sides_are_the_roots_of_its_image_sizes() -> None:
    assert [side**2 for side in p000.SIDES] == [784, 3136, 12544]


def test_paper_001_parameters_are_those_of_its_layers() -> None:
    layers = (784 * 256 + 256, 256 * 128 + 128, 128 * 10 + 10)
    assert layers == (200_960, 32_896, 1_290)
    assert number(p001.PARAMETERS) == sum(layers)


def test_paper_001_expects_more_of_more_workers_and_never_more_than_ideal() -> None:
    for (name, _, few, options), (other, _, many, _) in zip(p001.EXPECTED[::2], p001.EXPECTED[1::2], strict=True):
        assert name == other
        assert printed(few).low <= printed(many).low
        assert printed(few).high < options["workers"] * options.get("threads", 1)


def test_paper_001_epoch_has_all_samples() -> None:
    assert (p001.EPOCH - 1) * 64 < 10_000 <= p001.EPOCH * 64


def test_paper_002_speed_ups_are_ratios_of_its_times() -> None:
    one = number(p002.STRONG[0][1])
    for _, time_s, speed_up, _ in p002.STRONG:
        assert one / number(time_s) == pytest.approx(number(speed_up), abs=last_place("0.01"))


def test_paper_002_figure_7_gives_the_times_of_table_1() -> None:
    runtimes = (43.66649913787842, 23.78949809074402, 14.808006048202515, 12.170000791549683, 11.017499923706055)
    for (_, time_s, _, _), runtime in zip(p002.STRONG, runtimes, strict=True):
        assert number(time_s) == pytest.approx(runtime, abs=0.01)


def test_paper_002_samples_of_table_1_are_the_originals_times_twelve() -> None:
    assert p002.SAMPLES * p002.COPIES == 60_000


def test_paper_002_weak_times_rise_and_disagree_with_the_strong_ones() -> None:
    times = [number(time_s) for _, time_s in p002.WEAK]
    assert times == sorted(times)
    assert times[0] > 1.15 * number(p002.STRONG[0][1]) / p002.COPIES  # as the table's note says


def test_paper_003_parameters_are_those_of_its_layers() -> None:
    assert number(p003.PARAMETERS) == 320 + 36_992 + 295_168 + 257_000 + 100_100 + 1_010
    assert (9 + 1) * 32 + (9 * 32 + 1) * 128 + (9 * 128 + 1) * 256 + 257 * 1000 + 1001 * 100 + 101 * 10 == 690_590


def test_paper_003_contradictions_are_those_of_the_note() -> None:
    one = p003.TABLE_2[0]
    assert p003.EPOCHS * number(one.epoch_s) > number(one.total_s)
    assert 469 * number(one.batch_s) < number(one.epoch_s) / 2
    four = next(line for line in p003.TABLE_2 if (line.nodes, line.per_node) == (1, 4))
    assert number(one.epoch_s) / number(four.epoch_s) == pytest.approx(4.1, abs=0.05)


def test_paper_003_other_rows_take_about_five_epochs() -> None:
    for line in p003.TABLE_2[1:]:
        assert number(line.total_s) == pytest.approx(p003.EPOCHS * number(line.epoch_s), rel=0.3)


def test_paper_003_accuracies_are_held_against_the_spread_of_as_many_processes() -> None:
    table = next(t for t in p003.paper(HostFacts(8)).tables if t.name == "table 2")
    spread = {row.labels[0]: row.published["accuracy %"] for row in table.rows if "accuracy %" in row.published}
    assert (spread["2 × 4"].text, spread["2 × 4"].low, spread["2 × 4"].high) == ("96.75", 94.03, 97.20)
    assert spread["1 × 1"] == printed("98.80")
    assert all(figure.low <= number(figure.text) <= figure.high for figure in spread.values())


def test_paper_003_gpu_epochs_add_up_to_less_than_its_total() -> None:
    assert sum(p003.GPU_EPOCHS_S) == pytest.approx(number(p003.GPU_TOTAL_S), abs=0.6)
    assert number(p003.GPU_TOTAL_S) == pytest.approx(97.32 / 2, rel=0.03)  # "half of our best runtime"


def test_paper_003_has_every_number_of_processes_on_as_few_and_as_many_nodes() -> None:
    assert sorted(line.processes for line in p003.TABLE_2) == [1, 2, 2, 4, 4, 4, 8, 8, 8]
    assert {line.processes for line in p003.TABLE_2} == set(p003.PROCESSES)


def test_paper_004_table_4_follows_its_formula() -> None:
    one = number(p004.TABLE_4[0][1])
    for _, time_s, improvement in p004.TABLE_4[1:]:
        assert (one - number(time_s)) / one * 100 == pytest.approx(number(improvement), abs=0.006)


def test_paper_004_table_3_prints_improvements_over_the_row_before() -> None:
    for (_, before_s, _), (_, time_s, improvement) in zip(p004.TABLE_3, p004.TABLE_3[1:], strict=False):
        before = number(before_s)
        assert (before - number(time_s)) / before * 100 == pytest.approx(number(improvement), abs=0.006)


def test_paper_004_table_3_is_judged_by_the_formula() -> None:
    table = next(t for t in p004.paper(HostFacts(8)).tables if t.name == "table 3")
    judged = [row.published["improvement %"] for row in table.rows[1:]]
    assert [round(p.low, 2) for p in judged] == [4.08, 12.98, 69.41]
    assert [p.text for p in judged] == ["4.08", "12.98 (printed 9.28)", "69.41 (printed 64.85)"]


@pytest.mark.parametrize("machine", MACHINES, ids=str)
@pytest.mark.parametrize("number", PAPERS)
def test_published_figures_stand_in_columns_that_there_are(number: str, machine: HostFacts) -> None:
    paper = PAPERS[number](machine)
    assert paper.number == number
    for table in paper.tables:
        names = [column.name for column in table.columns]
        assert len(names) == len(set(names))
        for row in table.rows:
            assert set(row.published) <= set(names), (number, table.name, row.labels)
            assert len(row.labels) == len(table.headings)
        labels = [row.labels for row in table.rows]
        assert len(labels) == len(set(labels)), (number, table.name)


def test_a_paper_has_something_to_judge() -> None:
    def published(paper: Paper) -> int:
        return sum(len(row.published) for table in paper.tables for row in table.rows)

    assert all(published(make(HostFacts(8))) >= 7 for make in PAPERS.values())
