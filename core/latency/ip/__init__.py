"""Programs of least latency: scheduling models, as integer programs and for CP-SAT."""
