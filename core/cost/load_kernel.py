"""The formulas of `dnnp.core.cost.load_formula`, compiled, for kernels to call."""

from __future__ import annotations

from dnnp.core.cost.kernel import lean
from dnnp.core.cost.load_formula import combine, shared_load

load_of = lean(combine)
share_of = lean(shared_load)
