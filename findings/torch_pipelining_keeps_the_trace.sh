#!/usr/bin/env bash
# Libraries: PyTorch 2.13.0 (torch.distributed.pipelining; no process group is needed to split), numpy 2.4.6 (Python 3.11).
# Expected:  stages that `pipeline` cuts from a model are modules: `eval()` and `train()` do to them what they do to the model, and arguments
#            that are no tensors are those of the call; or both are refused, as by the module of torch.export, on which `pipeline` is built
#            ("Calling eval() is not supported yet", "Guard failed: scale == 2.0").
# Happens:   both are taken and neither has an effect. A stage of a model that was in training draws dropout after `eval()` (two calls
#            differ, though `training` is False in each part of it) and goes on counting batches in its batch norm; one that was traced in
#            `eval` trains without dropout after `train()`, and has not even the counter. Numbers and flags keep the value of the example:
#            scale=3.0, flip=True gives to the bit what scale=2.0, flip=False gives in the model.
# Matters:   a split that is validated with `eval()` around it, as any training loop does it, changes the statistics of its weights and its
#            outputs; and comparing with the model in one mode alone does not show it.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
"$work/env/bin/pip" install -q --only-binary :all: torch==2.13.0 numpy==2.4.6 >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
"$work/env/bin/python" - <<'PY'
import warnings

import torch
from torch import nn
from torch.distributed.pipelining import SplitPoint, pipeline

warnings.simplefilter("ignore")
torch.manual_seed(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.drop, self.norm, self.narrow = nn.Linear(4, 64), nn.Dropout(0.5), nn.BatchNorm1d(64), nn.Linear(64, 4)

    def forward(self, x, scale=2.0, flip=False):
        x = self.norm(self.drop(self.wide(x)))
        return self.narrow(-x if flip else x) * scale


def split(net, x, **more):
    return pipeline(net, mb_args=(x,), mb_kwargs=more, split_spec={"narrow": SplitPoint.BEGINNING})


def first(stage, x):
    made = stage(x)
    return made if isinstance(made, torch.Tensor) else made[0]


x = torch.randn(8, 4)
stage = split(Net().train(), x).get_stage_module(0).eval()
assert not any(part.training for part in stage.modules())
assert not torch.equal(first(stage, x), first(stage, x))
counted = stage.get_buffer("norm.num_batches_tracked").item()
first(stage, x)
assert stage.get_buffer("norm.num_batches_tracked").item() == counted + 1
print("traced in training, then eval(): two calls differ, batches are counted")

stage = split(Net().eval(), x).get_stage_module(0).train()
assert stage.training and torch.equal(first(stage, x), first(stage, x))
assert "norm.num_batches_tracked" not in dict(stage.named_buffers())
print("traced in eval, then train(): two calls are equal, there is no counter")

net = Net().eval()
pipe = split(net, x, scale=2.0, flip=False)
assert torch.equal(pipe(x, scale=3.0, flip=True)[0], net(x, 2.0, False))
assert not torch.allclose(net(x, 3.0, True), net(x, 2.0, False))
print("scale=3.0, flip=True: computed with scale=2.0, flip=False")

whole = torch.export.export(net, (x,), {"scale": 2.0, "flip": False}).module()
for call, error, says in (
    (whole.eval, NotImplementedError, "Calling eval() is not supported yet"),
    (whole.train, NotImplementedError, "Calling train() is not supported yet"),
    (lambda: whole(x, scale=3.0, flip=False), AssertionError, "Guard failed: scale == 2.0"),
):
    try:
        call()
    except error as raised:
        assert says in str(raised), raised
        print("torch.export:", says)
    else:
        raise AssertionError(f"taken: {says}")
print("as stated")
PY
