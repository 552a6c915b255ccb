"""Sweeps and simulations of tasks whose targets are no classes have pages without accuracy."""

from pathlib import Path

from made_up import made_up_sweep
from predicted import made_up_simulation, made_up_training, stored_simulation
from stored import store

from manyhands.report.html import render
from manyhands.report.simulations import simulation_page
from manyhands.report.sweeps import sweep_page
from manyhands.report.trained import trained_figures, trained_sentence


def test_a_sweep_is_drawn(tmp_path: Path) -> None:
    record = made_up_sweep()
    for rows in (record.rows, record.measures):
        assert rows
        for row in rows:
            row.test_accuracy = None
    page = sweep_page(store(tmp_path / "it", record), record)
    assert "Test accuracy" not in [tile.label for tile in page.tiles]
    assert 'id="accuracy"' not in render(page)


def test_a_training_of_virtual_nodes_is_drawn(tmp_path: Path) -> None:
    row = made_up_training("allreduce", 4)
    points = [point.model_copy(update={"accuracy": None}) for point in row.points]
    plain = row.model_copy(update={"test_accuracy": None, "points": points})
    record = made_up_simulation().model_copy(update={"trained": [plain], "target_accuracy": None})
    assert trained_sentence(record).startswith("The training with the lowest test loss, allreduce on 4")
    assert [figure.title for figure in trained_figures(record)] == ["Loss"]
    assert render(simulation_page(stored_simulation(tmp_path / "it", record), record))
