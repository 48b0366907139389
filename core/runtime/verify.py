"""Whether the split model computes what the whole model computes, and if not, where it differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import FormatError
from dnnp.core.runtime.values import Values, to_numpy
from dnnp.formats.tensors import named_arrays, read_inputs

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.core.runtime.file_runs import Item
    from dnnp.core.runtime.steps import Call, Step

Array = NDArray[Any]

_BY_PRECISION = {
    "float64": (1e-7, 1e-9),
    "float32": (1e-4, 1e-5),
    "tf32": (1e-2, 1e-2),
    "float16": (1e-2, 2e-3),
    "bfloat16": (5e-2, 1e-2),
    "quantized": (2e-2, 2e-2),
}
"""(rtol, atol) by the coarsest arithmetic in a model: other kernels round elsewhere.

TF32 rounds what it multiplies to the 11 bits of half precision, and does so in every product in a
row: 53 convolutions were off by 0.6 % of the largest value."""
_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear", "MatMulNBits")


@dataclass(frozen=True)
class Tolerance:
    """|got - expected| <= atol * (largest |expected| in the tensor) + rtol * |expected|."""

    rtol: float
    atol: float


def tolerance_for(
    model: ModelProto,
    rtol: float | None = None,
    atol: float | None = None,
    *,
    tf32: bool = False,
) -> Tolerance:
    """Tolerance for a model, by the coarsest arithmetic it uses, unless given.

    `tf32`: a provider may multiply float32 as TF32.
    """
    from onnx import TensorProto

    graph = model.graph
    elements = {t.data_type for t in graph.initializer}
    elements.update(v.type.tensor_type.elem_type for v in (*graph.input, *graph.value_info))
    elements.update(
        a.i for n in graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to"
    )
    precision = "tf32" if tf32 else "float32"
    if TensorProto.DOUBLE in elements and TensorProto.FLOAT not in elements:
        precision = "float64"
    if TensorProto.FLOAT16 in elements:
        precision = "float16"
    if any(node.op_type in _QUANTIZERS for node in graph.node):
        precision = "quantized"
    if TensorProto.BFLOAT16 in elements:
        precision = "bfloat16"
    standard = _BY_PRECISION[precision]
    return Tolerance(standard[0] if rtol is None else rtol, standard[1] if atol is None else atol)


@dataclass(frozen=True)
class Difference:
    """How two values of one tensor differ."""

    max_abs: float
    """Largest difference where both are finite."""
    max_rel: float
    """The same over the largest magnitude expected."""
    fault: str = ""
    """Why they do not agree; empty: they do."""


def compare_values(expected: Any, got: Any, tolerance: Tolerance) -> Difference:
    """Compare two arrays, or two lists of arrays.

    Floating-point numbers may differ by the tolerance; NaN and infinities must be at the same
    places. Everything else must be equal.
    """
    if isinstance(expected, list) or isinstance(got, list):
        return _compare_lists(expected, got, tolerance)
    if expected is None or got is None:
        return Difference(0.0, 0.0, "" if expected is got else "one of them is empty")
    a, b = np.asarray(expected), np.asarray(got)
    if a.dtype != b.dtype:
        return Difference(0.0, 0.0, f"dtype {b.dtype}, expected {a.dtype}")
    if a.shape != b.shape:
        return Difference(0.0, 0.0, f"shape {list(b.shape)}, expected {list(a.shape)}")
    if a.dtype.kind == "O" or a.dtype.kind in "US":
        wrong = int((a != b).sum())
        return Difference(0.0, 0.0, f"{wrong} strings differ" if wrong else "")
    if a.dtype.kind in "biu":
        return _compare_exact(a, b)
    return _compare_floats(_widen(a), _widen(b), tolerance)


def _widen(array: Array) -> Array:
    return array if array.dtype.kind == "c" else array.astype(np.float64)


def _compare_exact(a: Array, b: Array) -> Difference:
    wrong = int((a != b).sum())
    if not wrong:
        return Difference(0.0, 0.0)
    error = float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())
    scale = float(np.abs(a.astype(np.float64)).max()) or 1.0
    return Difference(error, error / scale, f"{wrong} of {a.size} values differ")


def _compare_floats(a: Array, b: Array, tolerance: Tolerance) -> Difference:
    finite = np.isfinite(a)
    with np.errstate(invalid="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b))
    odd = int((~same & ~(finite & np.isfinite(b))).sum())
    both = finite & np.isfinite(b)
    x, y = a[both], b[both]
    scale = float(np.abs(x).max()) if x.size else 0.0
    error = np.abs(x - y)
    largest = float(error.max()) if x.size else 0.0
    allowed = tolerance.atol * (scale or 1.0) + tolerance.rtol * np.abs(x)
    beyond = int((error > allowed).sum())
    fault = ""
    if odd:
        fault = f"NaN or infinity at {odd} places on one side only"
    elif beyond:
        fault = f"{beyond} of {a.size} values differ by more than the tolerance"
    return Difference(largest, largest / (scale or 1.0), fault)


def _compare_lists(expected: Any, got: Any, tolerance: Tolerance) -> Difference:
    if not (isinstance(expected, list) and isinstance(got, list)) or len(expected) != len(got):
        return Difference(0.0, 0.0, "sequences of different length")
    parts = [compare_values(a, b, tolerance) for a, b in zip(expected, got, strict=True)]
    return Difference(
        max((p.max_abs for p in parts), default=0.0),
        max((p.max_rel for p in parts), default=0.0),
        next((p.fault for p in parts if p.fault), ""),
    )


FEW = 16
"""Files whose outputs are compared with each other too."""


@dataclass
class Verdict:
    """Outcome of a verification."""

    samples: int = 0
    """Outputs compared."""
    max_abs: float = 0.0
    max_rel: float = 0.0
    fault: str = ""
    """The worst mismatch: output, sample, largest error; empty: verified."""
    bad_sample: int | None = None
    """Input that gave the worst mismatch."""
    warnings: list[str] = field(default_factory=list)
    _worst: float = -1.0

    def take(
        self, number: int, shown: str, expected: Values, got: Values, tolerance: Tolerance
    ) -> None:
        """Compare the outputs of a sample of input `number`, which messages call `shown`."""
        self.samples += 1
        for name, value in got.items():
            found = compare_values(expected[name], value, tolerance)
            self.max_abs = max(self.max_abs, found.max_abs)
            self.max_rel = max(self.max_rel, found.max_rel)
            if found.fault and found.max_rel > self._worst:
                self._worst = found.max_rel
                self.bad_sample = number
                self.fault = (
                    f"output '{name}' of {shown}: {found.fault} (largest error {found.max_abs:.3g})"
                )

    @property
    def ok(self) -> bool:
        """Whether all outputs agree."""
        return not self.fault


def verify_outputs(
    reference: Sequence[Values], got: Mapping[int, Values], tolerance: Tolerance
) -> Verdict:
    """Compare outputs of the pipeline with those of the whole model.

    Parameters
    ----------
    reference
        The whole model's outputs for each distinct input.
    got
        The pipeline's outputs by sample; sample s has input `s % len(reference)`.
    """
    verdict = Verdict()
    for s, values in sorted(got.items()):
        number = s % len(reference)
        verdict.take(number, f"sample {s}", reference[number], values, tolerance)
    verdict.warnings.extend(weak_points(reference, tolerance))
    return verdict


def verify_files(
    items: Sequence[Item],
    read: Callable[[str], Mapping[str, Any]],
    whole: Call,
    tolerance: Tolerance,
    stopped: Callable[[], bool],
) -> Verdict:
    """Compare what stands in the files of outputs with the whole model's outputs, one by one.

    Raises
    ------
    DnnpError
        A file cannot be read any more.
    """
    verdict = Verdict()
    first: list[Values] = []
    for number, item in enumerate(items):
        if stopped():
            return Verdict()
        values = whole(dict(read(item.path)))
        expected: Values = dict(named_arrays({n: to_numpy(v) for n, v in values.items()}))
        stored = read_inputs(item.target or "")
        got: Values = dict(stored) if isinstance(stored, dict) else {}
        if got.keys() != expected.keys():
            raise FormatError("does not hold the outputs of the model", item.target)
        for name, value in got.items():
            if value.dtype.kind == "V":  # a type that numpy itself does not know
                got[name] = value.view(expected[name].dtype)
        verdict.take(number, item.path, expected, got, tolerance)
        first += [expected] if number < FEW else []
    verdict.warnings.extend(weak_points(first, tolerance))
    return verdict


def weak_points(reference: Sequence[Values], tolerance: Tolerance) -> list[str]:
    """Why agreement with these outputs would prove little; a message an output."""
    messages = []
    for name in reference[0] if reference else ():
        reason = _weakness([values[name] for values in reference], tolerance)
        if reason:
            messages.append(f"output '{name}' {reason}: its agreement proves little")
    return messages


def _weakness(values: Sequence[Any], tolerance: Tolerance) -> str:
    arrays = [np.asarray(v) for v in values if not isinstance(v, list) and v is not None]
    if not arrays or any(a.dtype.kind in "OUS" for a in arrays):
        return ""
    if all(a.size == 0 for a in arrays):
        return "is empty"
    wide = [_widen(a) for a in arrays]
    if all(np.isnan(a).all() for a in wide):
        return "is all NaN"
    if all(a.size > 1 and (a == a.flat[0]).all() for a in wide):
        return "is one constant"
    if len(wide) > 1 and all(not compare_values(arrays[0], a, tolerance).fault for a in arrays[1:]):
        return "is the same for all samples"
    return ""


def first_difference(
    steps: Sequence[Step],
    whole: Call,
    sample: Mapping[str, Any],
    tolerance: Tolerance,
) -> str:
    """Say which stage computes something else than the whole model; empty: none does.

    Each stage alone, and each replica of it, gets the whole model's tensors. `whole` must hand
    out every tensor that crosses stages.
    """
    truth = {**sample, **whole(dict(sample))}
    for step in steps:
        for worker in step.workers:
            got = worker.run({name: truth[name] for name in step.inputs})
            for name in (n for n in step.outputs if n in truth):
                found = compare_values(to_numpy(truth[name]), to_numpy(got[name]), tolerance)
                if found.fault:
                    return f"{worker.name} is the first to differ, in tensor '{name}'"
    return ""


def exposed(model: ModelProto, parts: Sequence[ModelProto]) -> ModelProto:
    """A copy of the whole model that also hands out every tensor that crosses stages."""
    from onnx import ModelProto

    result = ModelProto()
    result.CopyFrom(model)
    known = {value.name for value in (*result.graph.output, *result.graph.input)}
    stored = {t.name for t in result.graph.initializer}
    for part in parts:
        for value in part.graph.output:
            if value.name not in known and value.name not in stored:
                known.add(value.name)
                result.graph.output.append(value)
    return result
