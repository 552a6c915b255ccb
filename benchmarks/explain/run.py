"""Plant known causes of lost time, and see whether the explanation of a sweep finds them and its remedy helps.

    python benchmarks/explain/run.py slow_rank straggler     # some causes, two minutes or so each; `all` for every one
    python benchmarks/explain/run.py --table                 # only write the table from the records again
    python benchmarks/explain/run.py --explain               # explain the kept runs as this version does

Each cause is a task of `plants.py`. A real `manyhands scale` with threads, MPI and torch explains it; then the first
remedy is carried out, in turn with runs as they were. One JSON file for each cause in a dated folder.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import plants

from manyhands import scale
from manyhands.machine import facts
from manyhands.measurement.measure import measure
from manyhands.record.sweep import Cell, Finding, Measure, Remedy, Row
from manyhands.report.words import remedy_sentence
from manyhands.scaling.analysis.analyse import analyse

HERE = Path(__file__).parent
TABLE = "<!-- made by run.py -->"
ENGINES = ("threads", "mpi", "torch")
WORKERS = 2
CAUSES = {
    "slow_rank": "slow-rank",
    "straggler": "straggler",
    "serial": "serial",
    "gradients": "comm",
    "small_batch": "small-batch",
    "uneven": "uneven",
    "others": "others",
    "data": "data",
    "memory": "memory",
}
"""The cause that each planted task should be explained by."""
BY_HAND = {"slow-rank": "plain", "data": "plain", "others": "plain"}
"""Remedies that are no options: the task, or for other programs their absence, that carries them out."""


def main() -> None:
    """Run the given causes, keep their records, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("causes", nargs="*", metavar="CAUSE", help=f"all, or some of {', '.join(CAUSES)}")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=3, help="runs before and after the remedy")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--out", type=Path, default=HERE / "records" / time.strftime("%Y-%m-%d"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--explain", action="store_true", help="explain the kept runs as this version does")
    options = parser.parse_args()
    if not {*options.causes} <= {*CAUSES, "all"} or not (options.causes or options.table or options.explain):
        parser.error(f"name some of {', '.join(CAUSES)}, or all, or give --table or --explain")
    for plant in CAUSES if "all" in options.causes else options.causes:
        options.out.mkdir(parents=True, exist_ok=True)
        examine(plant, options)
    for path in options.out.glob("*.json") if options.explain else ():
        explain_again(path)
    write_table(options.out)


def examine(plant: str, options: argparse.Namespace) -> None:
    """Sweep with a planted cause, explain, and carry out the first remedy; go on with what an earlier call has kept."""
    path = options.out / f"{plant}.json"
    kept = json.loads(path.read_text()) if path.is_file() else swept(plant, options)
    for engine, result in kept["engines"].items():
        path.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"{plant} {engine}:", *result["sentences"], *result["remedies"], sep="\n  ", file=sys.stderr, flush=True)
        if "planted_ms" not in result:
            result["planted_ms"] = planted_ms(plant, engine, options)
        if result["first"] and "tried" not in result["first"]:
            result["first"] |= {"tried": True, **carry_out(plant, engine, result["first"]["promised"], options)}
    path.write_text(json.dumps(kept, indent=1) + "\n")


def swept(plant: str, options: argparse.Namespace) -> dict[str, Any]:
    """Sweep with a planted cause, and return what the explanation says."""
    engines = options.engines.split(",")
    with TemporaryDirectory() as folder, beside(plant == "others"):
        record = scale(
            "strong", task_of(plant), workers=[1, WORKERS], engines=engines, steps=options.steps,
            repeats=options.repeats, out=folder,
        )  # fmt: skip
    return {
        "plant": plant,
        "cause": CAUSES[plant],
        "engines": {engine: explained(engine, record.rows, record.findings) for engine in engines},
        "cells": [cell.model_dump(mode="json") for cell in record.cells],
        "measures": [run.model_dump(mode="json") for run in record.measures],
        "settings": {"steps": options.steps, "repeats": options.repeats, "pairs": options.pairs, "workers": WORKERS},
        "hardware": facts.hardware(),
        "versions": facts.versions(),
    }


