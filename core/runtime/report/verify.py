"""Compare the split model with the whole model, and explain differences.

The cause of a small difference is found by running the whole model again with one property of the
split at a time: if its outputs are then equal bit by bit, that property is the cause. A cut between
stages is imitated by passing the tensor through an ONNX sequence: nothing is fused across it, it is
stored in its declared type, and only a declaration gives its sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import DnnpError, FormatError
from dnnp.core.runtime.model.session import Values, to_numpy
from dnnp.formats.tensors import named_arrays, read_inputs

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TypeProto

    from dnnp.core.runtime.pipeline.sources import Item
    from dnnp.core.runtime.pipeline.steps import Call, Step
    from dnnp.formats.onnx.stages import StageModel


Array = NDArray[Any]

_BY_PRECISION = {
    "float64": (1e-7, 1e-9),
    "float32": (1e-4, 1e-5),
    "tf32": (1e-2, 1e-2),
    "float16": (1e-2, 2e-3),
    "bfloat16": (5e-2, 1e-2),
    "quantized": (2e-2, 2e-2),
    "blocks": (5e-2, 5e-2),
}
"""(rtol, atol) by the coarsest arithmetic in a model: other kernels round elsewhere.

TF32 rounds what it multiplies to the 11 bits of half precision, and does so in every product in a
row: 53 convolutions were off by 0.6 % of the largest value. With weights quantised in blocks ONNX
Runtime rounds activations to 8 bits where it fuses the product, which a cut may prevent."""
_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
_BLOCKS = ("MatMulNBits", "MatMulBnb4", "GatherBlockQuantized", "QMoE")


@dataclass(frozen=True)
class Tolerance:
    """|got - expected| <= max(atol * (largest |expected|), floor) + rtol * |expected|."""

    rtol: float
    atol: float
    floor: float = 0.0
    """Difference of the whole model from itself in this tensor."""


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

    from dnnp.formats.onnx.scope import all_nodes

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
    if any(node.op_type in _QUANTIZERS for node in all_nodes(model)):
        precision = "quantized"
    if TensorProto.BFLOAT16 in elements:
        precision = "bfloat16"
    if any(map(_has_blocks, all_nodes(model))):
        precision = "blocks"
    standard = _BY_PRECISION[precision]
    return Tolerance(standard[0] if rtol is None else rtol, standard[1] if atol is None else atol)


def _has_blocks(node: NodeProto) -> bool:
    """True if a node reads weights that are quantised in blocks."""
    if node.op_type == "DequantizeLinear":
        return any(a.name == "block_size" and a.i > 0 for a in node.attribute)
    return node.op_type in _BLOCKS


@dataclass(frozen=True)
class Difference:
    """Difference of two values of one tensor."""

    max_abs: float = 0.0
    """Largest difference where both are finite."""
    max_rel: float = 0.0
    """The same over the largest magnitude expected."""
    mismatch: str = ""
    """Reason for a mismatch; empty: they agree."""


def compare_values(expected: Any, got: Any, tolerance: Tolerance) -> Difference:
    """Compare two arrays, or two lists of arrays.

    Floating-point numbers may differ by the tolerance; NaN and infinities must be at the same
    places. Everything else must be equal.
    """
    if isinstance(expected, list) or isinstance(got, list):
        return _compare_lists(expected, got, tolerance)
    if expected is None or got is None:
        return Difference(mismatch="" if expected is got else "one of them is empty")
    a, b = np.asarray(expected), np.asarray(got)
    if a.dtype != b.dtype:
        return Difference(mismatch=f"dtype {b.dtype}, expected {a.dtype}")
    if a.shape != b.shape:
        return Difference(mismatch=f"shape {list(b.shape)}, expected {list(a.shape)}")
    if a.dtype.kind == "O" or a.dtype.kind in "US":
        wrong = int((a != b).sum())
        return Difference(mismatch=f"{wrong} strings differ" if wrong else "")
    if a.dtype.kind in "biu":
        return _compare_exact(a, b)
    return _compare_floats(widened(a), widened(b), tolerance)


def widened(array: Array) -> Array:
    """Numbers in double precision; complex ones stay."""
    return array if array.dtype.kind == "c" else array.astype(np.float64)


def _compare_exact(a: Array, b: Array) -> Difference:
    wrong = int((a != b).sum())
    if not wrong:
        return Difference()
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
    allowed = max(tolerance.atol * (scale or 1.0), tolerance.floor) + tolerance.rtol * np.abs(x)
    beyond = int((error > allowed).sum())
    mismatch = ""
    if odd:
        mismatch = f"NaN or infinity at {odd} places on one side only"
    elif beyond:
        mismatch = f"{beyond} of {a.size} values differ by more than the tolerance"
    return Difference(largest, largest / (scale or 1.0), mismatch)


def _compare_lists(expected: Any, got: Any, tolerance: Tolerance) -> Difference:
    if not (isinstance(expected, list) and isinstance(got, list)) or len(expected) != len(got):
        return Difference(mismatch="sequences of different length")
    parts = [compare_values(a, b, tolerance) for a, b in zip(expected, got, strict=True)]
    return Difference(
        max((p.max_abs for p in parts), default=0.0),
        max((p.max_rel for p in parts), default=0.0),
        next((p.mismatch for p in parts if p.mismatch), ""),
    )


_NAMED = 4
"""Nodes or tensors that a message names."""
FEW = 16
"""Files whose outputs are compared with each other too."""


@dataclass
class Verdict:
    """Outcome of a verification."""

    samples: int = 0
    """Outputs compared."""
    max_abs: float = 0.0
    max_rel: float = 0.0
    mismatch: str = ""
    """The worst mismatch: output, sample, largest error; empty: verified."""
    warnings: list[str] = field(default_factory=list)
    self_error: float = 0.0
    """Difference of the whole model from itself, relative to the largest value of an output, where
    that was allowed."""
    worst: int = 0
    """The sample with the largest error."""
    cause: str = ""
    """Known cause of small differences, in words; empty: none."""
    parted: dict[int, float] = field(default_factory=dict)
    """Sample with a mismatch -> its largest error, relative likewise."""
    parting: tuple[int, Case] | None = None  # the worst of them

    def take(self, number: int, case: Case, tolerance: Tolerance) -> None:
        """Compare the outputs of sample `number`."""
        self.samples += 1
        for name, value in case.got.items():
            found = compare_values(case.expected[name], value, tolerance)
            self.worst = number if found.max_rel > self.max_rel else self.worst
            self.max_abs = max(self.max_abs, found.max_abs)
            self.max_rel = max(self.max_rel, found.max_rel)
            if found.mismatch:
                if found.max_rel > max(self.parted.values(), default=-1.0):
                    self.mismatch = _mismatch_words(name, case.shown, found)
                    self.parting = number, case
                self.parted[number] = max(self.parted.get(number, 0.0), found.max_rel)

    def examine(self, case_of: Callable[[int], Case], examiner: Examiner) -> None:
        """Examine mismatches, the worst first, until one is a real error.

        Where the whole model differs from itself by as much in all of them, there is none.
        """
        for number in sorted(self.parted, key=lambda number: -self.parted[number]):
            self.mismatch = examiner.mismatch(number, case_of(number))
            if self.mismatch:
                return
        self.self_error = examiner.self_error

    @property
    def ok(self) -> bool:
        """True if all outputs agree."""
        return not self.mismatch


def _mismatch_words(name: str, shown: str, found: Difference) -> str:
    return f"output '{name}' of {shown}: {found.mismatch} (largest error {found.max_abs:.3g})"


def _worst(mismatches: Mapping[str, Difference], shown: str, cause: str) -> str:
    """The largest of some mismatches, and what causes it."""
    name = max(mismatches, key=lambda n: mismatches[n].max_rel)
    return f"{_mismatch_words(name, shown, mismatches[name])}; {cause}"


def verify_cases(
    numbers: Iterable[int],
    case_of: Callable[[int], Case],
    tolerance: Tolerance,
    reference: Sequence[Values] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> Verdict:
    """Compare outputs of samples with those of the whole model, one by one.

    `case_of` reads one of them; see `case_of_file` for what it raises. `reference` is all that the
    whole model made, if that is known.
    """
    verdict = Verdict()
    first: list[Values] = []
    for number in numbers:
        if stopped():
            return Verdict()
        case = case_of(number)
        verdict.take(number, case, tolerance)
        first += [case.expected] if len(first) < FEW else []
    verdict.warnings.extend(weak_points(reference or first, tolerance))
    return verdict


def case_of_file(item: Item, read: Callable[[str], Mapping[str, Any]], whole: Call) -> Case:
    """A sample whose outputs stand in a file; `DnnpError` if a file cannot be read any more."""
    sample = dict(read(item.path))
    values = whole(dict(sample))
    expected: Values = dict(named_arrays({n: to_numpy(v) for n, v in values.items()}))
    stored = read_inputs(item.target or "")
    got: Values = dict(stored) if isinstance(stored, dict) else {}
    if got.keys() != expected.keys():
        raise FormatError("does not hold the outputs of the model", item.target)
    for name, value in got.items():
        if value.dtype.kind == "V":  # a type that numpy itself does not know
            got[name] = value.view(expected[name].dtype)
    return Case(item.path, sample, expected, got)


def weak_points(reference: Sequence[Values], tolerance: Tolerance) -> Iterator[str]:
    """Messages about outputs whose agreement is weak evidence."""
    for name in reference[0] if reference else ():
        reason = _weakness([values[name] for values in reference], tolerance)
        if reason:
            yield f"output '{name}' {reason}: its agreement proves little"


def _weakness(values: Sequence[Any], tolerance: Tolerance) -> str:
    arrays = [np.asarray(v) for v in values if not isinstance(v, list) and v is not None]
    if not arrays or any(a.dtype.kind in "OUS" for a in arrays):
        return ""
    if all(a.size == 0 for a in arrays):
        return "is empty"
    wide = [widened(a) for a in arrays]
    if all(np.isnan(a).all() for a in wide):
        return "is all NaN"
    if all(a.size > 1 and (a == a.flat[0]).all() for a in wide):
        return "is one constant"
    if len(wide) > 1 and all(
        not compare_values(arrays[0], a, tolerance).mismatch for a in arrays[1:]
    ):
        return "is the same for all samples"
    return ""


class Case(NamedTuple):
    """A sample, and what was made of it."""

    shown: str
    """Name in messages."""
    sample: Mapping[str, Any]
    expected: Values
    """Outputs of the whole model."""
    got: Values
    """Outputs of the pipeline."""


@dataclass
class Examiner:
    """Finds out why outputs are not those of the whole model.

    Tensors were mixed up if each stage alone makes the right ones of the right ones, and one stage
    after the other, by name, makes something else than the pipeline. Rounding may grow from stage
    to stage: by how much is seen in the whole model, run with and without optimisation.
    """

    steps: Sequence[Step]
    tolerance: Tolerance
    opened: Call
    """The whole model, or what was made of it, with every tensor that crosses stages."""
    plain: Call | None
    """The same without optimisation; None: it does not run so."""
    drawing: Sequence[str]
    """Nodes that draw numbers, in words."""
    made: bool
    """True if the split model was derived from the model, with other rounding."""
    floors: dict[str, float] = field(default_factory=dict)
    """Tensor -> what the whole model differs from itself by, the largest of all samples."""
    self_error: float = 0.0
    """The same of outputs that differed by no more, relative to their largest values."""

    def mismatch(self, number: int, case: Case) -> str:
        """Say why outputs of sample `number` differ; empty: as the whole model does from itself."""
        truth, drawn = self._twice(self.opened, case.sample)
        others = [] if self.made else [(case.expected, drawn)]
        others += [] if self.plain is None else [self._twice(self.plain, case.sample)]
        for other, unsteady in others:
            for name in other.keys() & truth.keys() - drawn - unsteady:
                error = compare_values(truth[name], other[name], self.tolerance).max_abs
                self.floors[name] = max(self.floors.get(name, 0.0), error)
        mismatches = self._mismatches(case)
        steady = {name: found for name, found in mismatches.items() if name not in drawn}
        if cause := self._cause(number, case, truth, drawn) if steady else "":
            return _worst(steady, case.shown, cause)
        beyond = {name: steady[name] for name in steady if name in self._mismatches(case, self._of)}
        if beyond:
            return _worst(beyond, case.shown, self._growth(beyond))
        if len(steady) < len(mismatches):
            return _worst(mismatches, case.shown, self._draws("the whole model"))
        for name, found in steady.items():
            relative = self.floors.get(name, 0.0) * found.max_rel / (found.max_abs or 1.0)
            self.self_error = max(self.self_error, relative)
        return ""

    def drawn(self, case: Case) -> str:
        """Name an output that the whole model, run again, makes otherwise; empty: none."""
        # What a new session draws first may be what the stages drew.
        _, drawn = self._twice(self.opened, case.sample)
        named = [f"output '{name}' of {case.shown}: " for name in case.got if name in drawn]
        return named[0] + self._draws("the whole model") if named else ""

    def _draws(self, subject: str) -> str:
        named = ", ".join(self.drawing[:_NAMED]) or "no operator that is known to draw"
        return f"cannot be verified: {subject} draws other numbers each time ({named})"

    def _twice(self, call: Call, sample: Mapping[str, Any]) -> tuple[Values, set[str]]:
        """Tensors of a sample, and those that are others when it runs again."""
        one, two = ({n: to_numpy(v) for n, v in call(dict(sample)).items()} for _ in range(2))
        return one, {n for n in one if compare_values(one[n], two[n], self.tolerance).mismatch}

    def _mismatches(
        self, case: Case, limit: Callable[[str], Tolerance] | None = None
    ) -> dict[str, Difference]:
        """Outputs that differ, by the tolerance or by one for each name."""
        found = {
            name: compare_values(case.expected[name], v, limit(name) if limit else self.tolerance)
            for name, v in case.got.items()
        }
        return {name: difference for name, difference in found.items() if difference.mismatch}

    def _of(self, name: str) -> Tolerance:
        return replace(self.tolerance, floor=self.floors.get(name, 0.0))

    def _cause(
        self, number: int, case: Case, truth: Mapping[str, Any], drawn: Collection[str]
    ) -> str:
        """Name the first stage that is wrong, or say that tensors were mixed up; empty: neither."""
        values, cause = {**case.sample, **truth}, ""
        for step in self.steps:
            for worker in step.workers:
                feeds = {name: values[name] for name in step.inputs}
                got, unsteady = self._twice(worker.run, feeds)
                for name in (n for n in step.outputs if n in truth and n not in drawn):
                    if not compare_values(truth[name], got[name], self._of(name)).mismatch:
                        continue
                    if name not in unsteady:
                        return f"{worker.name} is the first to differ, in tensor '{name}'"
                    cause = cause or self._draws(worker.name)
        one, unsteady = self._twice(partial(chain, self.steps, number), case.sample)
        for name, value in case.got.items():
            steady = name not in drawn and name not in unsteady
            if steady and compare_values(one[name], value, self.tolerance).mismatch:
                return "every stage alone is right: tensors were mixed up between the stages"
        return cause

    def _growth(self, names: Iterable[str]) -> str:
        """Say that the outputs `names` differ by more than the whole model does from itself."""
        if self.made:
            return (
                "every part alone is right: sums of parts are rounded otherwise, or the model was "
                "cut in a wrong way"
            )
        own = max(self.floors.get(name, 0.0) for name in names)
        return (
            "every stage alone is right, and hands on what it makes: differences of rounding grow "
            f"from stage to stage (the whole model differs from itself by {own:.3g})"
        )


def chain(steps: Sequence[Step], number: int, sample: Values) -> Values:
    """Run stages one after the other, each with what those before it made; returns all tensors."""
    values, left = sample, list(steps)
    while left:
        step = next(s for s in left if all(name in values for name in s.inputs))
        left.remove(step)
        worker = step.workers[number % len(step.workers)]
        made = worker.run({name: values[name] for name in step.inputs})
        values |= {name: to_numpy(value) for name, value in made.items()}
    return values


def exposed(model: ModelProto, names: Iterable[str]) -> ModelProto:
    """A copy of a model that also hands out other tensors that its nodes make."""
    from onnx import ModelProto

    result = ModelProto()
    result.CopyFrom(model)
    known = {value.name for value in (*result.graph.output, *result.graph.input)}
    known.update(t.name for t in result.graph.initializer)
    for name in dict.fromkeys(names):
        if name not in known:
            result.graph.output.add(name=name)
    return result


_NORMALISING = ("LayerNormalization", "SimplifiedLayerNormalization", "ReduceMean")
"""Operators that read the sum before a layer normalisation, whole or in parts."""
_SUM = "a cut at the sum before LayerNormalization, which if fused adds in another order"
_HALF = "rounding to 16 bits where tensors cross stages, within which CPUs compute in 32"
_FUSED = "cuts through what ONNX Runtime fuses in the whole model"
_SIZES = "sizes that only stages, or only the whole model, know: they decide what becomes Gemm"


def cause_of(
    case: Case,
    model: ModelProto,
    parts: Sequence[StageModel],
    crossing: Values,
    opened: Callable[[ModelProto], Call],
) -> str:
    """Find what makes a sample's outputs other ones; empty: nothing that is known does.

    `crossing` are the sample's tensors between stages; `opened` makes a session for a model.
    """
    from onnx import helper

    inputs = {v.name: v.type for part in parts for v in part.model.graph.input}
    types = {n: inputs[n] for part in parts for n, i in part.sources.items() if i >= 0}
    sized = {
        n: helper.make_tensor_type_proto(kind.tensor_type.elem_type, crossing[n].shape)
        for n, kind in types.items()
    }

    def makes(variant: ModelProto, expected: Values) -> bool:
        """True if a model makes exactly these values."""
        with suppress(DnnpError):
            made, exact = opened(variant)(dict(case.sample)), Tolerance(0.0, 0.0)
            pairs = ((value, to_numpy(made[name])) for name, value in expected.items())
            return not any(compare_values(*pair, exact).mismatch for pair in pairs)
        return False

    def because_of(words: str, names: Collection[str]) -> str:
        """The cause in words, if cuts of these tensors alone make the same bits."""
        some = {name: kind for name, kind in types.items() if name in names}
        shown = ", ".join(f"'{name}'" for name in [*some][:_NAMED])
        dots = ", ..." * (len(some) > _NAMED)
        same = some and makes(_cut(model, parts, some), case.got)
        return f"{words} ({shown}{dots})" if same else ""

    normal = {n for v in model.graph.node if v.op_type in _NORMALISING for n in v.input[:1]}
    sums = {n for v in model.graph.node if v.op_type == "Add" for n in v.output} & normal
    halves = {n for n, kind in types.items() if kind.tensor_type.elem_type in (10, 16)}
    if cause := because_of(_SUM, sums) or because_of(_HALF, halves):
        return cause
    if makes(_cut(model, (), types), case.got):
        return _SIZES
    cause = because_of(_FUSED, types)
    return _SIZES if cause and makes(_cut(model, parts, sized), case.expected) else cause


def _cut(
    model: ModelProto, parts: Sequence[StageModel], types: Mapping[str, TypeProto]
) -> ModelProto:
    """Cut tensors on their way to stages, and declare their types; no stages: declare alone."""
    from onnx import helper

    from dnnp.formats.onnx.scope import nested_nodes

    result = type(model)()
    result.CopyFrom(model)
    graph = result.graph
    for part in parts:
        cut = {n: f"{n}~cut" for n, i in part.sources.items() if i >= 0 and n in types}
        for node in nested_nodes(graph.node[v] for v in part.nodes):
            node.input[:] = [cut.get(name, name) for name in node.input]
    stated = {value.name for value in (*graph.value_info, *graph.output)}
    for name, kind in types.items():
        if not parts and name not in stated:
            graph.value_info.add(name=name, type=kind)
        elif parts:
            empty, held, after = (f"{name}~{end}" for end in ("empty", "held", "cut"))
            graph.value_info.add(name=after, type=kind)
            dtype = kind.tensor_type.elem_type
            graph.node.append(helper.make_node("SequenceEmpty", [], [empty], dtype=dtype))
            graph.node.append(helper.make_node("SequenceInsert", [empty, name], [held]))
            graph.node.append(helper.make_node("SequenceAt", [held, "~0"], [after]))
    graph.initializer.append(helper.make_tensor("~0", 7, [], [0]))
    return result
