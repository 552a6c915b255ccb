"""Check a request for advice, and choose the engines, strategies and numbers of workers to consider."""

from collections.abc import Callable, Sequence

from manyhands import launch, registry, sync, tasks
from manyhands.advice.request import AdviceRequest, CheckedAdvice
from manyhands.advice.train import Recipe, Trainer, most_replicas
from manyhands.errors import check
from manyhands.launch.user_folder import calibration_path
from manyhands.machine import facts
from manyhands.model.cluster import Cluster
from manyhands.record.calibration import Calibration, differences, read_calibration
from manyhands.record.texts import count
from manyhands.request import absolute
from manyhands.simulation.devices import ENGINES, check_strategies, engine_on, why_not
from manyhands.simulation.devices import room as room_of
from manyhands.simulation.parts import TaskNetwork
from manyhands.simulation.predict import Predictor
from manyhands.simulation.present import present_calibration
from manyhands.simulation.request import check_batch, find_cluster, read_engines, read_syncs
from manyhands.simulation.simulate import find_calibration
from manyhands.sync import Sync

INEXACT = "local-sgd:period=8"
"""The inexact strategy that is considered besides all exact ones."""
MOST_WORKERS = 1024
"""On a cluster, unless the request allows more."""

Say = Callable[[str], None]


def prepare(request: AdviceRequest, say: Say, begun_s: float) -> CheckedAdvice:
    """Check a request, and find the predictors, strategies and numbers of workers that it means."""
    cluster, cluster_name = find_cluster(request.cluster)
    _check_cost(request.max_cost, cluster)
    engine_on(request.device)
    syncs = _choose_syncs(request.syncs, request.device)
    predictors, circumstances = _make_predictors(request, cluster, say)
    known, network = next((predictor.calibration, predictor.network) for predictor in predictors.values())
    counts, limit = _choose_counts(cluster, request.max_workers, known)
    for sentence in differences(known, facts.hardware(), facts.versions()):
        say(sentence)
    batch_size = check_batch(None, None, network.config.batch_size, network.samples)
    trainer = Trainer(request.task, network.task, 1.0, lambda *progress: None)
    recipes = [Recipe(spec, 2, batch_size, network.config.lr, 0) for spec in syncs]
    syncs = [recipe.sync for recipe in recipes if _can_follow(trainer, recipe, say, named=bool(request.syncs))]
    fit = most_replicas(known.tasks[absolute(request.task)].weight_bytes, network.task)
    _check_memory(syncs, max(counts), fit, say, named=bool(request.syncs))
    return CheckedAdvice(
        request, predictors, cluster_name, syncs, counts, limit, batch_size, fit, circumstances, begun_s
    )


def _check_cost(max_cost: float | None, cluster: Cluster | None) -> None:
    if max_cost is None:
        return
    check(max_cost > 0, f"max-cost must be more than 0, got {max_cost:g}")
    check(cluster is not None, "--max-cost needs a --cluster, whose file has a price_per_hour")
    priced = cluster is not None and cluster.price_per_hour > 0
    check(priced, "--max-cost needs a price: give the cluster's file a price_per_hour")


def _choose_syncs(given: str | Sequence[str], device: str) -> list[str]:
    """Return the strategies to consider, without any given all exact ones that can be predicted on `device`; refuse
    those whose steps a short training cannot count."""
    if not given:
        strategies = map(sync.make, registry.names(sync, Sync))
        exact = [strategy.text for strategy in strategies if strategy.exact and not why_not(strategy, device)]
        return [*sorted(exact, key=lambda name: (name != "allreduce", name)), INEXACT]  # the simplest first
    specs = read_syncs(given)
    check_strategies([sync.make(spec) for spec in specs], device, launch.make(ENGINES[device]).features)
    for spec in specs:
        strategy = sync.make(spec)
        check(
            strategy.exact or (strategy.apart and strategy.lockstep),
            f"advise cannot tell how many steps '{spec}' takes; "
            f"'manyhands simulate --train' can, for one number of workers at a time",
        )
    return specs


