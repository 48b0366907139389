"""What tests, benchmarks and tools share."""

import dnnp.core.runtime  # noqa: F401  # turns telemetry off, before anything imports onnxruntime
