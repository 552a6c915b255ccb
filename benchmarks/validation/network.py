"""Hold predictions for several hosts against runs on them; only two hosts were calibrated.

Usage: python benchmarks/validation/network.py --out DIR [--rate 1gbit|100mbit] [--workers 2,3,4] [--tasks mlp,...]
       [--rounds 3] [--runs 2]

The hosts are network namespaces of this machine, each with a link of this rate to a switch, which is a bridge. Needs
root, `ip`, `tc` and `unshare`. All is taken down again at the end, also on Ctrl-C. DIR gets the calibration, the
predictions (before the first run), every run's figures and the ledger, which `manyhands report` draws.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import host
import psutil
from network_host import hurry

from manyhands import sync
from manyhands.calibration.calibrate import calibrate
from manyhands.simulation.simulate import simulate
from manyhands.validation.validate import PERIODS, PredictedCase

HERE = Path(__file__).resolve().parent
ROWS = 16
"""Of each worker: so few that the cores, which all hosts share, wait for the links."""
LATEST_MS = 50
"""How long a packet may queue at a port: that no packet is ever lost, as on links that hold the sender back."""


@dataclass(frozen=True)
class Rate:
    """How the links are shaped, so that they carry this rate and no more, even for a few packets."""

    burst_bytes: int
    """What may pass at once after a pause; it must have room for a packet."""
    frame_bytes: int
    """Of a packet; larger ones at the greater rate, or the cores would be the limit."""
    frames: int
    """Packets that pass the stack as one."""
    tasks: str
    """What is trained: networks of so many weights that the wire takes longer than Python does."""


RATES = {
    "1gbit": Rate(20_000, 9000, 2, "mlp,dnn,recommender"),
    "100mbit": Rate(3100, 1500, 1, "mlp,recommender,softmax"),
}
PATIENT = {"MPIR_CVAR_CH4_PROGRESS_THROTTLE": "1", "MPIR_CVAR_CH4_PROGRESS_THROTTLE_NO_PROGRESS_COUNT": "1"}
"""Let MPICH's ranks sleep while they wait, since all hosts share the cores."""
ALLOWED = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
NAME, BRIDGE, NET = "mhhost", "mhbridge", "10.77.0"


def main() -> None:
    """Set up the hosts, calibrate two, predict, run, compare."""
    asked = read_arguments()
    out: Path = asked.out
    out.mkdir(parents=True, exist_ok=True)
    say = lambda *words: print(f"{time.strftime('%H:%M:%S')}", *words, file=sys.stderr, flush=True)  # noqa: E731
    tasks, kept = (asked.tasks or RATES[asked.rate].tasks).split(","), out / "calibration.json"
    num_hosts = max(map(int, asked.workers.split(","))) + 1  # one for the server
    with hosts(num_hosts, asked.rate) as names, hurried_kernel():
        (out / "hosts.txt").write_text("".join(f"{name}\n" for name in names))
        os.environ.update(PATIENT)
        os.environ["HYDRA_HOST_FILE"] = str((out / "hosts.txt").resolve())
        os.environ.update(HYDRA_LAUNCHER="ssh", HYDRA_LAUNCHER_EXEC=str(HERE / "network_host.py"), HYDRA_IFACE=BRIDGE)
        if not kept.exists():
            made = calibrate(tasks, path=kept, engines=["mpi"], ranks=2, budget_s=asked.budget, say=say)
            comm = made.comms["mpi"]
            say(f"{comm.hosts} hosts: α {comm.latency_us:.0f} µs, 1/β {8 * comm.gigabyte_per_s:.3f} Gb/s")
        cases = [case for task in tasks for case in predicted(task, asked.workers, kept, out)]
        say(f"predicted {len(cases)} cases")
        for turn in range(asked.rounds):
            for found in host.one_round(cases, turn, asked.runs, say):
                with open(out / host.RUNS, "a") as file:
                    file.write(found.model_dump_json() + "\n")
            host.write_ledger(out, cases)


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rate", choices=RATES, default="1gbit")
    parser.add_argument("--workers", default="2,3,4")
    parser.add_argument("--tasks", default="", help="instead of those of the rate")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=2, help="of each case in a round, and in one world of MPI ranks")
    parser.add_argument("--budget", type=float, default=90.0)
    return parser.parse_args()