def _choose_counts(cluster: Cluster | None, max_workers: int, known: Calibration) -> tuple[list[int], str]:
    """Return the numbers of workers to consider, and what bounds them."""
    check(max_workers >= 0, f"max-workers must be at least 1, got {max_workers}")
    if cluster is None:
        room, limit, node_size = *room_of(known), 1
    else:
        room, limit, node_size = cluster.max_ranks, f"the cluster has room for {cluster.max_ranks:,}", cluster.node_size
        if room > MOST_WORKERS and not max_workers:
            room, limit = MOST_WORKERS, f"no more than {MOST_WORKERS:,} were looked at; --max-workers allows more"
    if max_workers and max_workers < room:
        room, limit = max_workers, f"--max-workers is {max_workers:,}"
    return worker_counts(room, min(node_size, room)), limit


def worker_counts(most: int, node_size: int = 1) -> list[int]:
    """Return numbers of workers, each twice the one before: within one node, then whole nodes."""
    whole_nodes = {node_size * nodes for nodes in _doubled(most // node_size)}
    return sorted(_doubled(min(most, node_size)) | whole_nodes)


def _doubled(most: int) -> set[int]:
    """Return 1, 2, 4, 8 … and `most`; nothing up to 0."""
    return {1 << k for k in range(most.bit_length())} | ({most} if most else set())


def _make_predictors(request: AdviceRequest, cluster: Cluster | None, say: Say) -> tuple[dict[str, Predictor], str]:
    """Return a predictor for each engine to consider, all from the same calibration, and its circumstances."""
    tasks.load(request.task)
    engines, device = _choose_engines(request, cluster), request.device
    for engine in engines:
        # The calibration must have the engine.
        known, kept = find_calibration(request.calibration, request.task, engine_on(device, engine), device)
        check(
            cluster is not None or not known.comms[engine].apart,
            "the calibration is of a network between hosts; give --cluster, or a calibration of this host alone",
        )
    known, circumstances = present_calibration(known, absolute(request.task), engines, None, say)
    network = TaskNetwork(request.task, known.made, kept)
    network.check_calibrated(known)
    predictors = {engine: Predictor(known, network, engine, cluster, way="formula") for engine in engines}
    return predictors, circumstances


def _choose_engines(request: AdviceRequest, cluster: Cluster | None) -> list[str]:
    """Return the engines that were named; without any, those that were calibrated on this host, or on a cluster the
    one that has several nodes."""
    if request.engines:
        engines = read_engines(request.engines)
        check(
            cluster is None or "threads" not in engines or cluster.nodes == 1,
            "engine threads runs on one node; a cluster needs mpi or torch",
        )
        return engines
    device, usual = request.device, [ENGINES[request.device]]
    if cluster is not None or device != "cpu":
        return usual
    known, task = request.calibration, absolute(request.task)
    if not isinstance(known, Calibration):
        known = read_calibration(known or calibration_path(), task, named=known is not None)
    return known.engines(task) or usual


def _can_follow(trainer: Trainer, recipe: Recipe, say: Say, *, named: bool) -> bool:
    """Tell whether a short training counts the steps of a strategy; where it cannot, refuse a strategy that was
    `named`, and say of others that they are left out."""
    followed = trainer.can_follow(recipe)
    if not followed:
        spec = recipe.sync
        check(
            not named,
            f"no short training of '{trainer.name}' can count the steps of '{spec}'; leave it out of --syncs",
        )
        say(f"{spec} is left out: replicas of this network cannot be trained side by side to count its steps")
    return followed


def _check_memory(specs: Sequence[str], most_workers: int, fit: int, say: Say, *, named: bool) -> None:
    """Say up to how many workers inexact strategies are considered, where memory bounds the replicas to train; refuse
    them where only one fits and they were `named`."""
    for spec in specs:
        if sync.make(spec).exact or most_workers <= fit:
            continue
        check(fit > 1 or not named, f"there is no memory to train 2 replicas with '{spec}'; leave it out of --syncs")
        say(
            f"{spec} is left out with more than {count(max(1, fit), 'worker')}: to count its steps as many "
            f"replicas must be trained here, and the free memory has room for no more"
        )
