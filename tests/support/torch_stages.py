"""Train a chain of small layers by a schedule of dnnp, one process a rank, with PyTorch on CPUs.

    dnnp-schedule --shape V --devices 2 -n 4 | dnnp-export --to torch-csv > schedule.csv
    cd tests && python -m support.torch_stages schedule.csv

Every stage is one layer. With a plan, `dnnp-export --to torch-plan`, the module has as many layers
as are wanted (`layers.0`, `layers.1`, ...) and is split where the plan says. A schedule with
communication (`torch-comms-csv`) is run as it is. The gradients are compared with those of all
layers in one process; the program ends with status 1 if they differ. It needs PyTorch, which dnnp
does not; tried with 2.13.
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

CELL = re.compile(r"(\d+)(F|B|I|W|SEND_F|RECV_F|SEND_B|RECV_B)(\d+)")
WIDTH, ROWS, MOST = 8, 2, 1e-6
"""Numbers of a layer, samples of a micro-batch, and how far gradients may be from each other."""


def cells(rows: Sequence[Sequence[str]]) -> list[tuple[int, str, int]]:
    """Stage, what is done and micro-batch of each cell."""
    found = [CELL.fullmatch(cell) for row in rows for cell in row]
    return [(int(match[1]), match[2], int(match[3])) for match in found if match]


def module_of(layers: int) -> Any:
    """Layers one after the other; all ranks make the same."""
    import torch
    from torch import nn

    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            ones = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(layers)]
            self.layers = nn.ModuleList(ones)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    torch.manual_seed(0)
    return Chain()


def stages_of(whole: Any, borders: Sequence[str], mine: Sequence[int]) -> list[Any]:
    """The stages of a rank, split before the modules that are named."""
    import torch
    from torch.distributed.pipelining import PipelineStage, SplitPoint, pipeline

    where = dict.fromkeys(borders, SplitPoint.BEGINNING)
    pipe = pipeline(whole, mb_args=(torch.zeros(ROWS, WIDTH),), split_spec=where)
    example = torch.zeros(ROWS, WIDTH)
    return [
        PipelineStage(  # Pipe.build_stage sends to itself where two neighbours are on one rank
            pipe.get_stage_module(number), number, pipe.num_stages, torch.device("cpu"),
            input_args=(example.clone().requires_grad_(number > 0),),
            output_args=example.clone().requires_grad_(),
        )
        for number in mine
    ]  # fmt: skip


def train(
    rank: int,
    path: str,
    rows: Sequence[Sequence[str]],
    borders: Sequence[str],
    layers: int,
    port: int,
) -> None:
    """The work of a rank: one step of its stages."""
    import torch
    from torch import distributed, nn
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", address, rank=rank, world_size=len(rows))
    done = cells(rows)
    last = max(stage for stage, *_ in done)
    batches = 1 + max(batch for *_, batch in done)
    mine = sorted({stage for stage, *_ in cells([rows[rank]])})
    whole = module_of(layers)
    stages = stages_of(copy.deepcopy(whole), borders, mine)
    samples, target = torch.randn(2, batches * ROWS, WIDTH)
    loss = nn.functional.mse_loss
    schedule = _PipelineScheduleRuntime(stages, batches, loss_fn=loss)
    sends = any("_" in what for _, what, _ in done)
    schedule._load_csv(path, format="compute_comms" if sends else "compute_only")
    ends = {"target": target} if last in mine else {}
    schedule.step(*([samples] if 0 in mine else []), **ends)
    loss(whole(samples), target).backward()
    pairs = [
        (one.grad, whole.get_parameter(name).grad)
        for stage in stages
        for name, one in stage.submod.named_parameters()
    ]
    worst = max(float((one - other).abs().max()) for one, other in pairs)
    distributed.barrier()
    distributed.destroy_process_group()
    print(
        f"rank {rank}: stages {mine}, {len(pairs)} gradients differ by {worst:.1e} at most",
        flush=True,
    )
    if worst > MOST:
        raise SystemExit(1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("schedule", metavar="CSV", help="what dnnp-export --to torch-csv wrote")
    parser.add_argument(
        "--plan", metavar="CSV", help="what --to torch-plan wrote (default: a layer a stage)"
    )
    parser.add_argument("--layers", type=int, help="of the module (default: as many as stages)")
    words = parser.parse_args(arguments)
    try:
        from torch import multiprocessing
    except ImportError:
        print("torch_stages: PyTorch is not installed: pip install torch", file=sys.stderr)
        return 7
    with open(words.schedule, newline="") as file:
        rows = list(csv.reader(file))
    count = 1 + max(stage for stage, *_ in cells(rows))
    borders = [f"layers.{i}" for i in range(1, count)]
    if words.plan is not None:
        with open(words.plan, newline="") as file:
            borders = [row["split_before"] for row in csv.DictReader(file)][1:]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    try:
        given = words.schedule, rows, borders, words.layers or count, port
        multiprocessing.spawn(train, given, nprocs=len(rows))
    except multiprocessing.ProcessExitedException:
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
