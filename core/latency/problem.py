"""Moved to core.cost.latency; import from there."""

from __future__ import annotations

from dnnp.core.cost.latency import LatencyProblem as LatencyProblem
from dnnp.core.cost.latency import latency_problem as latency_problem
