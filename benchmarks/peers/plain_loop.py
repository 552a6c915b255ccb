"""The loop that a competent user writes by hand: one worker, one thread, autograd, torch's own optimiser.

Usage: python plain_loop.py mlp --batch-size 64 --steps 1000      (prints one JSON object)
"""

import argparse
import json
import time

import torch
import torch.nn.functional as F
from models import PROBLEMS, mean


def main() -> None:
    """Train and print the milliseconds of each step, and the seconds of the whole loop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("problem", choices=PROBLEMS)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    problem = PROBLEMS[args.problem]
    x, y = problem.data()
    model = problem.model()
    optimizer = problem.optimizer(model.parameters())

    step_ms, losses, loop_s, samples = [], [], 0.0, 0
    while len(step_ms) < args.steps:
        batches = torch.randperm(len(x)).split(args.batch_size)
        loop_begun = time.perf_counter()
        for idx in batches[: args.steps - len(step_ms)]:
            begun = time.perf_counter()
            xb, yb = x[idx], y[idx]
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(xb), yb)
            loss.backward()
            optimizer.step()
            step_ms.append((time.perf_counter() - begun) * 1e3)
            losses.append(loss.detach())
            samples += len(idx)
        loop_s += time.perf_counter() - loop_begun

    print(json.dumps({"step_ms": step_ms, "loop_s": loop_s, "samples": samples, "loss": mean(losses[-20:])}))


if __name__ == "__main__":
    main()
