"""What `manyhands runs show` prints of one run: its result, speed, exchange, settings, machine and ranks."""

from rich.console import Console
from rich.text import Text

from manyhands.cli.tables import print_facts, print_table
from manyhands.record import RunRecord
from manyhands.record.texts import NOTHING, count, duration, fixed, num_bytes, percent, rate, share, workers_name
from manyhands.report.tables.runs import ranks_table


def print_record(console: Console, record: RunRecord) -> None:
    """Print a record in groups, then a table of its ranks."""
    console.print(Text(f"{record.id} ({record.status})", "bold"), soft_wrap=True)
    groups = {
        "result": _result(record),
        "speed": _speed(record),
        "exchange": _exchange(record),
        "settings": _settings(record),
        "machine": _machine(record),
    }
    width = max(len(name) for facts in groups.values() for name in facts) + 2
    for title, facts in groups.items():
        console.print(Text(f"\n{title}", "italic"), soft_wrap=True)
        print_facts(console, {f"  {name}": text for name, text in facts.items()}, width)
    console.print()
    print_table(console, ranks_table([record]), "every rank's time in training, and its memory")


def _result(r: RunRecord) -> dict[str, str]:
    losses = [fixed(loss, 4) for loss in r.train_loss[-5:]]
    before = "… " if len(r.train_loss) > len(losses) else ""
    return {
        "accuracy": f"{percent(100 * r.test_accuracy, 2)} of the test samples",
        "test loss": fixed(r.test_loss, 4),
        "train loss": f"{before}{', '.join(losses) or NOTHING} (mean of each epoch)",
        "trained": f"{count(r.steps, 'step')}, {count(r.samples, 'sample')}, {count(r.epochs, 'epoch')} begun"
        + (f"; resumed at step {r.resumed_from:,}" if r.resumed_from else ""),
        "weights sha256": r.weights_sha256,
        **({"weights missing": r.weights_missing} if r.weights_missing else {}),
        **({"warnings": "; ".join(r.warnings)} if r.warnings else {}),
    }


def _speed(r: RunRecord) -> dict[str, str]:
    steady, busy = r.steady, r.compute_s + r.comm_s + r.wait_s
    parts = (("compute", steady.compute_ms), ("serial", steady.serial_ms), ("comm", steady.comm_ms))
    split = ", ".join(f"{name} {share(ms, steady.step_ms)}" for name, ms in (*parts, ("wait", steady.wait_ms)))
    median, late = (duration(ms / 1e3 or None) for ms in (r.step_ms.median, r.step_ms.p90))
    return {
        "samples/s": rate(r.samples_per_s),
        **({"disturbed": f"{r.others} meanwhile"} if r.others is not None and r.others.disturbed else {}),
        **({"BLAS threads": f"{r.blas_threads} in each worker"} if r.blas_threads else {}),
        "step": f"{median} (median), {late} (90th percentile)" if r.step_ms.p90 else NOTHING,
        "warmed-up step": f"{duration(steady.step_ms / 1e3)}: {split}" if steady.step_ms else NOTHING,
        "training time": f"{duration(busy)}: compute {share(r.compute_s, busy)}, comm {share(r.comm_s, busy)}, "
        f"wait {share(r.wait_s, busy)} (mean of the workers)"
        if busy
        else NOTHING,
        "total time": f"{duration(r.total_s)}, with {duration(r.read_s)} to read data and {duration(r.eval_s)} to test",
    }


def _exchange(r: RunRecord) -> dict[str, str]:
    steps = r.steps - r.resumed_from
    each = f"; {num_bytes(r.bytes_sent / steps)} a step" if steps > 0 else ""
    return {"sent": f"{num_bytes(r.bytes_sent)} in {count(r.messages, 'message')}, all ranks together{each}"}


SHOWN = {"task", "engine", "workers", "threads", "sync", "batch_size", "lr", "seed", "device"}
"""Settings that are told anyway; of the others, those that are not what they are by themselves."""


def _settings(r: RunRecord) -> dict[str, str]:
    config = r.config
    further = [
        f"{name.replace('_', '-')} {value}"
        for name, value in config.model_dump(exclude_defaults=True).items()
        if name not in SHOWN
    ]
    return {
        "task": r.task,
        "workers": f"{workers_name(r.engine, r.workers, r.threads)}, {r.sync}",
        "batch size": f"{r.batch_size:,}",
        "learning rate": f"{config.lr:g}",
        "seed": str(r.seed),
        "device": r.device,
        "parameters": f"{r.parameters:,}",
        **({"further": ", ".join(further)} if further else {}),
    }


def _machine(r: RunRecord) -> dict[str, str]:
    about = dict(r.hardware)
    gpus = ", ".join(map(str, about.pop("gpus", None) or [])) or "none"
    cores, cpu, memory = about.pop("cores", NOTHING), about.pop("cpu", NOTHING), about.pop("memory_gib", NOTHING)
    return {
        **{name: str(value) for name, value in about.items()},
        "processor": f"{cores} cores of {cpu}, {memory} GiB",
        "GPUs": gpus,
        "versions": ", ".join(f"{name} {version}" for name, version in r.versions.items()),
    }
