"""The Ray cluster that engine `ray` uses: one this process has joined already, one the user names, or a private one.

The private one is as small and as closed as Ray allows: it listens on the loopback interface alone, requires a random
token, has no dashboard, sends no usage statistics, and keeps its files in a folder that is removed with it.
"""

import importlib.util
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.config import RunConfig
from manyhands.errors import ManyhandsError, UserError, check
from manyhands.launch.blas_threads.count import blas_threads, replaced
from manyhands.launch.signals.interrupt import handling, tell
from manyhands.launch.signals.stops import STOPS
from manyhands.machine import facts

MISSING = "engine ray needs the package ray; run: pip install 'manyhands[ray]'"
OBJECT_STORE_BYTES = 80 << 20
"""The least that Ray allows; the tensors travel between the ranks, not through its store."""
REACH_S = 10.0
"""How long the head of a cluster may take to answer."""
MAX_FOLDER = 40
"""The most characters of a folder's path, so that the paths of Ray's sockets in it stay within the system's limit."""


def check_ray(config: RunConfig) -> None:
    """Refuse a run without the package ray, or with an address where nothing answers: Ray would try for minutes."""
    check(importlib.util.find_spec("ray") is not None, MISSING)
    if config.ray_address in ("", "auto"):
        return
    host, _, port = config.ray_address.rpartition(":")
    check(
        bool(host) and port.isdecimal() and "/" not in host,
        f"--ray-address takes HOST:PORT of the cluster's head, or 'auto', got '{config.ray_address}'",
    )
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"no Ray answers at '{config.ray_address}': {error}; check --ray-address") from None


def load() -> Any:
    """Import and return the optional package ray, which takes a while."""
    with _environment({"RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed"}):  # we report rank, host and step
        import ray

    return ray


@contextmanager
def cluster(config: RunConfig, num_ranks: int) -> Iterator[Any]:
    """Yield the module `ray`, joined to a cluster; leave, or end, only what was joined or started here."""
    with redirect_stdout(sys.stderr):  # Ray reports dead workers on stdout, which is for results
        if "ray" in sys.modules and load().is_initialized():
            yield load()
        else:
            with _joined(config.ray_address) if config.ray_address else _started(config, num_ranks) as ray:
                yield ray


@contextmanager
def _joined(address: str) -> Iterator[Any]:
    ray = load()
    local = address.startswith(("auto", "localhost:", "127."))
    with _keeping_sigterm(ray), _on_loopback(ray) if local else nullcontext():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            ray.shutdown()
            hint = "if it wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN; 'ray status' tells whether it runs"
            raise UserError(f"cannot join the Ray cluster at '{address}': {line_of(error)}; {hint}") from error
    try:
        yield ray
    finally:
        _leave(ray)


@contextmanager
def _started(config: RunConfig, num_ranks: int) -> Iterator[Any]:
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": str(blas_threads(config, num_ranks, facts.cores())),  # where it is not set, Ray sets it to 1
    }
    ray = load()
    with _guarded_folder() as folder:
        try:
            with _environment(variables), _keeping_sigterm(ray), _in_new_sessions(ray), _on_loopback(ray):
                _init(ray, num_ranks, folder)
            yield ray
        finally:
            _leave(ray)
            _read_environment_again(ray)


@contextmanager
def _guarded_folder() -> Iterator[Path]:
    """Make a folder for Ray, and start a guard that ends Ray and removes the folder when we leave or are killed."""
    usual = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="mh-ray-", dir=usual if len(usual) <= MAX_FOLDER else "/tmp")
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), folder]
    quiet = subprocess.DEVNULL
    # In a new session, so that Ctrl-C does not reach it.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, start_new_session=True) as guard:
        try:
            yield Path(folder)
        finally:
            assert guard.stdin is not None
            guard.stdin.close()
            guard.wait()


def _init(ray: Any, num_ranks: int, folder: Path) -> None:
    _read_environment_again(ray)
    try:
        ray.init(
            address="local",
            num_cpus=num_ranks,  # Ray starts a process for each ahead, and each rank may reserve a core
            object_store_memory=OBJECT_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(folder),
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ManyhandsError(f"cannot start Ray on this machine: {line_of(error)}") from error


@contextmanager
def forgiving_ray() -> Iterator[None]:
    """Print errors of a Ray that is being left, and go on: the run's result, or its failure, is known by then."""
    try:
        yield
    except Exception as error:
        tell(f"manyhands: note: Ray could not be left in order: {line_of(error)}")


def _leave(ray: Any) -> None:
    """End or leave the cluster, and ignore signals meanwhile: a Ctrl-C would leave half of it running."""
    with handling(STOPS, signal.SIG_IGN), forgiving_ray():
        ray.shutdown(wait_for_processes=True)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while; at the end remove those that Ray has set besides, too."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _keeping_sigterm(ray: Any) -> Iterator[None]:
    """Keep this process's SIGTERM handler: while Ray starts, its own would exit silently, and later crash."""
    handler = signal.getsignal(signal.SIGTERM)
    with replaced(ray._private.utils, "set_sigterm_handler", lambda handler: None):
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)  # Ray's core has replaced it too, below Python


def _in_new_sessions(ray: Any) -> AbstractContextManager[None]:
    """Start Ray's processes in new sessions: a terminal, `timeout` or a batch system signals our whole group."""
    services = ray._private.services
    return replaced(services, "ConsolePopen", partial(services.ConsolePopen, start_new_session=True))


def _on_loopback(ray: Any) -> AbstractContextManager[None]:
    """Have Ray take 127.0.0.1 as this machine's address and listen nowhere else, as it does on macOS by itself.

    If `ray.init` is given that address, Ray replaces it by one that other hosts can reach.
    """
    return replaced(ray._private.ray_constants, "ENABLE_RAY_CLUSTER", False)


def _read_environment_again(ray: Any) -> None:
    """Have Ray forget its token, and whether it needs one: it reads the environment once per process."""
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def line_of(error: BaseException, index: int = 0) -> str:
    """Return one line of an error's message, or the error's type if it has no message."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[index].strip().rstrip(".")
