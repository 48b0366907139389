"""Train a chain of small layers by a schedule of dnnp, one process a rank, with PyTorch on CPUs.

    dnnp-schedule --shape V --devices 2 -n 4 | dnnp-export --to torch-csv > schedule.csv
    python -m dnnp.samples.torch_stages schedule.csv

Every stage is one layer. The gradients are compared with those of all layers in one process; the
program ends with status 1 if they differ. It needs PyTorch 2.5 or newer, which dnnp does not.
"""

from __future__ import annotations

import argparse
import copy
import csv
import re
import socket
import sys
from collections.abc import Sequence
from typing import Any

CELL = re.compile(r"(\d+)([FBIW])(\d+)")
WIDTH, ROWS, MOST = 8, 2, 1e-6
"""Numbers of a layer, samples of a micro-batch, and how far gradients may be from each other."""


def cells(rows: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    """Stage and micro-batch of each cell."""
    found = [CELL.fullmatch(cell) for row in rows for cell in row]
    return [(int(match[1]), int(match[3])) for match in found if match]


def train(rank: int, path: str, rows: Sequence[Sequence[str]], port: int) -> None:
    """What a rank does: one step of its stages."""
    import torch
    from torch import distributed, nn
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", address, rank=rank, world_size=len(rows))
    count = 1 + max(stage for stage, _ in cells(rows))
    batches = 1 + max(batch for _, batch in cells(rows))
    mine = sorted({stage for stage, _ in cells([rows[rank]])})
    torch.manual_seed(0)  # all ranks have the same layers, and train their own
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]
    whole = nn.Sequential(*copy.deepcopy(layers))
    samples, target = torch.randn(2, batches * ROWS, WIDTH)

    def stage(number: int) -> Any:
        example = torch.zeros(ROWS, WIDTH)
        return PipelineStage(
            layers[number], number, count, torch.device("cpu"),
            input_args=(example.clone().requires_grad_(number > 0),),
            output_args=example.clone().requires_grad_(),
        )  # fmt: skip

    loss = nn.functional.mse_loss
    schedule = _PipelineScheduleRuntime([stage(number) for number in mine], batches, loss_fn=loss)
    schedule._load_csv(path)
    ends = {"target": target} if count - 1 in mine else {}
    schedule.step(*([samples] if 0 in mine else []), **ends)
    loss(whole(samples), target).backward()
    pairs = [
        (one.grad, other.grad)
        for number in mine
        for one, other in zip(layers[number].parameters(), whole[number].parameters(), strict=True)
    ]
    worst = max(float((one - other).abs().max()) for one, other in pairs)
    distributed.barrier()
    distributed.destroy_process_group()
    print(f"rank {rank}: stages {mine}, gradients differ by {worst:.1e} at most", flush=True)
    if worst > MOST:
        raise SystemExit(1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        prog="python -m dnnp.samples.torch_stages", description=__doc__.splitlines()[0]
    )
    parser.add_argument("schedule", metavar="CSV", help="what dnnp-export --to torch-csv wrote")
    path = parser.parse_args(arguments).schedule
    try:
        from torch import multiprocessing
    except ImportError:
        print("torch_stages: PyTorch is not installed: pip install torch", file=sys.stderr)
        return 7
    with open(path, newline="") as file:
        rows = list(csv.reader(file))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    try:
        multiprocessing.spawn(train, (path, rows, port), nprocs=len(rows))
    except multiprocessing.ProcessExitedException:
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
