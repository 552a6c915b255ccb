"""A real Slurm of two virtual nodes on this machine, from Debian's packages; it needs root."""

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
NODES = ("n1", "n2")
START_S = 60

CONFIG = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=pmi2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d-%n.pid
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Say why there can be no Slurm here; nothing if there can."""
    absent = [name for name in PROGRAMS if not shutil.which(name)]
    if absent:
        return f"Slurm is not installed: there is no {', '.join(absent)}"
    return "" if os.getuid() == 0 else "slurmd needs root"


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Start it; give the environment in which srun finds it; end it."""
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    key, config = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    config.write_text(CONFIG.format(folder=folder, host=host, ports=_free_ports(3)))
    env = {**os.environ, "SLURM_CONF": str(config)}
    files = {name: f"{folder}/munge.{name}" for name in ("socket", "pid", "log", "seed")}
    options = [f"--{name}{'' if name == 'socket' else '-file'}={path}" for name, path in files.items()]
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", *options],
        ["slurmctld", "-D", "-f", str(config)],
        *(["slurmd", "-D", "-N", node, "-f", str(config)] for node in NODES),
    ]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        with open(folder / "daemons.log", "wb") as log:
            for command in commands:
                daemons.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder))
                if command[0] == "munged":
                    _wait(lambda: Path(files["socket"]).exists(), daemons)
        _wait(lambda: _idle_nodes(env) == len(NODES), daemons)
        yield env
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _wait(condition, daemons) -> None:  # type: ignore[no-untyped-def]
    give_up = time.monotonic() + START_S
    while not condition():
        assert all(daemon.poll() is None for daemon in daemons), "a daemon of Slurm has ended"
        assert time.monotonic() < give_up, "Slurm does not start"
        time.sleep(0.1)


def _idle_nodes(env: dict[str, str]) -> int:
    command = ["sinfo", "--noheader", "--Node", "--states=idle", "--format=%N"]
    return len(subprocess.run(command, env=env, capture_output=True, text=True, check=False).stdout.split())


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
