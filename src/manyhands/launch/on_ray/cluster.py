"""The Ray that engine `ray` uses: the one this process is joined to, one that the user names, or one of our own.

Our own is as small and as closed as Ray allows: it listens on the loopback interface alone, wants a token that was
drawn for it, has no dashboard, reports nothing to anybody, and keeps its files in a folder that is removed with it.
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
from contextlib import contextmanager, nullcontext, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from manyhands.config import RunConfig
from manyhands.errors import ManyhandsError, UserError, check
from manyhands.launch.blas_threads.count import blas_threads
from manyhands.launch.signals.interrupt import tell
from manyhands.launch.signals.stops import STOPS
from manyhands.machine import facts

MISSING = "engine ray needs the package ray; run: pip install 'manyhands[ray]'"
OBJECT_STORE_BYTES = 80 << 20
"""The least that Ray allows; the tensors travel between the ranks, not through its store."""
REACH_S = 10.0
"""How long the head of a cluster may take to answer."""
MAX_FOLDER = 40
"""Characters that a folder may have for the names of Ray's sockets in it to stay within the system's limit."""


def check_ray(config: RunConfig) -> None:
    """Refuse to go on without the package, or with an address where nobody answers: Ray would try for minutes."""
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
    """Import Ray, which takes a while and is not everywhere."""
    with _environment({"RAY_DEDUP_LOGS_SKIP_REGEX": "A worker died or was killed"}):  # we say who, where and when
        import ray

    return ray


@contextmanager
def cluster(config: RunConfig, num_ranks: int) -> Iterator[Any]:
    """Yield the module `ray`, joined to a cluster; leave, or end, only what was joined or started here."""
    with redirect_stdout(sys.stderr):  # Ray's complaints about dead workers go to stdout, which is for results
        if "ray" in sys.modules and load().is_initialized():
            yield load()
        elif config.ray_address:
            with _joined(config.ray_address) as ray:
                yield ray
        else:
            with _started(config, num_ranks) as ray:
                yield ray


@contextmanager
def _joined(address: str) -> Iterator[Any]:
    ray = load()
    local = address.startswith(("auto", "localhost:", "127."))
    with _own_sigterm(ray), _on_loopback(ray) if local else nullcontext():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            ray.shutdown()
            hint = "if it wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN; 'ray status' tells whether it runs"
            raise UserError(f"cannot join the Ray cluster at '{address}': {_first_line(error)}; {hint}") from error
    try:
        yield ray
    finally:
        _leave(ray)


@contextmanager
def _started(config: RunConfig, num_ranks: int) -> Iterator[Any]:
    own = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": str(blas_threads(config, num_ranks, facts.cores())),  # where it is not set, Ray sets it to 1
    }
    with _guarded_folder() as folder:
        try:
            with _environment(own), _own_sigterm(load()), _in_sessions_of_their_own(load()):
                _init(load(), num_ranks, folder)
            yield load()
        finally:
            _leave(load())
            _read_environment_again(load())


@contextmanager
def _guarded_folder() -> Iterator[Path]:
    """Make a folder for a Ray; a process beside us ends the one and removes the other when we leave, or are killed."""
    usual = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="mh-ray-", dir=usual if len(usual) <= MAX_FOLDER else "/tmp")
    command = [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")), folder]
    # A session of its own, so that Ctrl-C does not reach it.
    quiet = subprocess.DEVNULL
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
        with _on_loopback(ray):
            ray.init(
                address="local",
                num_cpus=num_ranks,  # so many processes are started ahead, and each rank may have a core of its own
                object_store_memory=OBJECT_STORE_BYTES,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(folder),
            )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ManyhandsError(f"cannot start Ray on this machine: {_first_line(error)}") from error


@contextmanager
def forgiving_ray() -> Iterator[None]:
    """Say what goes wrong while a Ray is left, and go on: what a run was for is there, or its failure is told."""
    try:
        yield
    except Exception as error:
        tell(f"manyhands: note: Ray could not be left in order: {_first_line(error)}")


def _leave(ray: Any) -> None:
    """End or leave the cluster; a Ctrl-C has no more to end, and would leave half of it running."""
    if threading.current_thread() is not threading.main_thread():
        with forgiving_ray():
            ray.shutdown(wait_for_processes=True)
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in STOPS}
    try:
        with forgiving_ray():
            ray.shutdown(wait_for_processes=True)
    finally:
        for number, handler in before.items():
            if handler is not None:  # as of one that a library has set, which Python cannot set again
                signal.signal(number, handler)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for the processes started meanwhile; take back these and what Ray sets besides."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _own_sigterm(ray: Any) -> Iterator[None]:
    """Keep this process's answer to SIGTERM: while it starts, Ray would leave without a word, and then by a crash."""
    utils, answer = ray._private.utils, signal.getsignal(signal.SIGTERM)
    before = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = before
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, answer)  # Ray's core has replaced it too, below Python


@contextmanager
def _in_sessions_of_their_own(ray: Any) -> Iterator[None]:
    """Let no signal reach Ray's processes that a terminal, `timeout` or a batch system sends to our whole group."""
    services = ray._private.services
    before = services.ConsolePopen
    services.ConsolePopen = partial(before, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = before


@contextmanager
def _on_loopback(ray: Any) -> Iterator[None]:
    """Have Ray take 127.0.0.1 as this machine's address and listen nowhere else, as it does on macOS by itself.

    Named in `ray.init`, Ray replaces that address by one that others can reach.
    """
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _read_environment_again(ray: Any) -> None:
    """Have Ray forget the token, and whether it needs one: it asks the environment once per process."""
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
