"""Train the stages of a plan by a schedule, with PyTorch. Written by dnnp-export --to torch.

    torchrun --nproc-per-node DEVICES FILE [--verify] [--steps N] [--rate X] [--model PATH]
        [--backend nccl|gloo]

A process is a device; each goes through the schedule and runs its own blocks. What a block has made
is sent at once and awaited by the block that reads it. All processes meet messages, sums and parts
in the order of the schedule, so that those of a pair or group come in one order, as NCCL asks for,
and the first of all that are not over can always go on. Devices that run a block together have
parts of its parameters. Gradients of what several devices have are added up at the end of a step.
`sample` and `loss` are to be replaced. Parameters are read from the ONNX model.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, var-annotated"
import argparse
import hashlib
import os
import time
from collections import defaultdict

import onnx
import torch
from torch import distributed, nn
from torch.nn import functional  # noqa: F401

# OPERATORS

DEVICE = torch.device("cpu")
MOST, FLAT = 1e-4, 1e-3
"""By how much gradients may be off with --verify, as part of the largest one of the parameter, or
of a part of the largest one of all: others are but rounding."""
inf, nan = float("inf"), float("nan")


def part(x, axis, blocks, count, place):
    """The part of a tensor that one of `count` devices has: a share of each block of an axis."""
    if axis is None or count == 1:
        return x
    return torch.cat([b.chunk(count, axis)[place] for b in x.chunk(blocks, axis)], axis)


class Gathered(torch.autograd.Function):
    """All of a tensor of which each device has a part; backward, its part of the sum."""

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
        return stage.part(total(gradient, stage.group), axis, blocks), None, None, None


class Summed(torch.autograd.Function):
    """The sum over devices; backward, that of the gradients."""

    @staticmethod
    def forward(ctx, x, stage):
        ctx.stage = stage
        return total(x, stage.group)

    @staticmethod
    def backward(ctx, gradient):
        return total(gradient, ctx.stage.group), None


class Parted(torch.autograd.Function):
    """An operator that has run on ends of its own; backward leaves gradients of parameters."""

    @staticmethod
    def forward(ctx, later, ran, *args):
        ctx.ends = later, ran, [i for i, x in enumerate(args) if isinstance(x, nn.Parameter)], args
        return ran[0].detach()

    @staticmethod
    def backward(ctx, gradient):
        later, (out, ends), trained, args = ctx.ends
        if trained:
            later.append((out, [(args[i], ends[i]) for i in trained], gradient))
        now = {i: x for i, x in enumerate(ends) if i not in trained and has_gradient(x)}
        row = torch.autograd.grad(out, [*now.values()], gradient, retain_graph=True) if now else ()
        found = dict(zip(now, row, strict=True))
        return None, None, *(found.get(i) for i in range(len(ends)))


def has_gradient(x):
    """True if something is a tensor with a gradient."""
    return isinstance(x, torch.Tensor) and x.requires_grad


def total(x, group):
    """Sum of a tensor over processes."""
    x = x.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(x, group=group)
    return x


class Stage(nn.Module):
    """A stage, or the part of one of its `t` devices, numbered from 0."""

    READS, MAKES, STORED, CONSTANTS = (), (), {}, {}
    later = None
    """Pending work of blocks for weights; None: there are no such blocks."""

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

    def apart(self, call, *args, **words):
        """Run an operator whose gradients of parameters wait for a block of their own."""
        if self.later is None or not torch.is_grad_enabled():
            return call(*args, **words)
        ends = [
            x.detach().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
            for x in args
        ]
        return Parted.apply(self.later, (call(*ends, **words), ends), *args)


# BEGIN
MODEL, DIGEST, INPUTS, TENSORS, OUTPUTS, PARAMETERS = "", "", {}, {}, (), {}
STAGES: tuple[type[Stage], ...] = ()
RECOMPUTED: tuple[int, ...] = ()
SCHEDULE: tuple[tuple[str, int, int, tuple[int, ...]], ...] = ()
# END
PARTED = any(what == "W" for what, *_ in SCHEDULE)


def sample(batch):
    """Inputs of a micro-batch: here random ones, the same in each process."""
    source, found = torch.Generator().manual_seed(batch), {}
    for name, (dtype, shape, limit) in INPUTS.items():
        if limit is None:
            value = torch.randn(shape, generator=source)
        else:
            value = torch.randint(0, limit, shape, generator=source)
        found[name] = value.to(DEVICE, getattr(torch, dtype))
    return found


def loss(outputs):
    """The loss of a micro-batch, for the named outputs of one stage."""
    return sum(one.square().mean() for one in outputs.values() if one.is_floating_point())


GROUPS = {}


def group_of(devices):
    """Processes that exchange something; all make all groups, in one order."""
    if len(devices) > 1 and devices not in GROUPS:
        GROUPS[devices] = distributed.new_group(devices)
    return GROUPS.get(devices)


def values_of(path):
    """Stored tensors of the model, by name."""
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != DIGEST:
            raise SystemExit(f"{path} is not the model that was exported")
    graph = onnx.load(path).graph
    constants = [(n.output[0], a.t) for n in graph.node if n.op_type == "Constant"
                 for a in n.attribute]  # fmt: skip
    return {**{tensor.name: tensor for tensor in graph.initializer}, **dict(constants)}


def holder(stored):
    """A function that makes parameters, and those it has made: each part once."""
    made = {}

    def held(name, count, place):
        axis, blocks, trained = PARAMETERS[name]
        key = (name, 0) if axis is None or count == 1 else (name, place)
        if key not in made:
            whole = torch.from_numpy(onnx.numpy_helper.to_array(stored[name]).copy())
            value = part(whole, axis, blocks, count, place).to(DEVICE).contiguous()
            made[key] = nn.Parameter(value) if trained else value
        return made[key]

    return held, made


class Run:
    """The process of a device."""

    def __init__(self, rank, stored):
        self.rank = rank
        held, self.pieces = holder(stored)
        self.home = {(s, b): home for what, s, b, home in SCHEDULE if what == "F"}
        self.batches = 1 + max(b for _, b in self.home)
        self.maker = {name: s for s, stage in enumerate(STAGES) for name in stage.MAKES}
        self.stage, owners = {}, defaultdict(set)
        for s, home in sorted({(s, home) for (s, _), home in self.home.items()}):
            group_of(home)
            if rank in home:
                self.stage[s, home] = STAGES[s](home, rank, held)
            for name in STAGES[s].STORED.values():
                for j, r in enumerate(home):
                    owners[name, 0 if PARAMETERS[name][0] is None else j].add(r)
        self.owners = {key: tuple(sorted(ranks)) for key, ranks in sorted(owners.items())}
        for ranks in self.owners.values():
            group_of(ranks)

    def step(self):
        """Follow the schedule once; gradients are left in the parameters. Returns the loss here."""
        self.made, self.kept, self.inbox = {}, {}, defaultdict(list)
        self.later = defaultdict(list)
        self.sent, self.tag, found = [], 0, torch.zeros((), device=DEVICE)
        for what, s, b, home in SCHEDULE:
            if self.rank in home and what == "F":
                found += self.forward(s, b, self.stage[s, home], home)  # reading it would wait
            elif self.rank in home and what == "B":
                self.backward(s, b, self.stage[s, home])
            elif self.rank in home:
                self.weights(s, b)
            self.hand_on(what, s, b, home)
        for work, _ in self.sent:
            work.wait()
        for key, ranks in self.owners.items():
            one = self.pieces.get(key)
            if self.rank in ranks and one.requires_grad:
                gradient = torch.zeros_like(one) if one.grad is None else one.grad
                one.grad = total(gradient, group_of(ranks)) if len(ranks) > 1 else gradient
        return found

    def hand_on(self, what, s, b, home):
        """Send or receive the outputs of a block of any device."""
        for c, stage in enumerate(STAGES):
            for name in stage.READS if what == "F" else ():
                for r in self.home[c, b] if self.maker.get(name) == s else ():
                    self.move((name, b, c), self.source(name, b, r), r, name)
        for name in STAGES[s].READS if what == "B" else ():
            if name in self.maker and "float" in TENSORS[name][0]:
                for r in home:
                    self.move((name, b), r, self.source(name, b, r), name)

    def source(self, name, b, r):
        """The device from which device r has a tensor that a stage makes."""
        home = self.home[self.maker[name], b]
        return r if r in home else home[r % len(home)]

    def move(self, key, source, target, name):
        """Move a tensor, or its gradient."""
        if source == target:
            if source == self.rank:
                self.inbox[key].append((None, self.made[name]))
            return
        self.tag += 1
        if self.rank == source:
            value = self.made[name].contiguous()
            self.sent = [one for one in self.sent if not one[0].is_completed()]
            self.sent.append((distributed.isend(value, target, tag=self.tag), value))
        elif self.rank == target:
            dtype, shape = TENSORS[name]
            value = torch.empty(shape, dtype=getattr(torch, dtype), device=DEVICE)
            self.inbox[key].append((distributed.irecv(value, source, tag=self.tag), value))

    def taken(self, key):
        """Values received under a name."""
        for work, value in self.inbox.pop(key, ()):
            if work is not None:
                work.wait()
            yield value

    def forward(self, s, b, stage, home):
        """Forward pass of a stage; returns its part of the loss."""
        given = sample(b) if INPUTS.keys() & set(stage.READS) else {}
        for name in set(stage.READS) - INPUTS.keys():
            (value,) = self.taken((name, b, s))
            given[name] = value.detach().requires_grad_(value.is_floating_point())
        inputs = [given[name] for name in stage.READS]
        stage.later = self.later[s, b] if PARTED else None
        with torch.set_grad_enabled(s not in RECOMPUTED):
            outputs = stage(*inputs)
        self.kept[s, b] = inputs, () if s in RECOMPUTED else outputs
        self.made = {n: out.detach() for n, out in zip(stage.MAKES, outputs, strict=True)}
        leaves = {
            name: value.clone().requires_grad_(value.is_floating_point())
            for name, value in self.made.items()
            if name in OUTPUTS and self.rank == home[0]
        }
        if not leaves:
            return 0.0
        value = loss(leaves) / self.batches
        value.backward()
        for name, leaf in leaves.items():
            self.inbox[name, b] += [] if leaf.grad is None else [(None, leaf.grad)]
        return value.detach()

    def backward(self, s, b, stage):
        """Backward pass of a stage."""
        inputs, outputs = self.kept.pop((s, b))
        stage.later = self.later[s, b] if PARTED else None
        outputs = outputs or stage(*inputs)
        ends, gradients = [], []
        for name, out in zip(stage.MAKES, outputs, strict=True):
            gradient = sum(self.taken((name, b)), torch.zeros_like(out))
            if out.requires_grad:
                ends.append(out)
                gradients.append(gradient)
        if ends:
            torch.autograd.backward(ends, gradients)
        self.made = {
            name: torch.zeros_like(x) if x.grad is None else x.grad
            for name, x in zip(stage.READS, inputs, strict=True)
        }

    def weights(self, s, b):
        """Add up the gradients of parameters that a backward pass has left."""
        for out, trained, gradient in self.later.pop((s, b), ()):
            found = torch.autograd.grad(out, [end for _, end in trained], gradient)
            for (one, _), own in zip(trained, found, strict=True):
                one.grad = own if one.grad is None else one.grad + own


def verify(run, stored):
    """Compare gradients with those of all stages in one process; returns the largest deviation."""
    held, whole = holder(stored)
    order = [s for what, s, b, _ in SCHEDULE if (what, b) == ("F", 0)]
    stages = [STAGES[s]((0,), 0, held) for s in order]
    for b in range(run.batches):
        values = sample(b)
        for stage in stages:
            made = stage(*(values[name] for name in stage.READS))
            values |= zip(stage.MAKES, made, strict=True)
        (loss({name: values[name] for name in OUTPUTS}) / run.batches).backward()
    worst, most = 0.0, max(float(w.grad.abs().max()) for w in whole.values() if w.grad is not None)
    for (name, place), one in run.pieces.items():
        if one.requires_grad:
            axis, blocks, _ = PARAMETERS[name]
            full = whole[name, 0].grad
            full = torch.zeros_like(whole[name, 0]) if full is None else full
            count = 1 if axis is None else full.shape[axis] // one.shape[axis]
            off = one.grad - part(full, axis, blocks, count, place)
            scale = max(float(full.abs().max()), FLAT * most)
            worst = max(worst, float(off.abs().max()) / scale)
    return worst


def placed(backend, rank, count):
    """Backend and device of one of `count` processes of a machine: NCCL if each has a GPU."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    backend = backend or ("nccl" if gpus >= count else "gloo")
    if backend == "nccl" and gpus < count:
        raise SystemExit(f"--backend nccl: {count} processes on a machine with {gpus} GPUs")
    return backend, torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")


