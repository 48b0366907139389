"""Tensors on their way between stages: numpy arrays, lists of them, or OrtValues."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

Values = dict[str, Any]
"""Tensor name -> numpy array, list of arrays, or OrtValue; or what lies with workers elsewhere and
has a method `fetch`."""

_BY_NUMPY_ONLY_AS_BYTES = frozenset({16, 17, 18, 19, 20})
"""ONNX element types bfloat16 and float8: ONNX Runtime hands out no arrays of them."""


def to_ort_value(value: Any) -> Any:
    """An OrtValue on the CPU that shares the array's memory."""
    import onnxruntime

    if not isinstance(value, np.ndarray):
        return value
    array = np.asarray(value, order="C")
    if array.dtype.kind != "V":
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    from onnx import helper

    plain = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
    element = helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(plain, element)


def to_numpy(value: Any) -> Any:
    """An array, from whatever a stage handed out; lists and arrays stay as they are."""
    if hasattr(value, "fetch"):
        return value.fetch()
    if isinstance(value, np.ndarray | list) or not hasattr(value, "data_ptr"):
        return value
    element = value.element_type() if value.is_tensor() else 0
    value = on_host(value, element)
    if element in _BY_NUMPY_ONLY_AS_BYTES:
        from onnx import helper

        size = value.tensor_size_in_bytes()
        raw = ctypes.string_at(value.data_ptr(), size)
        dtype = helper.tensor_dtype_to_np_dtype(element)
        return np.frombuffer(raw, dtype=dtype).reshape(value.shape())
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
