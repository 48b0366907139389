"""Find where a split model parts from the whole model, and the smallest model that shows it.

Tensors are seen by handing them out as outputs, one at a time, as it changes what ONNX Runtime
fuses: the middle one before an output that parts, and so on. A tensor is hidden, inside a kernel,
if other outputs change then.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dnnp.core.model.errors import FormatError, InputFileError
from dnnp.core.model.text import called, located_words
from dnnp.core.runtime.model.session import Values, to_numpy
from dnnp.core.runtime.pipeline.prepare import Pipeline
from dnnp.core.runtime.report.verify import Case, Tolerance, chain, compare_values, exposed, widened

if TYPE_CHECKING:
    from onnx import ModelProto

WHOLE = -1  # in place of a stage
_QUANTISED = ("Quantize", "DynamicQuantize", "QLinear", "MatMulInteger", "ConvInteger")
"""Beginnings of operators whose integers stand for numbers that are rounded."""
_MOST = 64  # tensors that are looked at, and smaller models that are tried


class Located(NamedTuple):
    """The first tensor that parts: for the run record, in words, and the smallest model."""

    record: dict[str, Any]
    lines: list[str]
    model: ModelProto | None = None


class Locator:
    """Looks into the whole model and its stages for one sample with an output that parts."""

    def __init__(self, pipeline: Pipeline, number: int, case: Case, tolerance: Tolerance) -> None:
        self.pipeline, self.number, self.tolerance = pipeline, number, tolerance
        whole = pipeline.made or pipeline.model
        self.models = [*(part.model for part in pipeline.parts), whole]
        stages = enumerate(part.model.graph.node for part in pipeline.parts)
        self.home = {name: i for i, nodes in stages for node in nodes for name in node.output}
        """Stage that makes a tensor."""
        made = ((name, node) for node in whole.graph.node for name in node.output)
        self.maker = {name: node for name, node in made if name and name in self.home}
        """Node of the whole model that makes a tensor; in topological order."""
        self.sample = dict(case.sample)
        self.truth = self.run(WHOLE, whole, self.sample) if pipeline.made else case.expected
        self.made = chain(pipeline.steps, number, self.sample)
        """Tensors between stages, one after the other."""
        self.seen: dict[str, tuple[Any, Any] | None] = {}
        """Values of a tensor in the whole model and in a stage; None: hidden."""

    def located(self) -> Located:
        """Find the first tensor that parts, and the smallest model; `DnnpError`: none runs."""
        from dnnp.formats.onnx.import_model import node_scope

        ends = [name for name in self.truth if name in self.maker]
        target = next((n for n in ends if self.differs(n, self.truth[n], self.made[n])), None)
        if target is None:
            words = "tensors were mixed up or drawn, or sums of shards round otherwise"
            words = f"nothing parts stage by stage: {words}"
            return Located({"reason": words}, [f"located     {words}"])
        name = self.first(target)
        whole, got = self.seen.get(name) or (self.truth[name], self.made[name])
        at, node = self.home[name], self.maker[name]
        layer = node_scope(node, node.name or name)
        words, model = self.cause(name, at, whole)
        record = {
            "tensor": name, "stage": at, "operator": node.op_type,
            "node": called(node.op_type, node.name, node.output),
            **({"layer": layer} if layer else {}),
        }  # fmt: skip
        lines = [
            f"located     {located_words(record)}",
            f"            {self.differs(name, whole, got)}{shown(whole, got, self.tolerance)}",
            f"because     {words}",
        ]
        if model is not None:
            count, of = (len(part.graph.node) for part in (model, self.models[at]))
            lines.append(
                f"smallest    a model of {count} of the {of} operators of the stage shows it"
            )
        return Located(record | {"reason": words}, lines, model)

    def first(self, target: str) -> str:
        """A tensor that parts though what its operator reads does not, up to a target."""
        from dnnp.formats.onnx.scope import reads

        names = [*self.maker]
        names = names[: names.index(target)]
        while names and len(self.seen) < _MOST:
            middle = len(names) // 2
            parts = self.parts(names[middle])
            if parts:
                target, names = names[middle], names[:middle]
            else:
                names = names[:middle] * (parts is None) + names[middle + 1 :]
        # What agrees may be on another way to it.
        read = sorted(self.maker.keys() & reads(self.maker[target]))
        before = next((name for name in read if self.parts(name)), None)
        return target if before is None else self.first(before)

    def parts(self, name: str) -> bool | None:
        """True if a tensor parts; None: it is hidden."""
        if name not in self.seen and not self.pipeline.watch.interrupted():
            self.seen[name], at = None, self.home[name]
            with suppress(InputFileError):  # not every tensor can be handed out
                whole, got = self.look(WHOLE, [name]), self.look(at, [name])
                if self.unchanged(whole, self.truth) and self.unchanged(got, self.made):
                    self.seen[name] = whole[name], got[name]
        pair = self.seen.get(name)
        return None if pair is None else bool(self.differs(name, *pair))

    def cause(self, name: str, at: int, expected: Any) -> tuple[str, ModelProto | None]:
        """Say what makes a tensor part: the stage, a cut, or what the stage gets; and show it."""
        inputs, nodes = self.pipeline.parts[at].inputs, self.pipeline.parts[at].nodes
        values, source = {n: self.made[n] for n in inputs} | {name: expected}, at
        truth, model = self.sample | self.look(WHOLE, inputs), exposed(self.models[at], [name])
        words = f"ONNX Runtime fuses across the cut at {', '.join(inputs)}, and computes otherwise"
        if self.unchanged(truth, self.truth):
            words = f"stage {at} receives it: it is right for the whole model's tensors"
            if self.differs(name, expected, self.run(at, model, truth)[name]):
                words = f"stage {at} makes it, also of the whole model's tensors"
                values, source = {n: truth[n] for n in inputs} | {name: expected}, WHOLE
                if self.shows(WHOLE, nodes, name, values) is not None:
                    words = "the cut makes it: the whole model's operators do too of what crosses"
        hidden = [name for name, pair in self.seen.items() if pair is None]
        words += f"; results change when {' or '.join(hidden[:4])} is handed out" * bool(hidden)
        return words, self.smallest(name, at, source, values)

    def smallest(self, name: str, at: int, source: int, values: Values) -> ModelProto | None:
        """The smallest model found that shows the difference of a tensor from its value.

        What it reads is from `source`. From the last operators, twice as many each time, ever
        smaller runs are left out (delta debugging, Zeller & Hildebrandt 2002).
        """
        from dnnp.formats.onnx.scope import reads

        graph, count, best = self.models[at].graph, 1, None
        inner = {other for other in self.maker if self.home[other] == at and other != name}
        last = next(v for v, node in enumerate(graph.node) if name in node.output)
        while best is None and count < 2 * (last + 1):
            nodes = [*range(max(last + 1 - count, 0), last + 1)]
            size, count = count // 2, 2 * count
            read = inner & {n for v in nodes for n in reads(graph.node[v])}
            values = {**self.look(source, read), **values}
            best = self.shows(at, nodes, name, values)
        while best is not None and size * _MOST > len(nodes):
            for run in [nodes[b : b + size] for b in range(0, len(nodes) - 1, size)]:
                fewer = [v for v in nodes if v not in run or v == last]
                if (found := self.shows(at, fewer, name, values)) is not None:
                    nodes, best = fewer, found
            size //= 2
        return best

    def shows(self, at: int, nodes: Iterable[int], name: str, values: Values) -> ModelProto | None:
        """A model of some operators, with values for its inputs; None: it shows no difference."""
        from onnx import helper, numpy_helper

        from dnnp.formats.onnx.fixed_inputs import part_model

        arrays = {n: v for n, v in values.items() if isinstance(v, np.ndarray)}
        held = {n: numpy_helper.from_array(v, n) for n, v in arrays.items()}
        types = {n: helper.make_tensor_type_proto(t.data_type, t.dims) for n, t in held.items()}
        if self.pipeline.watch.interrupted() or name not in types:
            return None
        with suppress(FormatError, InputFileError):  # what crosses may be no tensor
            part = part_model(self.models[at], nodes, [name], types)
            part.graph.initializer.extend(held[v.name] for v in part.graph.input if v.name in held)
            held[name].name = f"{name} of the whole model"
            part.graph.initializer.append(held[name])
            part.graph.output.add(name=held[name].name, type=types[name])
            return part if self.differs(name, values[name], self.run(at, part, {})[name]) else None
        return None

    def look(self, at: int, names: Iterable[str]) -> Values:
        """Outputs of a stage or the whole model, and tensors inside it."""
        feeds = self.sample if at == WHOLE else self.made
        return self.run(at, exposed(self.models[at], names), feeds)

    def run(self, at: int, model: ModelProto, feeds: Values) -> Values:
        """Outputs of a model that runs as a stage does, or the whole model."""
        if at == WHOLE:
            call = self.pipeline.reference(model)
        else:
            names, homes = [v.name for v in model.graph.output], self.pipeline.homes[at]
            config = self.pipeline.config.at(homes[self.number % len(homes)])
            call = self.pipeline.worker(f"stage {at}", model, names, config).run
        fed = {v.name: feeds[v.name] for v in model.graph.input if v.name in feeds}
        return {name: to_numpy(value) for name, value in call(fed).items()}

    def unchanged(self, values: Values, known: Values) -> bool:
        """True if tensors are what they were."""
        return not any(self.differs(n, known[n], v) for n, v in values.items() if n in known)

    def differs(self, name: str, expected: Any, got: Any) -> str:
        """Say how two values of a tensor differ; empty: they do not."""
        op = self.maker[name].op_type if name in self.maker else ""
        step = op.startswith(_QUANTISED) and expected.dtype == got.dtype
        expected, got = (widened(x) if step else x for x in (expected, got))
        limit = Tolerance(self.tolerance.rtol, self.tolerance.atol, float(step))
        return compare_values(expected, got, limit).mismatch


def shown(expected: Any, got: Any, limit: Tolerance) -> str:
    """Two arrays in words: where they are farthest apart, NaN and infinities, and the tolerance."""
    a, b = np.asarray(expected), np.asarray(got)
    if a.shape != b.shape or {a.dtype.kind, b.dtype.kind} & {*"OUS"} or not a.size:
        return ""
    x, y = widened(a).ravel(), widened(b).ravel()
    with np.errstate(invalid="ignore"):
        error = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    at = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    place = ", ".join(map(str, np.unravel_index(at, a.shape)))
    nans, infs = ([int(f(v).sum()) for v in (x, y)] for f in (np.isnan, np.isinf))
    return (
        f"; at [{place}] of {list(a.shape)}: {x[at]:.7g} in the whole model, {y[at]:.7g} in the "
        f"stage; NaN {nans[0]} and {nans[1]}, Inf {infs[0]} and {infs[1]}; tolerance for "
        f"{a.dtype}: rtol {limit.rtol:g}, atol {limit.atol:g}"
    )