def main():
    """Entry point."""
    global DEVICE
    parser = argparse.ArgumentParser(description="Train by the schedule of a plan.")
    parser.add_argument("--model", default=MODEL, help="the ONNX model (default: %(default)s)")
    parser.add_argument("--verify", action="store_true", help="compare gradients, then stop")
    parser.add_argument("--steps", type=int, default=1, help="(default: 1)")
    parser.add_argument("--rate", type=float, default=0.01, help="of learning (default: 0.01)")
    parser.add_argument(
        "--backend", choices=("nccl", "gloo"),
        help="(default: nccl, on GPUs, if each process of the machine has one; else gloo, on CPUs)",
    )  # fmt: skip
    words = parser.parse_args()
    devices = 1 + max(d for *_, home in SCHEDULE for d in home)
    if int(os.environ.get("WORLD_SIZE", 0)) != devices:
        raise SystemExit(f"run it by: torchrun --nproc-per-node {devices} {__file__}")
    own, count = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    backend, DEVICE = placed(words.backend, own, count)
    if DEVICE.type == "cuda":
        torch.cuda.set_device(DEVICE)
    distributed.init_process_group(backend)
    rank, stored = distributed.get_rank(), values_of(words.model)
    run, status = Run(rank, stored), 0
    trained = [one for one in run.pieces.values() if one.requires_grad]
    for step in range(words.steps):
        begin = time.perf_counter()
        value = total(run.step(), None)
        if rank == 0:
            print(f"step {step}: loss {float(value):.6g}, {time.perf_counter() - begin:.3f} s")
        if words.verify:
            worst = verify(run, stored)
            said = f"rank {rank}: {len(trained)} gradients differ by {worst:.1e} at most\n"
            print(said, end="", flush=True)
            status = int(not worst <= MOST)
            break
        for one in trained:
            one.data -= words.rate * one.grad
            one.grad = None
    distributed.barrier()
    distributed.destroy_process_group()
    raise SystemExit(status)


if __name__ == "__main__":
    main()
