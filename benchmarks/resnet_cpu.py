"""ResNet-18 on a CPU: seconds a training step of `loop` against the same step by hand, channels_last float32.

    python benchmarks/resnet_cpu.py [--steps 6] [--threads 2]

64 px, batch 128, ImageNet stem. By hand is a bare loop with torch's own optimiser and clipping; `loop` adds a
federation of one client, FedAvg's weights, the average and nothing to validate. Both run alternately.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch.nn.functional import cross_entropy

import ffalm
from ffalm.models import ResNet18

BATCH, PIXELS = 128, 64


def by_hand(x: torch.Tensor, y: torch.Tensor, steps: int, layout: torch.memory_format) -> float:
    """Seconds a step of a bare loop."""
    model = ResNet18().build((3, PIXELS, PIXELS), 2).to(memory_format=layout)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    model.train()
    began = time.perf_counter()
    for step in range(steps):
        rows = slice(step * BATCH, (step + 1) * BATCH)
        optimiser.zero_grad()
        cross_entropy(model((x[rows].float() / 255).contiguous(memory_format=layout)), y[rows]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return (time.perf_counter() - began) / steps


def by_loop(federation: ffalm.Federation, steps: int, threads: int) -> float:
    """Seconds a step of a round of the reference engine, its average included."""
    result = ffalm.simulate(
        "fedavg", federation, model="resnet18", rounds=1, engine="loop", device="cpu", threads=threads
    )
    return float(result.history[0]["seconds"]) / steps


def main() -> None:
    """Print the medians of three rounds of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    rows = asked.steps * BATCH
    x = torch.randint(0, 256, (rows, 3, PIXELS, PIXELS), dtype=torch.uint8)
    y, group = torch.arange(rows) % 2, torch.arange(rows) // 2 % 2
    federation = ffalm.Federation.from_arrays([(x, y, group)])
    ways = {
        "by hand, NCHW": lambda: by_hand(x, y, asked.steps, torch.contiguous_format),
        "by hand, channels_last": lambda: by_hand(x, y, asked.steps, torch.channels_last),
        "loop": lambda: by_loop(federation, asked.steps, asked.threads),
    }
    seconds = {name: [way() for _ in range(3)] for name, way in ways.items()}
    for name, found in seconds.items():
        print(f"{name:24s} {statistics.median(found):.3f} s a step (shortest {min(found):.3f})")


if __name__ == "__main__":
    main()
