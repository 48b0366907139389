"""Train the stages of a plan by a schedule, with PyTorch. Written by dnnp-export --to torch.

    torchrun --nproc-per-node DEVICES FILE [--verify] [--steps N] [--rate X] [--model PATH]

A process is a device; each goes through the schedule and runs its own blocks. Whatever a block has
made is sent at once, and awaited where the next block needs it; all processes count messages alike,
so that those of a pair come in one order. Blocks on several devices hold parts of parameters and
exchange what they make; gradients of what several devices hold are added up at the end of a step.
`sample` and `loss` are to be replaced. Parameters are read from the ONNX model.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call,var-annotated,misc"
import argparse
import hashlib
import os
import time
from collections import Counter, defaultdict

import onnx
import torch
from torch import distributed, nn
from torch.nn import functional

# OPERATORS

DEVICE = torch.device("cpu")
MOST, FLAT = 1e-4, 1e-3
"""By how much gradients may be off with --verify, as part of the largest one of the parameter, or
of a part of the largest one of all: others are but rounding."""


def part(x, axis, blocks, count, place):
    """The part of a tensor that one of `count` devices has: a share of each block of an axis."""
    if axis is None or count == 1:
        return x
    return torch.cat([b.chunk(count, axis)[place] for b in x.chunk(blocks, axis)], axis)


class Gathered(torch.autograd.Function):
    """All of a tensor, of which each device has a part; backward, parts of the sum."""

    @staticmethod
    def forward(ctx, x, stage, axis, blocks):
        ctx.ends = stage, axis, blocks
        parts = [torch.empty_like(x) for _ in range(stage.t)]
        distributed.all_gather(parts, x.contiguous(), stage.group)
        pieces = [one.chunk(blocks, axis) for one in parts]
        return torch.cat([piece[b] for b in range(blocks) for piece in pieces], axis)

    @staticmethod
    def backward(ctx, gradient):
        stage, axis, blocks = ctx.ends
        total = gradient.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total, group=stage.group)
        return part(total, axis, blocks, stage.t, stage.j), None, None, None


class Summed(torch.autograd.Function):
    """The sum over devices; backward, that of the gradients."""

    @staticmethod
    def forward(ctx, x, stage):
        ctx.stage = stage
        total = x.clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(total, group=stage.group)
        return total

    @staticmethod
    def backward(ctx, gradient):
        return Summed.forward(ctx, gradient, ctx.stage), None


class Stage(nn.Module):
    """A stage, or the part of it of one of the `t` devices that run it together, from 0."""

    READS, MAKES, STORED, CONSTANTS = (), (), {}, {}

    def __init__(self, devices, rank, held):
        super().__init__()
        self.t, self.j, self.group = len(devices), devices.index(rank), group_of(devices)
        for field, name in self.STORED.items():
            setattr(self, field, held(name, self.t, self.j))
        for field, (value, dtype) in self.CONSTANTS.items():
            setattr(self, field, torch.tensor(value, dtype=getattr(torch, dtype), device=DEVICE))

    def gather(self, x, axis, blocks):
        return x if self.t == 1 else Gathered.apply(x, self, axis, blocks)

    def add_up(self, x):
        return x if self.t == 1 else Summed.apply(x, self)

    def part(self, x, axis, blocks):
        return part(x, axis, blocks, self.t, self.j)


inf, nan = float("inf"), float("nan")

# Name and SHA-256 of the model. Inputs: type, shape, limit of whole numbers. Tensors between
# stages. Outputs. Parameters: axis that devices of a stage cut, in how many blocks, 1: trained.
# Schedule: F (forward), B (backward; with split passes I for inputs and W for weights), stage,
# micro-batch, devices.
MODEL, DIGEST, INPUTS, TENSORS, OUTPUTS, PARAMETERS = "", "", {}, {}, (), {}
STAGES: tuple[type[Stage], ...] = ()
RECOMPUTED: tuple[int, ...] = ()
SCHEDULE: tuple[tuple[str, int, int, tuple[int, ...]], ...] = ()
# END


def sample(batch):
    """Inputs of a micro-batch: here random ones, the same in each process."""
    source = torch.Generator().manual_seed(batch)
    found = {}
    for name, (dtype, shape, limit) in INPUTS.items():
        if limit is None:
            value = torch.randn(shape, generator=source)
        else:
            value = torch.randint(0, limit, shape, generator=source)
        found[name] = value.to(DEVICE, getattr(torch, dtype))
    return found


def loss(outputs):
    """The loss of a micro-batch, for the outputs of the model that one stage makes, by name."""
    return sum(one.square().mean() for one in outputs.values() if one.is_floating_point())


def group_of(devices, known={}):  # noqa: B006
    """Processes that exchange something; all make all groups, in one order."""
    if len(devices) > 1 and devices not in known:
        known[devices] = distributed.new_group(devices)
    return known.get(devices)


def values_of(path):
    """Read what the model stores, by name."""
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != DIGEST:
            raise SystemExit(f"{path} is not the model that was exported")
    graph = onnx.load(path).graph
    found = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant":
            found |= {node.output[0]: a.t for a in node.attribute if a.name == "value"}
    return {name: found[name] for name in PARAMETERS if name in found}


def holder(stored):
    """What makes parameters, each part once."""
    made = {}

    def held(name, count, place):
        axis, blocks, trained = PARAMETERS[name]
        key = (name, None, 0) if axis is None else (name, count, place)
        if key not in made:
            whole = torch.from_numpy(onnx.numpy_helper.to_array(stored[name]).copy())
            value = part(whole, axis, blocks, count, place).to(DEVICE)
            made[key] = nn.Parameter(value.contiguous()) if trained else value
        return made[key]

    return held, made


class Run:
    """The process of a device."""

    def __init__(self, rank, stored):
        self.rank = rank
        held, self.pieces = holder(stored)
        self.home = {(s, b): home for what, s, b, home in SCHEDULE if what == "F"}
        self.batches = 1 + max(b for _, b in self.home)
        homes = sorted({(s, home) for (s, _), home in self.home.items()})
        for _, home in homes:
            group_of(home)
        self.stage = {(s, h): STAGES[s](h, rank, held) for s, h in homes if rank in h}
        self.maker = {name: s for s, stage in enumerate(STAGES) for name in stage.MAKES}
        self.readers = defaultdict(list)
        owners = defaultdict(set)
        for s, stage in enumerate(STAGES):
            for name in stage.READS:
                self.readers[self.maker.get(name)].append((s, name))
        for s, home in homes:
            for name in STAGES[s].STORED.values():
                for j, r in enumerate(home):
                    cut = PARAMETERS[name][0] is not None
                    owners[(name, len(home), j) if cut else (name, None, 0)].add(r)
        self.owners = {key: tuple(sorted(owners[key])) for key in sorted(owners, key=str)}
        for ranks in self.owners.values():
            group_of(ranks)

    def source(self, name, b, r):
        """The device from which device r has a tensor that a stage makes."""
        home = self.home[self.maker[name], b]
        return r if r in home else home[r % len(home)]

    def step(self):
        """Follow the schedule once; gradients are left in the parameters. Returns the loss here."""
        self.values, self.kept, self.sent, self.tag = {}, {}, [], 0
        self.coming, self.gradients = defaultdict(list), {}
        self.uses = Counter(
            (name, b)
            for (s, b), home in self.home.items()
            for name in STAGES[s].READS
            if self.rank in home
        )
        total = 0.0
        for what, s, b, home in SCHEDULE:
            if self.rank in home:
                total += getattr(self, what)(s, b, self.stage[s, home], home)
            self.messages(what, s, b, home)
        for work, _ in self.sent:
            work.wait()
        for key, ranks in self.owners.items():
            piece = self.pieces.get(key)
            if piece is not None and piece.requires_grad:
                if piece.grad is None:
                    piece.grad = torch.zeros_like(piece)
                if len(ranks) > 1:
                    distributed.all_reduce(piece.grad, group=group_of(ranks))
        return total

    def messages(self, what, s, b, home):
        """Send and receive what a block has made, whoever ran it."""
        if what == "F":
            wanted = {(n, r): 0 for c, n in self.readers[s] for r in self.home[c, b]}
            for name, r in wanted:
                if r not in home:
                    self.pass_on((name, b), self.source(name, b, r), r, name)
        elif what in "BI":
            for name in STAGES[s].READS:
                if name in TENSORS and TENSORS[name][0].startswith(("float", "bfloat")):
                    for r in home:
                        self.pass_on(("gradient", name, b, s), r, self.source(name, b, r), name)
        if self.rank in home and what == "F":
            for name in STAGES[s].MAKES:
                if not self.uses[name, b]:
                    self.values.pop((name, b), None)

    def pass_on(self, key, source, target, name):
        """Hand a tensor on; gradients have the form of what they are of."""
        if source == target:
            if source == self.rank:
                self.coming[key[:3]].append((None, self.values.pop(key)))
            return
        self.tag += 1
        if self.rank == source:
            value = (self.values[key] if key[0] != "gradient" else self.values.pop(key)).detach()
            value = value.contiguous()
            self.sent = [one for one in self.sent if not one[0].is_completed()]
            self.sent.append((distributed.isend(value, target, tag=self.tag), value))
        elif self.rank == target:
            dtype, shape = TENSORS[name]
            value = torch.empty(shape, dtype=getattr(torch, dtype), device=DEVICE)
            work = distributed.irecv(value, source, tag=self.tag)
            self.coming[key[:3]].append((work, value))

    def taken(self, key):
        """All that came under a name."""
        for work, value in self.coming.pop(key, ()):
            if work is not None:
                work.wait()
            yield value

    def F(self, s, b, stage, home):  # noqa: N802
        """Forward pass of a stage."""
        given, inputs = None, []
        for name in stage.READS:
            if name in INPUTS:
                given = given or sample(b)
                inputs.append(given[name])
                continue
            for value in self.taken((name, b)):
                self.values[name, b] = value
            value = self.values[name, b].detach()
            inputs.append(value.requires_grad_() if value.is_floating_point() else value)
            self.uses[name, b] -= 1
            if not self.uses[name, b]:
                del self.values[name, b]
        with torch.set_grad_enabled(s not in RECOMPUTED):
            outputs = stage(*inputs)
        self.values |= {(n, b): out.detach() for n, out in zip(stage.MAKES, outputs, strict=True)}
        leaves = {
            name: out.detach().requires_grad_(out.is_floating_point())
            for name, out in zip(stage.MAKES, outputs, strict=True)
            if name in OUTPUTS and self.rank == home[0]
        }
        self.kept[s, b] = inputs, () if s in RECOMPUTED else outputs
        if not leaves:
            return 0.0
        value = loss(leaves) / self.batches
        value.backward()
        for name, leaf in leaves.items():
            if leaf.grad is not None:
                self.coming["gradient", name, b].append((None, leaf.grad))
        return float(value.detach())

    def ends(self, s, b, stage):
        """What a backward pass begins with: inputs, outputs that have gradients, and these."""
        inputs, outputs = self.kept.pop((s, b))
        outputs = outputs or stage(*inputs)
        found, gradients = [], []
        for name, out in zip(stage.MAKES, outputs, strict=True):
            total = sum(self.taken(("gradient", name, b)), torch.zeros_like(out))
            if out.requires_grad:
                found.append(out)
                gradients.append(total)
        return inputs, found, gradients

    def hand_back(self, s, b, stage, inputs):
        """Keep the gradients of inputs for those who made them."""
        for name, x in zip(stage.READS, inputs, strict=True):
            if name in TENSORS and x.is_floating_point():
                self.values["gradient", name, b, s] = (
                    torch.zeros_like(x) if x.grad is None else x.grad
                )

    def B(self, s, b, stage, home):  # noqa: N802
        """Backward pass of a stage."""
        inputs, outputs, gradients = self.ends(s, b, stage)
        if outputs:
            torch.autograd.backward(outputs, gradients)
        self.hand_back(s, b, stage, inputs)
        return 0.0

    def I(self, s, b, stage, home):  # noqa: E743, N802
        """The part of it that those before wait for."""
        inputs, outputs, gradients = self.ends(s, b, stage)
        wanted = [x for x in inputs if x.requires_grad]
        if outputs and wanted:
            found = torch.autograd.grad(outputs, wanted, gradients, True, allow_unused=True)
            for x, gradient in zip(wanted, found, strict=True):
                x.grad = gradient
        self.hand_back(s, b, stage, inputs)
        self.kept[s, b] = outputs, gradients
        return 0.0

    def W(self, s, b, stage, home):  # noqa: N802
        """The other part: gradients of parameters."""
        outputs, gradients = self.kept.pop((s, b))
        wanted = [one for one in stage.parameters() if one.requires_grad]
        if outputs and wanted:
            found = torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)
            for one, gradient in zip(wanted, found, strict=True):
                if gradient is not None:
                    one.grad = gradient if one.grad is None else one.grad + gradient
        return 0.0


def verify(run, stored):
    """Compare gradients with those of all stages in one process; returns the largest deviation."""
    held, whole = holder(stored)
    stages = [stage((0,), 0, held) for stage in STAGES]
    for b in range(run.batches):
        values = sample(b)
        for stage in stages:
            made = stage(*(values[name] for name in stage.READS))
            values |= zip(stage.MAKES, made, strict=True)
        (loss({name: values[name] for name in OUTPUTS}) / run.batches).backward()
    worst, most = 0.0, max(float(w.grad.abs().max()) for w in whole.values() if w.grad is not None)
    for (name, count, place), piece in run.pieces.items():
        if not piece.requires_grad:
            continue
        axis, blocks, _ = PARAMETERS[name]
        one = whole[(name, None, 0) if axis is None else (name, 1, 0)]
        full = torch.zeros_like(one) if one.grad is None else one.grad
        mine = full if axis is None else part(full, axis, blocks, count, place)
        scale = max(float(full.abs().max()), FLAT * most)
        worst = max(worst, float((piece.grad - mine).abs().max()) / scale)
    return worst


def main():
    """Entry point."""
    global DEVICE
    parser = argparse.ArgumentParser(description="Train by the schedule of a plan.")
    parser.add_argument("--model", default=MODEL, help="the ONNX model (default: %(default)s)")
    parser.add_argument("--verify", action="store_true", help="compare gradients, then stop")
    parser.add_argument("--steps", type=int, default=1, help="(default: 1)")
    parser.add_argument("--rate", type=float, default=0.01, help="of learning (default: 0.01)")
    words = parser.parse_args()
    devices = 1 + max(d for *_, home in SCHEDULE for d in home)
    if int(os.environ.get("WORLD_SIZE", 0)) != devices:
        raise SystemExit(f"run it by: torchrun --nproc-per-node {devices} {__file__}")
    if torch.cuda.is_available():
        DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(DEVICE)
    distributed.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    rank, stored = distributed.get_rank(), values_of(words.model)
    run = Run(rank, stored)
    trained = [piece for piece in run.pieces.values() if piece.requires_grad]
    optimizer = torch.optim.SGD(trained, words.rate) if trained else None
    status = 0
    for step in range(words.steps):
        begin = time.perf_counter()
        total = torch.tensor(run.step(), device=DEVICE)
        distributed.all_reduce(total)
        if rank == 0:
            print(f"step {step}: loss {float(total):.6g}, {time.perf_counter() - begin:.3f} s")
        if words.verify:
            worst = verify(run, stored)
            line = f"rank {rank}: {len(trained)} gradients differ by {worst:.1e} at most"
            print(line, flush=True)
            status = int(not worst <= MOST)
            break
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()
    distributed.barrier()
    distributed.destroy_process_group()
    raise SystemExit(status)


if __name__ == "__main__":
    main()
