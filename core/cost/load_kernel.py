"""The formulas of `dnnp.core.cost.combine`, compiled, for kernels to call."""

from __future__ import annotations

from dnnp.core.cost.combine import combine, shared_load
from dnnp.core.cost.kernel import kernel

load_of = kernel(combine)
share_of = kernel(shared_load)
