"""How fast runs of one seed train when they take their steps together on a GPU, and where the time goes.

    python benchmarks/lockstep.py                    # images a second by the number of runs, and of `graphed`
    python benchmarks/lockstep.py --profile          # the kernels of a round of 28 runs
    python benchmarks/lockstep.py --tune             # tiles for each product of ResNet-18, with the fastest last

The runs are those of the leaderboard's faces: ResNet-18, 64 px, 10 clients, batches of 128, bfloat16. The images are
noise, which takes the same time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch

import ffalm
from ffalm.algorithms import Algorithm
from ffalm.engines import Job, Training
from ffalm.engines.graphed import GraphedEngine
from ffalm.engines.lockstep import LockstepEngine
from ffalm.leaderboard.board import Board
from ffalm.models import ResNet18
from ffalm.system.hardware import deterministic

#: name, input channels, output channels, side of the images, kernel, stride, how many ResNet-18 has
LAYERS = [
    ("stem", 192, 64, 32, 1, 1, 1), ("layer1", 64, 64, 16, 3, 1, 4), ("layer2, first", 64, 128, 16, 3, 2, 1),
    ("layer2", 128, 128, 8, 3, 1, 3), ("layer3, first", 128, 256, 8, 3, 2, 1), ("layer3", 256, 256, 4, 3, 1, 3),
    ("layer4, first", 256, 512, 4, 3, 2, 1), ("layer4", 512, 512, 2, 3, 1, 3),
]  # fmt: skip
ROWS = 128


def algorithms() -> list[Algorithm]:
    """The settings that the board of faces trains, each once."""
    board = Board.load("faces")
    configs = board.configs(board.cells[0], {}, "faces")
    return [entry.algorithm for config in configs.values() for entry in config.entries]


def federation(rows: int, clients: int = 10) -> ffalm.Federation:
    """Images of noise, as many for each client, and a tenth as many held out."""
    draws = np.random.default_rng(0)

    def part(count: int) -> tuple[Any, ...]:
        images = draws.integers(0, 256, (count, 3, 64, 64), dtype=np.uint8)
        return images, draws.integers(0, 2, count), draws.integers(0, 2, count)

    return ffalm.Federation.from_arrays([part(rows // clients) for _ in range(clients)], validation=part(rows // 10))


def jobs_of(trained: list[Algorithm], rounds: int, rows: int) -> list[Job]:
    """One job of each algorithm, on one federation."""
    plan = Training(rounds=rounds, batch_size=ROWS, lr=0.05, clip=1.0)
    owned = federation(rows)
    model = partial(ResNet18().build, (3, 64, 64), 2)
    device = torch.device("cuda")
    return [Job.of(one, owned, model, plan, 0, device, precision="bf16", channels_last=True) for one in trained]


def timed(engine: Any, jobs: list[Job], rows: int) -> dict[str, float]:
    """Microseconds an image of a run, over the later rounds."""
    seconds: list[float] = []
    with deterministic(4, tf32=True):
        for _, done in engine.train(jobs):
            if done.snapshot.round > 1:
                seconds.append(done.record["seconds"])
    per_round = statistics.median(seconds)
    return {"us an image": 1e6 * per_round / rows, "images a second": rows / per_round}


def profile(rows: int) -> None:
    """The kernels of one round."""
    jobs = jobs_of(algorithms(), 2, rows)
    with deterministic(4, tf32=True):
        training = LockstepEngine().train(jobs)
        for _ in jobs:
            next(training)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as found:
            next(training)
            torch.cuda.synchronize()
    kernels = sorted(found.key_averages(), key=lambda one: -one.self_device_time_total)
    total = sum(one.self_device_time_total for one in kernels)
    print(f"{total / 1e3:.0f} ms on the GPU, {total / len(jobs) / rows:.2f} us an image")
    for one in kernels[:40]:
        print(f"{one.self_device_time_total / 1e3:9.1f} ms {one.count:6d} times  {one.key[:110]}")


CUTS = [
    (128, 64, 64, 4, 3), (128, 64, 64, 4, 4), (128, 128, 64, 8, 3), (128, 128, 64, 4, 3), (128, 128, 64, 8, 4),
    (256, 64, 64, 8, 3), (256, 128, 64, 8, 3), (64, 128, 64, 4, 4), (128, 256, 64, 8, 3), (64, 64, 64, 4, 4),
    (64, 64, 128, 4, 3), (128, 64, 128, 8, 3), (128, 128, 32, 4, 4),
]  # fmt: skip


def one_cut(lanes: int, repeats: int, given: tuple[Any, Any]) -> dict[str, Any] | None:
    """Microseconds an image of one layer's three products with these tiles."""
    from ffalm.engines.lockstep import triton_layers
    from ffalm.engines.lockstep.lane_weights import LaneParameter
    from ffalm.engines.lockstep.layers import Convolution

    (name, inputs, outputs, side, kernel, stride, times), cut = given
    triton_layers.tiles = lambda kind, columns, terms: triton_layers.Tiles(*cut)  # type: ignore[assignment]
    like: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    shared = name == "stem"
    x = torch.randn(1 if shared else lanes, ROWS, side, side, inputs, **like)
    low = torch.randn(lanes, outputs, kernel, kernel, inputs, **like).permute(0, 1, 4, 2, 3)
    weight = LaneParameter(low, low, torch.empty_like(low, dtype=torch.float32))
    how, layers = Convolution(stride, kernel // 2), triton_layers.TritonLayers()
    row: dict[str, Any] = {"layer": name, "cut": cut, "times": times}
    dy = torch.randn(lanes, ROWS, side // stride, side // stride, outputs, **like)
    shape = triton_layers._Shape(x, low, how)
    works = {
        "forward": lambda: layers.convolve(x, weight, how),
        "by_input": lambda: triton_layers._by_input(shape, dy, low),
        "by_weight": lambda: triton_layers._by_weight(shape, x, dy, weight.gradient),
    }
    for kind, work in works.items():
        if shared and kind == "by_input":
            continue
        try:
            work()
            row[kind] = _microseconds(work, repeats) / (lanes * ROWS)
        except Exception as error:  # tiles that do not fit the chip's memory
            row[kind] = float("inf")
            row["error"] = str(error).splitlines()[0][:80]
    return row


def _microseconds(work: Any, repeats: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / max(1, repeats) * 1e3


def tune(lanes: int) -> None:
    """Every layer with every cut: compiled by many processes first, then measured by one."""
    pairs = list(itertools.product(LAYERS, CUTS))
    context = torch.multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(14, mp_context=context) as pool:
        list(pool.map(partial(one_cut, 1, 1), pairs, chunksize=4))
    rows = [one_cut(lanes, 5, pair) for pair in pairs]
    for kind in ("forward", "by_input", "by_weight"):
        for name in dict.fromkeys(row["layer"] for row in rows if row):
            own = sorted((row[kind], row["cut"]) for row in rows if row and row["layer"] == name and kind in row)
            if own:
                print(kind, name, [(round(value, 4), cut) for value, cut in own[:4]])


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, nargs="*", default=[4, 8, 16, 28])
    parser.add_argument("--rows", type=int, default=8400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--tune", action="store_true")
    args = parser.parse_args()
    if args.tune:
        tune(28)
    elif args.profile:
        profile(args.rows)
    else:
        every = algorithms()
        for lanes in args.lanes:
            found = timed(LockstepEngine(), jobs_of(every[:lanes], args.rounds, args.rows), args.rows)
            print(json.dumps({"engine": "lockstep", "runs": lanes, **found}), flush=True)
        found = timed(GraphedEngine(), jobs_of(every[:2], args.rounds, args.rows), args.rows)
        print(json.dumps({"engine": "graphed", "runs": 1, **found}))


if __name__ == "__main__":
    main()
