"""Triton's treatment of a repository: rules for configurations, and running an ensemble.

Rules and words are those of `ValidateEnsembleSchedulingConfig` and `ValidateIOShape` in the server.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from google.protobuf import text_format

Feeds = dict[str, Any]


def definitions() -> ModuleType | None:
    """Triton's own `model_config.proto`, compiled; None where `tritonclient` is not installed.

    Its package imports grpc, which nothing here needs.
    """
    spec = importlib.util.find_spec("tritonclient")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    found = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def read(repository: Path, protos: ModuleType) -> dict[str, Any]:
    """Every model of a repository with its configuration, as Triton reads them."""
    found = {}
    for folder in sorted(p for p in repository.iterdir() if p.is_dir()):
        config = protos.ModelConfig()
        text_format.Parse((folder / "config.pbtxt").read_text(encoding="ascii"), config)
        assert config.name == folder.name
        assert (folder / "1").is_dir()
        found[config.name] = config
    return found


def check(configs: dict[str, Any], repository: Path) -> None:
    """Refuse what the server refuses."""
    (ensemble,) = [c for c in configs.values() if c.platform == "ensemble"]
    for config in configs.values():
        for tensor in (*config.input, *config.output):
            assert tensor.name
            assert tensor.data_type
            assert len(tensor.dims)
            assert all(size == -1 or size >= 1 for size in tensor.dims)
        if config is not ensemble:
            assert config.platform == "onnxruntime_onnx"
            _matches_the_model(config, repository / config.name / "1" / "model.onnx")
            for group in config.instance_group:
                assert group.count >= 1
                assert (group.kind == group.KIND_GPU) == (len(group.gpus) > 0)
    assert not ensemble.instance_group
    _check_ensemble(ensemble, configs)


def _matches_the_model(config: Any, path: Path) -> None:
    """Names, types and shapes are those of the model; -1 stands for any."""
    model = onnx.load(path, load_external_data=False)
    stored = {t.name for t in model.graph.initializer}
    pairs = (
        (config.input, [v for v in model.graph.input if v.name not in stored]),
        (config.output, list(model.graph.output)),
    )
    for said, declared in pairs:
        assert [t.name for t in said] == [v.name for v in declared]
        for tensor, value in zip(said, declared, strict=True):
            kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
            name = {"FLOAT": "FP32", "DOUBLE": "FP64", "FLOAT16": "FP16"}.get(kind, kind)
            assert (
                tensor.DESCRIPTOR.fields_by_name["data_type"]
                .enum_type.values_by_number[tensor.data_type]
                .name
                == f"TYPE_{name}"
            )
            dims = list(tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims)
            dims = [-1] * (config.max_batch_size > 0) + dims
            sizes = [d.dim_value or -1 for d in value.type.tensor_type.shape.dim]
            if value.type.tensor_type.HasField("shape"):
                assert dims == sizes, tensor.name


def _check_ensemble(ensemble: Any, configs: dict[str, Any]) -> None:
    made: set[str] = set()
    read: set[str] = set()
    for step in ensemble.ensemble_scheduling.step:
        config = configs[step.model_name]
        assert step.input_map
        assert step.output_map
        assert set(step.input_map) == {t.name for t in config.input}
        assert set(step.output_map) <= {t.name for t in config.output}
        assert not made & set(step.output_map.values()), "in an output map only once"
        made |= set(step.output_map.values())
        read |= set(step.input_map.values())
        assert config.max_batch_size == ensemble.max_batch_size
    given, wanted = ({t.name for t in side} for side in (ensemble.input, ensemble.output))
    assert given <= read, "an input of the ensemble that is not used"
    assert wanted <= made, "an output that is not written"
    assert read <= made | given
    assert made <= read | wanted, "an ensemble tensor that is unused"
    dims = {t.name: list(t.dims) for t in (*ensemble.input, *ensemble.output)}
    for step in ensemble.ensemble_scheduling.step:
        for tensor in (*configs[step.model_name].input, *configs[step.model_name].output):
            assert dims.setdefault(tensor.name, list(tensor.dims)) == list(tensor.dims)


def run(repository: Path, configs: dict[str, Any], feeds: Feeds) -> Feeds:
    """Run the ensemble by its wiring: each step once all that it reads is there."""
    (ensemble,) = [c for c in configs.values() if c.platform == "ensemble"]
    held = {tensor.name: _requested(feeds[tensor.name], tensor) for tensor in ensemble.input}
    waiting = list(ensemble.ensemble_scheduling.step)[::-1]  # the order must not matter
    while waiting:
        step = next(s for s in waiting if set(s.input_map.values()) <= set(held))
        waiting.remove(step)
        config = configs[step.model_name]
        session = ort.InferenceSession(repository / step.model_name / "1" / "model.onnx")
        given = {
            t.name: held[step.input_map[t.name]].reshape(_inner(held[step.input_map[t.name]], t))
            for t in config.input
        }
        names = [t.name for t in config.output]
        for tensor, array in zip(config.output, session.run(names, given), strict=True):
            if tensor.name in step.output_map:
                held[step.output_map[tensor.name]] = array.reshape(_outer(array, tensor))
    return {tensor.name: held[tensor.name] for tensor in ensemble.output}


def _requested(array: np.ndarray, tensor: Any) -> np.ndarray:
    """A tensor as a request has it: one without dimensions has the dimension 1."""
    return array.reshape(1) if array.ndim == 0 and list(tensor.dims) == [1] else array


def _inner(array: np.ndarray, tensor: Any) -> tuple[int, ...]:
    return array.shape[:-1] if tensor.HasField("reshape") else array.shape


def _outer(array: np.ndarray, tensor: Any) -> tuple[int, ...]:
    return (*array.shape, 1) if tensor.HasField("reshape") else array.shape
