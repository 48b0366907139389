"""Tensors on their way between stages: numpy arrays, lists of them, or OrtValues."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

Values = dict[str, Any]
"""Tensor name -> numpy array, list of arrays, or OrtValue; or what lies with workers elsewhere and
has a method `fetch`."""

_BY_NUMPY_ONLY_AS_BYTES = frozenset(range(16, 27))
"""ONNX element types bfloat16, float8, and those of 4 and 2 bits, several of which share a byte.

ONNX Runtime hands out no arrays of them."""

AS_BYTES = ("bfloat16", "float8", "float4", "int4", "int2")
"""What the names of these types contain."""


def to_ort_value(value: Any) -> Any:
    """An OrtValue on the CPU; it shares the array's memory if a byte holds no two elements."""
    import onnxruntime

    if not isinstance(value, np.ndarray):
        return value
    array = np.asarray(value, order="C")
    if not is_added(array.dtype):
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    from onnx import helper, numpy_helper

    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    raw = numpy_helper.from_array(array).raw_data
    if len(raw) < array.nbytes:
        packed = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), element)
        ctypes.memmove(packed.data_ptr(), raw, len(raw))
        return packed
    plain = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(plain, element)


def is_added(dtype: np.dtype[Any]) -> bool:
    """True for types that a package adds to numpy, such as bfloat16 and int4."""
    return dtype.isbuiltin == 2 or dtype.kind == "V"


def to_numpy(value: Any) -> Any:
    """An array, from whatever a stage handed out; lists and arrays stay as they are."""
    if hasattr(value, "fetch"):
        return value.fetch()
    if isinstance(value, np.ndarray | list) or not hasattr(value, "data_ptr"):
        return value
    element = value.element_type() if value.is_tensor() else 0
    value = on_host(value, element)
    if element in _BY_NUMPY_ONLY_AS_BYTES:
        from onnx import TensorProto, numpy_helper

        raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
        tensor = TensorProto(data_type=element, dims=value.shape(), raw_data=raw)
        return numpy_helper.to_array(tensor)
    return value.numpy()


def on_host(value: Any, element: int) -> Any:
    """An OrtValue as one whose memory the host can read, if it is no tensor that numpy can copy."""
    if element not in _BY_NUMPY_ONLY_AS_BYTES or value.device_name().lower() == "cpu":
        return value
    import onnxruntime

    copy = onnxruntime.OrtValue.ortvalue_from_shape_and_type(value.shape(), element)
    copy.update_inplace(value)
    return copy


def to_device(value: Any, device: str, number: int) -> Any:
    """An array as an OrtValue in the memory of a device; whatever else there is stays."""
    import onnxruntime

    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        return value
    array = np.asarray(value, order="C")
    return onnxruntime.OrtValue.ortvalue_from_numpy(array, device, number)
