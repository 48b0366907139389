"""Models for ONNX Runtime: inputs, weights, shapes, fusions, and sessions on providers."""