def explained(engine: str, rows: Sequence[Row], findings: Sequence[Finding]) -> dict[str, Any]:
    """Return what the explanation says of an engine."""
    (finding,) = [finding for finding in findings if f" {engine} " in finding.row]
    (row,) = [row for row in rows if row.cell.key == finding.row]
    assert row.step_ms
    return {
        "step_ms": row.step_ms.value,
        "efficiency": row.efficiency.value if row.efficiency else None,
        "lost_ms": {part.cause: part.percent / 100 * row.step_ms.value for part in finding.parts},
        "headline": finding.headline,
        "sentences": finding.sentences,
        "remedies": [remedy_sentence(remedy) for remedy in finding.remedies],
        "first": {"promised": finding.remedies[0].model_dump(mode="json")} if finding.remedies else None,
    }


def explain_again(path: Path) -> None:
    """Explain the kept runs of a plant as this version does; what a remedy brought stays if it is still the first."""
    kept = json.loads(path.read_text())
    cells, runs = (
        list(map(kind.model_validate, kept[name])) for kind, name in ((Cell, "cells"), (Measure, "measures"))
    )
    again = analyse("strong", cells, runs, kept["hardware"]["cores"])
    for engine, result in kept["engines"].items():
        told = explained(engine, again.rows, again.findings)
        first, before = told.pop("first"), result["first"] or {"promised": {}}
        same = first and all(first["promised"][part] == before["promised"].get(part) for part in ("cause", "command"))
        result |= {**told, "first": {**before, **first} if same else first}
    path.write_text(json.dumps(kept, indent=1) + "\n")


def planted_ms(plant: str, engine: str, options: argparse.Namespace) -> float:
    """Return by how much longer than half of one worker's step the planted cause makes a step of two workers."""
    lost = 1 - 1 / WORKERS
    if plant == "straggler":
        long = [[plants.is_long(rank, step) for step in range(5, options.steps)] for rank in range(WORKERS)]
        both = statistics.mean(any(ranks) for ranks in zip(*long, strict=True))
        return plants.LONG_STEP_MS * (both - statistics.mean(long[0]) / WORKERS)
    if plant in ("gradients", "others", "memory"):
        return measured_ms(plant, engine, options)
    return {
        "slow_rank": plants.SLOW_RANK_MS,
        "serial": plants.SERIAL_MS * lost,
        "small_batch": plants.START_MS * lost,
        "uneven": plants.ROW_MS * (2 - 3 / WORKERS),
        "data": plants.READ_MS * lost,
    }[plant]


def measured_ms(plant: str, engine: str, options: argparse.Namespace) -> float:
    """Return what a cause costs whose size is not known beforehand, from runs with and without it, in turn."""
    more = []
    for _ in range(options.pairs):
        if plant == "gradients":  # against workers that hardly ever exchange
            with_it = train(plant, engine, WORKERS, options)
            without = train(plant, engine, WORKERS, options, sync=f"local-sgd:period={options.steps}")
        elif plant == "others":
            with beside(True):
                with_it = train(plant, engine, WORKERS, options)
            without = train(plant, engine, WORKERS, options)
        else:  # two processes that have nothing to do with each other, against one alone
            command = train_command(plant, "serial", 1, options, {"batch_size": 256, "steps": 2 * options.steps})
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as other:
                with_it = train(plant, "serial", 1, options, batch_size=256)
                other.wait()
            without = train(plant, "serial", 1, options, batch_size=256)
        more.append(with_it.step_ms - without.step_ms)
    return statistics.median(more)


