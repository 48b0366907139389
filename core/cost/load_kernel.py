"""The formulas of `dnnp.core.cost.load_formula`, compiled, for kernels to call."""

from __future__ import annotations

from dnnp.core.cost.load_formula import combine, shared_load
from dnnp.core.kernels.kernel import lean

load_of = lean(combine)
share_of = lean(shared_load)
