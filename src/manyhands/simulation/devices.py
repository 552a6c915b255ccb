"""What can be predicted of CPUs and of GPUs: engines, strategies, and how many there are."""

from collections.abc import Sequence

from manyhands.calibration.engines import MODELS
from manyhands.errors import check, unknown
from manyhands.machine import facts
from manyhands.record.calibration import Calibration
from manyhands.record.texts import count
from manyhands.sync import Sync
from manyhands.sync.base import check_features

ENGINES = {"cpu": "mpi", "cuda": "torch"}
"""By device, the engine that is meant without one: the one whose workers may be on several nodes."""


def engine_on(device: str, engine: str = "") -> str:
    """Return the engine, or the usual one of the device; refuse one whose workers have no GPU to themselves."""
    if device not in ENGINES:
        unknown("device to predict", device, ENGINES)
    engine = engine or ENGINES[device]
    if engine not in MODELS:
        unknown("engine that can be calibrated", engine, MODELS)
    check(
        device == "cpu" or engine == ENGINES[device],
        f"engine {engine} takes gradients from GPU to GPU through the host's memory, which is not calibrated; with "
        f"--device cuda use --engine {ENGINES['cuda']}, which has nccl",
    )
    return engine


def why_not(strategy: Sync, device: str) -> str:
    """Return why a strategy cannot be predicted on `device`; empty if it can."""
    if device == "cpu":
        return ""
    if "p2p" in strategy.requires:
        return "its ranks send messages, which go from GPU to GPU through the host's memory and not by nccl"
    if strategy.codec is not None:
        return "what its codec takes on a GPU is not calibrated"
    if strategy.listens:
        return "when a GPU has finished which gradients is not calibrated"
    return ""


def check_strategies(strategies: Sequence[Sync], device: str, features: frozenset[str]) -> None:
    """Refuse strategies that cannot run on GPUs, or cannot be predicted there."""
    for strategy in strategies if device != "cpu" else ():
        check_features(strategy, features, ENGINES[device])
        why = why_not(strategy, device)
        check(not why, f"'{strategy.text}' cannot be predicted on GPUs: {why}; 'manyhands syncs' lists others")


def room(calibration: Calibration) -> tuple[int, str]:
    """Return how many workers the calibrated host has room for, and that as a sentence: one per core or GPU."""
    if calibration.device == "cpu":
        return facts.cores(), f"this host has {facts.cores()} cores"
    gpus = len(calibration.hardware.get("gpus", [])) or 1
    return gpus, f"the calibrated host has {count(gpus, 'GPU')}"


def by_formula(calibration: Calibration, engine: str) -> str:
    """Return a sentence where calls on the calibrated host were not measured; empty if they were."""
    link = calibration.comms[engine].formula
    return f"calls between GPUs are by formula ({link}), not measured: their part of a step is a guess" if link else ""