def predicted(task: str, workers: str, calibration: Path, out: Path) -> list[PredictedCase]:
    """Predict a task with every strategy and number of workers, and write it down."""
    found = simulate(
        task, workers=workers, syncs=host.SYNCS, engine="mpi", calibration=calibration, batch_per_worker=ROWS
    )
    (out / f"prediction-mpi-{task}.json").write_text(found.model_dump_json(indent=1) + "\n")
    fewest = {row.sync: PERIODS * sync.make(row.sync).period for row in found.rows if "period" in row.sync}
    steps = [max(host.steps_of(row.step_ms.value), fewest.get(row.sync, 0)) for row in found.rows]
    return [PredictedCase("mpi", row, found, num) for row, num in zip(found.rows, steps, strict=True)]


@contextmanager
def hosts(num: int, rate: str) -> Iterator[list[str]]:
    """Set up so many hosts, and take them down again."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    for tool in ("ip", "tc", "unshare"):
        if not shutil.which(tool):
            sys.exit(f"there is no '{tool}' here; install iproute2 and util-linux")
    if os.geteuid() != 0:
        sys.exit("only root may make network namespaces")
    names = [f"{NAME}{i + 1}" for i in range(num)]
    _take_down(names)
    allowed = ALLOWED.read_text()
    try:
        # As on most systems; BBR, which some kernels prefer, measures the link anew all the time.
        ALLOWED.write_text(f"{allowed.strip()} cubic")
        _do(f"ip link add {BRIDGE} mtu {RATES[rate].frame_bytes} type bridge")
        _do(f"ip addr add {NET}.254/24 dev {BRIDGE}")
        _do(f"ip link set {BRIDGE} up")
        for i, name in enumerate(names):
            _add_host(name, i + 1, rate)
        yield names
    finally:
        _take_down(names)
        ALLOWED.write_text(allowed)


def _add_host(name: str, number: int, rate: str) -> None:
    port, shape = f"{name}p", RATES[rate]
    limit = LATEST_MS * (10**6 if rate == "1gbit" else 10**5) // 8
    _do(f"ip netns add {name}")
    _do(f"ip link add {port} type veth peer name eth0 netns {name}")
    _do(f"ip link set {port} master {BRIDGE} up")
    _do(f"ip -n {name} addr add {NET}.{number}/24 dev eth0")
    for device in ("lo", "eth0"):
        _do(f"ip -n {name} link set {device} up")
    for where, device in (("", port), (f"-n {name}", "eth0")):
        _do(f"ip {where} link set {device} mtu {shape.frame_bytes} gso_max_segs {shape.frames}")
        _do(f"tc {where} qdisc add dev {device} root tbf rate {rate} burst {shape.burst_bytes} limit {limit}")
    _do(f"ip netns exec {name} sh -c 'echo cubic > /proc/sys/net/ipv4/tcp_congestion_control'")


def _take_down(names: list[str]) -> None:
    for name in names:
        _do(f"ip link del {name}p", may_fail=True)
        _do(f"ip netns del {name}", may_fail=True)
    _do(f"ip link del {BRIDGE}", may_fail=True)


def _do(command: str, *, may_fail: bool = False) -> None:
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    if done.returncode != 0 and not may_fail:
        sys.exit(f"'{command}' failed: {done.stderr.strip()}")


@contextmanager
def hurried_kernel() -> Iterator[None]:
    """Let the kernel's network threads have a core at once, since they stand for cards and a switch."""
    threads = [
        process.pid for process in psutil.process_iter(["name"]) if process.info["name"].startswith("ksoftirqd/")
    ]
    try:
        for pid in threads:
            hurry(pid)
        yield
    finally:
        for pid in threads:
            hurry(pid, 0, 0)


if __name__ == "__main__":
    main()
