"""Draw a sweep's speed-up over workers: python benchmarks/sweep/picture.py RECORD.json docs/scaling.png

With a third word, such as cnn, only the tasks that begin with it are drawn.
"""

import json
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LABEL = re.compile(r"(?P<task>\S+) batch (?P<batch>\S+) cpu (?P<engine>\S+) (?P<workers>\d+)$")


def main() -> None:
    """Read the record, take medians, draw one line per task and engine."""
    record = json.loads(Path(sys.argv[1]).read_text())
    rates: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    for run in record["runs"]:
        if label := LABEL.match(run["row"]):
            name = f"{label['task']}, batch {label['batch']}"
            rates[name, label["engine"], int(label["workers"])].append(run["samples_per_s"])
    medians = {key: statistics.median(values) for key, values in rates.items()}
    only = sys.argv[3] if len(sys.argv) > 3 else ""
    tasks = sorted({name for name, _, _ in medians if name.startswith(only)})
    width = 4 if len(tasks) > 1 else 6.4
    figure, row = plt.subplots(1, len(tasks), figsize=(width * len(tasks), 3.6), sharey=True, squeeze=False)
    panels = row[0]
    for panel, name in zip(panels, tasks, strict=True):
        serial = medians[name, "serial", 1]
        for engine, style in (("mpi", "o-"), ("threads", "s--")):
            counts = sorted(w for n, e, w in medians if n == name and e == engine)
            speed_up = [1.0, *(medians[name, engine, w] / serial for w in counts)]
            panel.plot([1, *counts], speed_up, style, label=engine)
            panel.annotate(
                f"{speed_up[-1]:.1f}×",
                (counts[-1], speed_up[-1]),
                textcoords="offset points",
                xytext=(0, 5),
                horizontalalignment="center",
            )
        panel.plot([1, max(counts)], [1, max(counts)], ":", color="gray", label="ideal")
        panel.set(title=f"{name} ({serial:,.0f} samples/s alone)", xlabel="workers", xscale="log", yscale="log")
        panel.set_xticks([1, *counts], [str(c) for c in (1, *counts)])
        panel.set_yticks([0.25, 0.5, 1, 2, 4, 8, 16], ["¼", "½", "1", "2", "4", "8", "16"])
        panel.set_ylim(0.2 if len(tasks) > 1 else 0.8, 20)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("speed-up over one worker")
    panels[0].legend()
    hardware = record["hardware"]
    figure.suptitle(f"{hardware['cores']} cores, {hardware['cpu']}: one core per worker", fontsize=10)
    figure.tight_layout()
    figure.savefig(sys.argv[2], dpi=130)


if __name__ == "__main__":
    main()
