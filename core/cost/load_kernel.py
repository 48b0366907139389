"""The formulas of `dnnp.core.cost.combine`, compiled, for kernels to call."""

from __future__ import annotations

from dnnp.core.cost.combine import combine, shared_load
from dnnp.core.cost.kernel import lean

load_of = lean(combine)
share_of = lean(shared_load)
