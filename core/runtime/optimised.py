"""The graph that ONNX Runtime makes of a model when it loads it, without the weights' memory."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from dnnp.core.model.errors import InputFileError, UnavailableError
from dnnp.core.runtime.cuda import not_started
from dnnp.core.runtime.model_files import absent_files
from dnnp.core.runtime.providers import PROVIDERS, first_line, ort_errors
from dnnp.formats.unfinished import scratch_folder

if TYPE_CHECKING:
    from onnx import ModelProto

LAYOUT_PASSES = frozenset(
    {"TransposeOptimizer", "NchwcTransformer", "NhwcTransformer"}
    | {f"TransposeOptimizer_{provider}" for provider in PROVIDERS.values()}
)
"""Optimisers that move data into another order: they fuse nothing, and rename what they pass.

ONNX Runtime runs the transpose optimiser once for all providers and once for each.
"""

_SILENT = 4
_ZEROS = "zeros"


def optimised_model(
    model: ModelProto, folder: Path, provider: str = "cpu", level: str = "EXTENDED"
) -> ModelProto:
    """Return the graph that ONNX Runtime runs in place of `model`, weights left out.

    At ORT_ENABLE_EXTENDED: the level holds every fusion of operators. The next one changes
    data layouts and, on the CPU, adds only fusions that depend on them.

    External weights stay in their files, which ONNX Runtime maps and reads where it folds
    constants. If a file is absent, all of them count as zeros, in one sparse file as large as
    the largest: fusions ask for the shapes of weights, and for the values of scalars only.

    Parameters
    ----------
    model
        The model; external data need not exist.
    folder
        Where its external data would be.
    provider
        A key of `session.PROVIDERS`.
    level
        Optimisation level, without `ORT_ENABLE_`.

    Raises
    ------
    UnavailableError
        ONNX Runtime or the provider is missing, or the provider does not start.
    InputFileError
        ONNX Runtime cannot load the model, or the temporary folder is full.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise UnavailableError(f"onnxruntime cannot be imported: {error}") from None
    from dnnp.core.runtime.providers import require_provider

    require_provider(provider)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _SILENT
    onnxruntime.set_default_logger_severity(_SILENT)
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # Nothing runs: weights need no common block of memory, and no copy in another layout.
    options.enable_mem_pattern = options.enable_cpu_mem_arena = False
    options.graph_optimization_level = getattr(
        onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}"
    )
    options.add_session_config_entry("session.disable_prepacking", "1")
    names = [PROVIDERS["cpu"]] if provider == "cpu" else [PROVIDERS[provider], PROVIDERS["cpu"]]
    try:
        with scratch_folder() as scratch, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a provider that is absent: checked below
            if absent_files(model, folder):
                model, folder = _with_zeros(model, Path(scratch)), Path(scratch)
            options.optimized_model_filepath = path = os.path.join(scratch, "optimised.onnx")
            options.add_session_config_entry(
                "session.model_external_initializers_file_folder_path", os.path.realpath(folder)
            )
            session = onnxruntime.InferenceSession(
                model.SerializeToString(),
                options,
                providers=names,
                disabled_optimizers=set(LAYOUT_PASSES),
                enable_fallback=0,
            )
            used = session.get_providers()[0]
            del session
            result = _without_weights(path)
    except ort_errors() as error:
        if provider != "cpu" and any(word in str(error) for word in ("CUDA", "cuda", "cudnn")):
            raise not_started(provider, first_line(error)) from None
        raise InputFileError(f"ONNX Runtime cannot load the model: {first_line(error)}") from None
    except OSError as error:
        raise InputFileError(f"{error.filename or 'temporary folder'}: {error.strerror}") from None
    if used != PROVIDERS[provider]:
        raise not_started(provider, f"ONNX Runtime uses {used} instead")
    return result


def _with_zeros(model: ModelProto, scratch: Path) -> ModelProto:
    """A copy of `model` whose external weights are all zeros, in a sparse file."""
    from math import prod

    from onnx import ModelProto, TensorProto

    from dnnp.formats.onnx_scope import held_tensors
    from dnnp.formats.onnx_sizes import bytes_of
    from dnnp.formats.onnx_types import dtype_name

    result = ModelProto()
    result.CopyFrom(model)
    largest = 1
    for tensor in held_tensors(result):
        if tensor.data_location == TensorProto.EXTERNAL:
            dtype = dtype_name(tensor.data_type) or "float64"
            size = int(bytes_of(dtype, prod(tensor.dims)))
            largest = max(largest, size)
            tensor.ClearField("external_data")
            for key, value in (("location", _ZEROS), ("offset", 0), ("length", size)):
                tensor.external_data.add(key=key, value=str(value))
    with open(scratch / _ZEROS, "wb") as file:
        file.truncate(largest)
    return result


def _without_weights(path: str) -> ModelProto:
    """Read a model and drop the data of what is stored in it."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for field in ("raw_data", "float_data", "int32_data", "int64_data", "external_data"):
            tensor.ClearField(field)
    return model
