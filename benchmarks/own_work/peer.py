"""The trainings of `examples/own_work` as a PyTorch user writes them: DistributedDataParallel or Accelerate, on gloo.

Started by torchrun: peer.py PROBLEM ddp|accelerate STEPS. The last line on stdout is JSON: the times of rank 0's steps.
BatchNorm layers normalise over a process's own rows, since torch's SyncBatchNorm needs GPUs.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from problems import Problem, problem
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def ddp(given: Problem) -> tuple:
    """Return model, optimiser, batches and a backward function, with DistributedDataParallel."""
    dist.init_process_group("gloo")
    model = DistributedDataParallel(given.model)
    sampler = DistributedSampler(given.dataset, shuffle=True, seed=0)
    loader = DataLoader(given.dataset, given.batch_size // 2, sampler=sampler, collate_fn=given.collate)

    def batches() -> Iterator:
        for epoch in itertools.count():
            sampler.set_epoch(epoch)
            yield from loader

    return model, given.optimizer, batches(), lambda loss: loss.backward()


def accelerate(given: Problem) -> tuple:
    """Return the same, with Accelerate."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    loader = DataLoader(given.dataset, given.batch_size // 2, shuffle=True, collate_fn=given.collate)
    model, optimizer, loader = accelerator.prepare(given.model, given.optimizer, loader)
    forever = itertools.chain.from_iterable(itertools.repeat(loader))
    return model, optimizer, forever, accelerator.backward


def main() -> None:
    """Train, and print the times."""
    name, peer, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    given = problem(name)
    model, optimizer, batches, backward = {"ddp": ddp, "accelerate": accelerate}[peer](given)
    scheduler = given.scheduler(given.optimizer) if given.scheduler else None
    step_ms, losses = [], []
    begun = time.perf_counter()
    for _ in range(steps):
        started = time.perf_counter()
        x, y = next(batches)
        optimizer.zero_grad()
        output = model(**x) if isinstance(x, dict) else model(x)
        loss = given.loss(output, y)
        backward(loss)
        if given.clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), given.clip)
        optimizer.step()
        if scheduler:
            scheduler.step()
        losses.append(loss.item())
        step_ms.append(1e3 * (time.perf_counter() - started))
    loop_s = time.perf_counter() - begun
    if dist.get_rank() == 0:
        print(json.dumps({"step_ms": step_ms, "loop_s": loop_s, "loss": sum(losses[-10:]) / len(losses[-10:])}))
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads abort some processes on their way out, after all is done


if __name__ == "__main__":
    main()
