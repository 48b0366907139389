"""Tensors in files: NumPy `.npz` and `.npy`, ONNX `.pb` and folders of them; outputs as `.npz`."""

from __future__ import annotations

import io
import math
import os
import re
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.formats.files import open_regular, read_regular
from dnnp.formats.limits import HEADER

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Tensors = dict[str, NDArray[np.generic]] | list[NDArray[np.generic]]
    """Arrays, and lists of arrays for sequences."""

_NUMPY_FAULTS = (
    ValueError, OSError, EOFError, KeyError, TypeError, AttributeError, SyntaxError, MemoryError,
    OverflowError, NotImplementedError, RuntimeError, struct.error, tokenize.TokenError,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
"""Errors of numpy on files that are not what their name says."""


_LARGEST = 2**31 - 1
"""Bytes of the largest message that protobuf parses."""


def read_inputs(path: str, admit: Callable[[Tensors], object] = lambda tensors: None) -> Tensors:
    """Read one sample of model inputs.

    A `.npz` file gives arrays by name. A `.npy` file gives one array without a name. A `.pb`
    file holds one ONNX tensor, or a sequence of them, which becomes a list; a folder holds the
    files `input_0.pb`, `input_1.pb`, ...; these come by name if every one has a name of its own,
    else in order.

    Parameters
    ----------
    path
        The file or folder.
    admit
        Called before the data of `.npz` and `.npy` files are unpacked, with arrays of the same
        names, types and shapes that take no memory; raises where they are not wanted. A few
        megabytes may unpack to more than the machine has.

    Raises
    ------
    InputFileError
        The file is missing or cannot be read, or is not a regular file.
    FormatError
        It is not a tensor file; pickled objects are refused.
    """
    if os.path.isdir(path):
        return _read_folder(path)
    file, size = open_regular(path)
    with file:
        try:
            head = file.read(8)
            file.seek(0)
        except OSError as error:
            raise InputFileError(f"{path}: {error.strerror}") from None
        if head.startswith(b"PK") or path.endswith(".npz"):
            return _read_npz(file, path, admit)
        if head.startswith(b"\x93NUMPY") or path.endswith(".npy"):
            return _read_npy(file, size, path, admit)
    if path.endswith(".pb"):
        return _named([_read_pb(path)])
    raise FormatError("not a tensor file; expected .npz, .npy, .pb or a folder of .pb", path)


def _read_npz(
    file: BinaryIO, path: str, admit: Callable[[Tensors], object]
) -> dict[str, NDArray[np.generic]]:
    import numpy as np

    try:
        with warnings.catch_warnings(), zipfile.ZipFile(file) as archive:
            warnings.simplefilter("ignore")  # headers written by Python 2
            members = {name.removesuffix(".npy"): name for name in archive.namelist()}
            promised = {}
            for name, member in members.items():
                with archive.open(member) as stored:
                    promised[name] = _promised(stored, archive.getinfo(member).file_size)
            admit(promised)
            arrays = {}
            for name, member in members.items():
                with archive.open(member) as stored:
                    arrays[name] = np.lib.format.read_array(stored, allow_pickle=False)
            return arrays
    except _NUMPY_FAULTS as error:
        raise FormatError(f"not an .npz file: {_reason(error)}", path) from None


def _read_npy(
    file: BinaryIO, size: int, path: str, admit: Callable[[Tensors], object]
) -> list[NDArray[np.generic]]:
    import numpy as np

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # headers written by Python 2
            admit([_promised(file, size)])
            file.seek(0)
            return [np.lib.format.read_array(file, allow_pickle=False)]
    except _NUMPY_FAULTS as error:
        raise FormatError(f"not an .npy file: {_reason(error)}", path) from None


def _promised(file: IO[bytes], size: int) -> NDArray[np.generic]:
    """One element, repeated without end, of the type and shape that a file of `size` bytes holds.

    Text becomes an object, as its elements may be of any size too.
    """
    import numpy as np
    from numpy.lib import format as npy

    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the header is for arrays of records")
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    stated = file.read(2 * version[0])
    header = int.from_bytes(stated, "little")
    if header > HEADER:
        raise ValueError(f"a header of {header} bytes; at most {HEADER} are read")
    shape, _, dtype = read(io.BytesIO(stated + file.read(header)))
    if dtype.hasobject:
        raise ValueError("pickled objects")
    if math.prod(shape) * dtype.itemsize > size - file.tell():
        raise ValueError(f"shorter than {dtype} of shape {list(shape)}, as its header says")
    return np.broadcast_to(np.zeros((), object if dtype.kind == "U" else dtype), shape)


def _reason(error: BaseException) -> str:
    if "pickle" in str(error):
        return "it holds Python objects"
    first = (str(error).splitlines() or [""])[0]
    return first[:200] or type(error).__name__


def _read_folder(path: str) -> Tensors:
    try:
        there = os.listdir(path)
    except OSError as error:
        raise InputFileError(f"{path}: {error.strerror}") from None
    matches = (re.fullmatch(r"input_(\d+)\.pb", name) for name in there)
    numbers = sorted(int(match[1]) for match in matches if match)
    if not numbers:
        raise FormatError("no file input_0.pb in this folder", path)
    return _named([_read_pb(os.path.join(path, f"input_{i}.pb")) for i in numbers])


def _read_pb(path: str) -> tuple[str, Any]:
    """Name and value of a tensor, or of a sequence or optional, which becomes a list."""
    from google.protobuf.message import DecodeError

    data = read_regular(path, _LARGEST, "protobuf reads no larger message")
    try:
        return _decoded(data, path)
    except DecodeError:
        raise FormatError("not an ONNX tensor", path) from None
    except (ValueError, TypeError, KeyError, NotImplementedError, MemoryError) as error:
        raise FormatError(f"not an ONNX tensor: {_reason(error)}", path) from None


def _decoded(data: bytes, path: str) -> tuple[str, Any]:
    from google.protobuf.message import DecodeError
    from onnx import SequenceProto, TensorProto, numpy_helper

    tensor = TensorProto()
    try:
        tensor.ParseFromString(data)
        # Where a tensor has its segment, which nobody uses, a sequence has its tensors; one of
        # none, and an optional of one, has a type, and a name where a tensor has its sizes.
        there = {field.number for field, _ in tensor.ListFields()}
        named = data.startswith(b"\n") and (
            there == {1, 2} or (there == {1, 2, 5} and tensor.data_type == SequenceProto.SEQUENCE)
        )
        boxed = 3 in there or there == {2} or named
    except DecodeError:
        boxed = True  # a name that is no list of sizes
    if not boxed:
        if tensor.data_location == TensorProto.EXTERNAL:
            raise FormatError("the tensor's data are in another file", path)
        return tensor.name, _array(numpy_helper.to_array(tensor))
    sequence = SequenceProto.FromString(data)
    held = [
        *sequence.tensor_values,
        *(t for s in sequence.sequence_values for t in s.tensor_values),
    ]
    if sequence.elem_type not in (SequenceProto.TENSOR, SequenceProto.SEQUENCE):
        raise ValueError("neither a tensor nor a sequence of tensors")
    return sequence.name, [_array(numpy_helper.to_array(tensor)) for tensor in held]


def _array(array: Any) -> NDArray[np.generic]:
    import numpy as np

    if array.dtype == object:
        texts = [x.decode() if isinstance(x, bytes) else x for x in array.ravel()]
        return np.array(texts, dtype=object).reshape(array.shape)
    return array


def _named(tensors: list[tuple[str, Any]]) -> Tensors:
    names = [name for name, _ in tensors]
    if all(names) and len(set(names)) == len(names):
        return dict(tensors)
    return [array for _, array in tensors]


def write_outputs(file: BinaryIO, outputs: Mapping[int, Mapping[str, Any]]) -> None:
    """Write the outputs of samples as `.npz`: by name, or as `SAMPLE/NAME` if there are several.

    Element `i` of a sequence is called `NAME/i`.
    """
    import numpy as np

    arrays: dict[str, Any] = {}
    for sample, values in sorted(outputs.items()):
        before = "" if len(outputs) == 1 else f"{sample}/"
        arrays.update((f"{before}{key}", array) for key, array in named_arrays(values).items())
    # numpy would name types that a package adds in a way that it cannot read
    opaque = {k: a.view(f"V{a.itemsize}") for k, a in arrays.items() if a.dtype.isbuiltin == 2}
    np.savez(file, **arrays | opaque)


def named_arrays(values: Mapping[str, Any]) -> dict[str, NDArray[np.generic]]:
    """The arrays that a file of the outputs of one sample holds."""
    import numpy as np

    arrays: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list):
            arrays.update((f"{name}/{i}", np.asarray(x)) for i, x in enumerate(value))
        elif value is not None:
            array = np.asarray(value)
            arrays[name] = array.astype(str) if array.dtype.kind == "O" else array
    return arrays