def carry_out(plant: str, engine: str, promised: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Carry out the first remedy, in turn with runs as they were, unless it needs more hosts."""
    remedy = Remedy.model_validate(promised)
    if "more machines" in remedy.sentence:
        return {}
    gains = []
    for _ in range(options.pairs):
        with beside(plant == "others"):
            before = train(plant, engine, WORKERS, options)
        changed = changes(remedy)
        with beside(plant == "others" and remedy.cause != "others"):
            task = plant if changed else BY_HAND[remedy.cause]
            after = train(task, changed.pop("engine", engine), changed.pop("workers", WORKERS), options, **changed)
        gains.append(100 * (after.batch_size / after.step_ms) / (before.batch_size / before.step_ms) - 100)
    return {"brought_pct": gains}


def changes(remedy: Remedy) -> dict[str, Any]:
    """Return the options of a remedy's command."""
    words = remedy.command.split()
    names = [word.removeprefix("--").replace("-", "_") for word in words[::2]]
    return {name: int(word) if word.isdigit() else word for name, word in zip(names, words[1::2], strict=True)}


def task_of(plant: str) -> str:
    """Return the task of a planted cause as the command line names it."""
    return f"{HERE / 'plants.py'}:{plant}"


def train(plant: str, engine: str, workers: int, options: argparse.Namespace, **more: Any) -> Measure:
    """Train once in a process of its own."""
    settings = {"engine": engine, "workers": workers, "steps": options.steps, "eval_every": 10**9, **more}
    with TemporaryDirectory() as folder:
        run = measure(task_of(plant), settings, Path(folder), timeout_s=120)
    if run.failed:
        sys.exit(f"{plant} with {engine} failed: {run.failed}")
    return run


def train_command(
    plant: str, engine: str, workers: int, options: argparse.Namespace, more: dict[str, Any]
) -> list[str]:
    """Return the command of a training run whose record does not matter."""
    settings = {"engine": engine, "workers": workers, "steps": options.steps, **more}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    return [sys.executable, "-m", "manyhands", "train", task_of(plant), *words, f"--out={TRASH.name}"]


TRASH = TemporaryDirectory()
"""Where runs go whose records do not matter."""


@contextmanager
def beside(wanted: bool) -> Iterator[None]:
    """Run a program beside that eats a core, if it is wanted."""
    if not wanted:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spinner:
        try:
            yield
        finally:
            spinner.kill()


def write_table(folder: Path) -> None:
    """Put the table of all records into the README."""
    heads = ("planted", "engine", "planted ms", "found ms", "found", "first remedy", "promised", "brought", "held")
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | ---: | ---: | ---: | --- | --- | --- | --- |"]
    for plant, cause in CAUSES.items():
        path = folder / f"{plant}.json"
        for engine, result in json.loads(path.read_text())["engines"].items() if path.is_file() else ():
            if "planted_ms" not in result:
                continue
            there, landed = result["planted_ms"], result["lost_ms"].get(cause, 0.0)
            cells = [plant.replace("_", " "), engine, f"{there:.2f}", f"{landed:.2f}", f"{100 * landed / there:.0f} %"]
            lines.append(f"| {' | '.join([*cells, *remedy_cells(result['first'])])} |")
    readme = HERE / "README.md"
    before, _, rest = readme.read_text().partition(TABLE)
    _, _, after = rest.partition(TABLE)
    readme.write_text("\n".join([f"{before}{TABLE}", *lines, f"{TABLE}{after}"]))
    print("\n".join(lines))


def remedy_cells(first: dict[str, Any] | None) -> list[str]:
    """Return the cells on the first remedy: what it promised, what it brought, and whether that was within."""
    if first is None:
        return ["none", "", "", ""]
    promised = first["promised"]
    low, high = promised["gain_span"]
    what, *_ = promised["sentence"].partition(": ")
    said = [f"{what} `{promised['command']}`" if promised["command"] else what]
    said.append(f"{promised['gain_pct']:.0f} % ({low:.0f} to {high:.0f})")
    if "brought_pct" not in first:
        return [*said, "not carried out", ""]
    gains = first["brought_pct"]
    middle = statistics.median(gains)
    brought = f"{middle:.0f} % ({min(gains):.0f} to {max(gains):.0f})"
    return [*said, brought, "yes" if low <= middle <= high else "no"]


if __name__ == "__main__":
    main()
