"""The image study on a GPU: a plain PyTorch loop against our engines, the same work in one run.

    python benchmarks/images.py [--rounds 6] [--rows 12000] [--size 64] [--lanes 1 2 4 5]

ResNet-18 (ImageNet stem), 10 equal clients, batch 128, one local epoch, FFALM with its dual pass over all local rows,
and validation every round: what a researcher's script does, and what the engines do. Batches and initial weights are
the same, so final accuracies can be compared. Seconds a round exclude the first two (compilation, capture).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn.functional import cross_entropy

import ffalm
from ffalm.engines import Engine, Training
from ffalm.engines.graphed import GraphedEngine
from ffalm.engines.loop import LoopEngine
from ffalm.engines.sampling import batches
from ffalm.models import ResNet18
from ffalm.randomness import Purpose, torch_seeded

WARM_UP = 2


def plain_loop(federation: ffalm.Federation, rounds: int, channels_last: bool, bf16: bool) -> tuple[list[float], float]:
    """What one writes without a library: eager PyTorch with torch's own optimiser and clipping, data on the GPU."""
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    layout = torch.channels_last if channels_last else torch.contiguous_format
    with torch_seeded(0, Purpose.MODEL):
        model = ResNet18().build(tuple(federation.clients[0].x.shape[1:]), 2)
    model = model.cuda().to(memory_format=layout)
    clients = [examples.to(torch.device("cuda")) for examples in federation.clients]
    validation = federation.validation.to(torch.device("cuda"))
    training, dual, seconds, accuracy = Training(rounds=rounds), 0.0, [], 0.0

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            return model((x.float() / 255).to(memory_format=layout))

    def scored(examples: ffalm.Examples) -> tuple[torch.Tensor, torch.Tensor]:
        model.eval()
        losses, hits = [], []
        with torch.no_grad():
            for first in range(0, len(examples), 1024):
                logits = forward(examples.x[first : first + 1024])
                y = examples.y[first : first + 1024]
                losses.append(cross_entropy(logits, y, reduction="none"))
                hits.append(logits.argmax(-1) == y)
        return torch.cat(losses), torch.cat(hits)

    for number in range(1, rounds + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        sent = {name: value.clone() for name, value in model.state_dict().items()}
        mean = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in sent.items()}
        gaps = 0.0
        for client, examples in enumerate(clients):
            model.load_state_dict(sent)
            model.train()
            optimiser = torch.optim.SGD(model.parameters(), lr=training.lr_at(number))
            for rows in batches(0, number, client, len(examples), training):
                batch = examples.take(rows.cuda())
                losses = cross_entropy(forward(batch.x), batch.y, reduction="none")
                gap = losses[batch.group == 0].mean() - losses[batch.group == 1].mean()
                optimiser.zero_grad()
                (losses.mean() + dual * gap + gap**2).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimiser.step()
            losses, _ = scored(examples)
            gaps += float(losses[examples.group == 0].mean() - losses[examples.group == 1].mean()) / len(clients)
            for name, value in model.state_dict().items():
                mean[name] += value.double() / len(clients)
        dual += 2.0 * 1.05 ** (number - 1) * gaps
        model.load_state_dict({name: value.to(sent[name].dtype) for name, value in mean.items()})
        accuracy = float(scored(validation)[1].float().mean())
        seconds.append(time.perf_counter() - began)
    return seconds, accuracy


def ours(
    federation: ffalm.Federation, rounds: int, engine: Engine, precision: str, compiled: bool = False
) -> tuple[list[float], float]:
    """The same through `ffalm.simulate`."""
    fast = precision != "fp32"
    result = ffalm.simulate(
        ffalm.FFALM(),
        federation,
        model=ResNet18(),
        rounds=rounds,
        engine=engine,
        device="cuda",
        precision=precision,
        channels_last=fast,
        compiled=compiled,
    )
    return [record["seconds"] for record in result.history], result.history[-1]["accuracy"]


def main() -> None:
    """Print one line a way of doing it, with images a second and the ratio to the plain TF32 loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--lanes", type=int, nargs="+", default=[1, 2, 4, 5], help="clients in flight to try")
    parser.add_argument("--only", default="", help="ways whose name holds this text, beside the plain loop")
    asked = parser.parse_args()
    federation = ffalm.load("faces", rows=asked.rows, size=asked.size, clients=10, partition="iid")
    images = sum(len(examples) for examples in federation.clients)

    def in_flight(lanes: int, compiled: bool = False) -> Callable[[], tuple[list[float], float]]:
        return lambda: ours(federation, asked.rounds, GraphedEngine(lanes), "bf16", compiled)

    ways = {
        "plain loop, TF32": lambda: plain_loop(federation, asked.rounds, False, False),
        "plain loop, bf16 channels_last": lambda: plain_loop(federation, asked.rounds, True, True),
        "loop, fp32": lambda: ours(federation, asked.rounds, LoopEngine(), "fp32"),
        "loop, tf32 channels_last": lambda: ours(federation, asked.rounds, LoopEngine(), "tf32"),
        "graphed, fp32": lambda: ours(federation, asked.rounds, GraphedEngine(), "fp32"),
        "graphed, tf32 channels_last": lambda: ours(federation, asked.rounds, GraphedEngine(), "tf32"),
        **{f"graphed, bf16, {lanes} in flight": in_flight(lanes) for lanes in asked.lanes},
        **{f"the same compiled, {lanes} in flight": in_flight(lanes, True) for lanes in asked.lanes},
    }
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; {images} images a round, {asked.size} px")
    base = None
    for name, way in ways.items():
        if base is not None and asked.only not in name:
            continue
        seconds, accuracy = way()
        typical = statistics.median(seconds[WARM_UP:])
        base = base or typical
        print(
            f"{name:32s} {typical:7.3f} s/round {images / typical:9.0f} images/s {base / typical:6.2f}x "
            f"first {seconds[0]:6.2f} s  accuracy {accuracy:.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
