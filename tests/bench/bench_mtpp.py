"""Orders evaluated in a second, the best split found in five, and orders of small peak memory."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench_models import SHARED, stream_of
from dnnp.core.cost.load import live_peak
from dnnp.core.model.device import DeviceClass
from dnnp.core.model.plan import CostOptions
from dnnp.core.order.orders import ORDERS
from dnnp.core.peak.order import peak_order
from dnnp.core.portfolio.orders import OrderSpace
from dnnp.core.portfolio.problem import Problem, Request
from dnnp.core.portfolio.solve import solve
from dnnp.core.synthetic.regal import FAMILIES, Synthetic, regal_graph
from dnnp.formats.graph import graph_of, units_of
from dnnp.formats.stream import read_bytes
from dnnp.formats.synthetic import synthetic_stream
from dnnp.samples.build import select, write
from support.bench import table
