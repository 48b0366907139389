"""Helpers of tests, benchmarks and tools."""

import dnnp.core.runtime  # noqa: F401  # turns telemetry off, before anything imports onnxruntime
