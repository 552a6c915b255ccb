"""The same loop on several workers with PyTorch's DistributedDataParallel over gloo, one thread each.

Usage: torchrun --standalone --nproc-per-node 2 ddp.py mlp --batch-size 64 --steps 1000      (rank 0 prints JSON)
"""

import argparse
import json
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from models import PROBLEMS, mean
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train and let rank 0 print the milliseconds of each step, and the seconds of the whole loop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--batch-size", type=int, required=True, help="global: each rank takes its share")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--bucket-view", action="store_true", help="let gradients live in DDP's buckets")
    parser.add_argument("--static-graph", action="store_true", help="tell DDP that the graph never changes")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    problem = PROBLEMS[args.problem]
    x, y = problem.data()
    model = DistributedDataParallel(
        problem.model(), gradient_as_bucket_view=args.bucket_view, static_graph=args.static_graph
    )
    optimizer = problem.optimizer(model.parameters())
    order = torch.Generator().manual_seed(0)  # the same on every rank
    torch.manual_seed(rank)  # dropout draws differently on each

    step_ms, losses, loop_s, samples = [], [], 0.0, 0
    dist.barrier()
    while len(step_ms) < args.steps:
        batches = torch.randperm(len(x), generator=order).split(args.batch_size)
        loop_begun = time.perf_counter()
        for idx in batches[: args.steps - len(step_ms)]:
            begun = time.perf_counter()
            share = len(idx) // size
            mine = idx[rank * share : (rank + 1) * share]
            xb, yb = x[mine], y[mine]
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(xb), yb)
            loss.backward()
            optimizer.step()
            step_ms.append((time.perf_counter() - begun) * 1e3)
            losses.append(loss.detach())
            samples += len(idx)
        loop_s += time.perf_counter() - loop_begun

    if rank == 0:
        print(json.dumps({"step_ms": step_ms, "loop_s": loop_s, "samples": samples, "loss": mean(losses[-20:])}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
