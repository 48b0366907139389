"""Models in ONNX: reading, shapes, stages, shards."""
