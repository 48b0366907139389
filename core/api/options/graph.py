"""Options of what reads, draws, prices and groups graphs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from dnnp.core.model.errors import UsageError
from dnnp.options.table import (
    ANY_FAMILY,
    DEFAULT_DEVICE,
    DEFAULT_RULES,
    DEFAULT_SHARE,
    FAMILIES,
    HERE,
    LAYERED,
    MODEL_FORMATS,
    OPTIMIZATIONS,
    OPTIMIZERS,
    PROFILE_MODES,
    PROVIDERS,
    READINGS,
    SHAPES,
    Options,
    option,
)  # fmt: skip

if TYPE_CHECKING:
    from dnnp.core.model.rules import RuleSet
    from dnnp.formats.inputs.devices import DeviceSpec


class TrainingOptions(Options):
    """Options of training."""

    # fmt: off
    training: bool = option(
        False, group="training", page=True,
        help="add the backward pass of an ONNX model; for planning: a node for each gradient, "
        "and the memory that training takes")
    optimizer: str | None = option(
        choices=OPTIMIZERS, needs=("--training",), page=True,
        help="adam (default), momentum or sgd; what updates the weights: it keeps two numbers "
        "for each of them (adam), one (momentum) or none (sgd), besides the gradients")
    mixed_precision: bool = option(
        False, needs=("--training",),
        help="compute in float16 what the model computes in float32; weights are kept in both")
    loss: Sequence[str] = option(
        (), needs=("--training",), metavar="OUTPUT",
        help="output of the model that is trained for; repeatable (default: all that have a "
        "gradient)")
    # fmt: on


class ImportOptions(TrainingOptions, first=True):
    """Options of an import."""

    # fmt: off
    kind: str | None = option(
        flag="--from", choices=MODEL_FORMATS, page=True,
        help="format of MODEL (default: by its extension); ONNX, the JSON of the 2020 "
        "device-placement workloads, a TensorFlow CostGraphDef as text, a graph of your own as "
        "CSV, in Graphviz' DOT, GraphML or GML, networkx's node-link JSON, or a task graph: STG, "
        "WfCommons, DAGBench; extensions: .json (told by content), .pbtxt, .csv, .dot, .gv, "
        ".graphml, .gml, .stg, else onnx")
    attribute: Sequence[str] | Mapping[str, str] = option(
        (), metavar="NAME=THEIRS", page=True,
        help="take an attribute from one of another name; such as time=Weight, of nodes or edges; "
        "csv, dot, graphml, gml, node-link: time, time:CLASS, memory, name, op, "
        "...; of edges size, transfer, tensor; csv: also the columns id, from, to; repeatable")
    edges: str | os.PathLike[str] | None = option(
        metavar="FILE",
        help="csv: the list of edges; MODEL is the list of nodes")
    one_tensor: bool = option(
        False,
        help="costgraph: a node makes one tensor, its first output, which also stands for its "
        "others")
    dims: Sequence[str] | Mapping[str, int | Sequence[int]] = option(
        (), flag="--dim", metavar="NAME=VALUE", page=True,
        help="size of a symbolic dimension; or of INPUT:AXIS, or of all axes as in "
        "INPUT=1x3x320x320; repeatable")
    set_input: Sequence[str] | Mapping[str, object] = option(
        (), metavar="NAME=VALUE", page=True,
        help="give an input of one element a value for good; true, false or a number: what "
        "follows is folded, and an If gives way to the branch that it takes; repeatable")
    keep_outputs: Sequence[str] = option(
        (), metavar="NAME,...", page=True,
        help="keep only these outputs of an ONNX model; operators, inputs and weights that they "
        "do not need are dropped; repeatable (default: all)")
    state: Sequence[str] | Mapping[str, str] = option(
        (), metavar="IN=OUT|none", page=True,
        help="take an input and an output as one state; of an ONNX model: it stays on its device "
        "from pass to pass, as the caches of a decoder, besides those that names and operators "
        "tell; none: take nothing as state; repeatable")
    phase: Sequence[str] = option(
        (), metavar="NAME:KEY=VALUE,...", page=True,
        help="price passes over prompts and tokens; of a decoder, each by itself: "
        "prompt:batch=1,seq=512 and token:batch=8,seq=1,past=512..768; KEY is batch, seq, past "
        "or a dimension, one of seq and past may be a range, and tokens may be priced for several "
        "batches, such as batch=4|16; repeatable")
    shapes: str = option(
        "auto", choices=SHAPES, page=True,
        help="value-info, infer, symbolic, run or auto (default); last step allowed for finding "
        "tensor shapes: what the model declares (value-info), ONNX shape inference (infer), that "
        "of ONNX Runtime (symbolic), or one run; auto: a run if the model is small; steps are "
        "skipped when nothing is missing")
    inputs: str | os.PathLike[str] | None = option(
        metavar="FILE", page=True,
        help="inputs of an ONNX model (default: random); .npz, .npy, .pb or a folder of "
        "input_0.pb, ...: give sizes of symbolic dimensions, and are what the model is run on if "
        "it is run")
    name: str | None = option(
        metavar="NAME", page=True,
        help="model name; default: from the file name, or family, size, seed and reading")
    # fmt: on

    def check(self) -> None:
        """Refuse what makes no sense."""
        super().check()
        check_text(self.name or "")

    @property
    def values(self) -> Mapping[str, str]:
        """Values of inputs, as text."""
        if isinstance(self.set_input, Mapping):
            return {name: str(value) for name, value in self.set_input.items()}
        return _pairs(self.set_input)

    @property
    def states(self) -> Mapping[str, str] | None:
        """Input -> output that carry state; None: nothing does."""
        if isinstance(self.state, Mapping):
            return self.state
        if "none" in self.state:
            if len(self.state) > 1:
                raise UsageError("--state none takes nothing as state: no other --state")
            return None
        return _pairs(self.state, "--state")

    @property
    def ours(self) -> Mapping[str, str]:
        """Attribute of dnnp -> what the graph calls it."""
        if isinstance(self.attribute, Mapping):
            return self.attribute
        pairs = (re.split(r",(?=[^,=]+=)", text) for text in self.attribute)
        return _pairs([pair for each in pairs for pair in each], "--attribute")

    @property
    def sizes(self) -> Sequence[str]:
        """Dimensions as the command takes them."""
        if isinstance(self.dims, Mapping):
            pairs = self.dims.items()
            return [f"{k}={v if isinstance(v, int) else 'x'.join(map(str, v))}" for k, v in pairs]
        return self.dims


class GenerateOptions(Options):
    """Options of a random graph."""

    # fmt: off
    name: str | None = option(
        metavar="NAME",
        help="model name (default: from the file name, or family, size, seed and reading)")
    synthetic: str = option(
        ANY_FAMILY, choices=(ANY_FAMILY, *FAMILIES, LAYERED), const=ANY_FAMILY, metavar="FAMILY",
        group="random graphs", page=True,
        help="no MODEL, but a random graph with costs; like those of REGAL: erdos-renyi, "
        "barabasi-albert, watts-strogatz, stochastic-block, or regal: one of them by the seed "
        "(default without FAMILY: regal); or layered: layers of operators, priced on four "
        "devices of unequal speed")
    nodes: int | None = option(
        least=0, metavar="N", page=True,
        help="number of nodes; default: from 50 to 200, by the seed; layered: 200")
    ratio: float | None = option(
        least=0, needs=(f"--synthetic {LAYERED}",), metavar="X",
        help="layered: mean transfer time over mean compute time (default: 1)")
    reading: str | None = option(
        choices=READINGS,
        help="how the 2024 paper is read where it says what a node costs, r being N(0, 0.1): "
        "absolute: what it reads and writes plus |r| of all tensors; cut-off: plus r of them, "
        "at least 0; own: what it reads and writes, times 1 + r; written: what it writes, times "
        "1 + r; normal: N(50, 10), while four nodes of five make no tensor, and a last node "
        "reads all unread tensors; not for layered (default: absolute)")
    seed: int | None = option(
        least=0, metavar="N", page=True,
        help="seed of the graph (default: 0)")
    # fmt: on

    def check(self) -> None:
        """Refuse what makes no sense."""
        super().check()
        check_text(self.name or "")
        if self.reading is not None and self.synthetic == LAYERED:
            raise UsageError(f"--reading is not for --synthetic {LAYERED}")


class ProfileOptions(Options):
    """Options of costs: what they are, and how they are found."""

    # fmt: off
    mode: str = option(
        "analytic", choices=PROFILE_MODES, page=True,
        help="analytic (default), measure or scaled; analytic: a roofline over work and "
        "traffic; measure: time the model with ONNX Runtime on this machine; scaled: carry the "
        "times of one class to others")
    device: Sequence[str] = option(
        (), metavar="NAME|FILE", page=True,
        help="class to price, such as cpu-here (default: cpu-core); by name or by device file; "
        "cpu-here: this machine, whose rates are measured at first use, in 20 seconds, and kept; "
        "repeatable, but not with --mode measure")
    costs: Sequence[str] = option(
        (), metavar="FILE", page=True,
        help="take costs from a file; whatever else the stream prices: a table (name, class, "
        "seconds), a profile of ONNX Runtime, what trtexec --exportProfile writes, with "
        "--exportLayerInfo beside it or not, or ONNX Runtime's memory of nodes; repeatable")
    model: str | None = option(
        metavar="PATH", group="measuring",
        help="the ONNX model, if it is not where it was imported from")
    provider: str = option(
        "cpu", metavar="NAME", page=True,
        help="what times the model, such as cuda (default: cpu); ONNX Runtime execution "
        "provider; needs --device: what it runs on")
    provider_option: Sequence[str] = option(
        (), metavar="NAME=VALUE",
        help="option of the provider, such as use_tf32=0; may be repeated")
    allow_fallback: bool = option(
        False,
        help="time nodes that the provider cannot run on the CPU; the header lists them "
        "(default: that is an error)")
    threads: int = option(
        1, least=1, metavar="N", page=True,
        help="threads of ONNX Runtime (default: 1)")
    optimization: str = option(
        "all", choices=OPTIMIZATIONS,
        help="graph optimization level of the run (default: all)")
    beside: int | None = option(
        least=0, most=4_096, metavar="N",
        help="parts of the model that run beside each on other cores, as other stages will "
        "(default: one fewer than the devices of the stream, or 1, as far as there are cores)")
    repeats: int = option(
        10, least=1, metavar="N",
        help="rounds, of which the median counts; more follow until the time of the model is "
        "known to 2%, but none after 20 seconds (default: 10)")
    warmup: int = option(3, least=0, metavar="N", help="runs before them (default: 3)")
    cache: str | None = option(
        apart="cache", metavar="DIR",
        help="where measured costs are kept (default: $XDG_CACHE_HOME/dnnp or ~/.cache/dnnp)")
    no_cache: bool = option(False, apart="cache", page=True, help="always measure, keep nothing")
    from_run: Sequence[str] = option(
        (), metavar="FILE", group="learning from runs", page=True,
        help="correct the costs by what runs measured; a file of dnnp-run --calibrate, or a "
        "stream with a run, of this or of other models; repeatable, more runs say more")
    tensor_parallel: int | None = option(
        least=2, most=1_024, metavar="T", group="parallel plans", page=True,
        help="price nodes on 2, 4, ... up to T devices too; by formula (default: nothing of it)")
    source: str | None = option(
        flag="--from", needs=("--mode scaled",), metavar="NAME|FILE", group="scaling", page=True,
        help="class whose times are carried over; by name or by device file (default: measured, "
        "the only one that the stream prices)")
    against: str | None = option(
        needs=("--mode scaled",), metavar="FILE",
        help="a stream of the same model that was measured on the device: say how far off the "
        "scaled times are")
    # fmt: on

    def check(self) -> None:
        """Refuse what makes no sense, and devices that are not known."""
        super().check()
        if self.costs and self.mode != "analytic":
            raise UsageError(f"--costs takes the place of --mode {self.mode}; give one of them")
        if self.from_run and self.mode == "scaled":
            raise UsageError("--from-run needs --mode analytic or measure, or --costs")
        if not self._on_cpu and self.mode != "measure":
            raise UsageError("--provider needs --mode measure")
        for flag, is_given in (
            ("--provider-option", bool(self.provider_option)),
            ("--allow-fallback", self.allow_fallback),
        ):
            if is_given and self._on_cpu:
                raise UsageError(f"{flag} needs --provider: another than that of the CPU")
        if self.mode == "scaled" and not self.device:
            raise UsageError("--mode scaled needs --device: the class to carry times to")
        if not self.costs:  # which may be for a class that only the stream knows
            self._check_devices([d if isinstance(d, str) else d.name for d in self.devices])

    def _check_devices(self, names: Sequence[str]) -> None:
        from dnnp.formats.inputs.devices import device_names

        if len(set(names)) < len(names):
            raise UsageError(f"--device: a class is there twice: {', '.join(names)}")
        if self.mode == "measure" and len(names) > 1:
            raise UsageError(
                "--mode measure times one class, such as this machine's CPU; give one --device"
            )
        if self.mode == "measure" and not self._on_cpu:
            if not self.device:
                raise UsageError(
                    f"--provider {self.provider} needs --device: the class that it runs on"
                )
            return
        if self.mode == "measure" and names[0] in device_names() and names[0] != DEFAULT_DEVICE:
            raise UsageError(
                f"--mode measure times this machine's CPU, which is no {names[0]}; "
                f"leave out --device, or give a device file of the CPU"
            )

    @cached_property
    def provider_options(self) -> tuple[tuple[str, str], ...]:
        """Options of the provider, by name."""
        from dnnp.core.runtime.model.providers import parse_options

        return parse_options(self.provider_option, [self.provider])

    @property
    def _on_cpu(self) -> bool:
        """True if the provider is that of this machine's CPU, by any name."""
        return self.provider.lower() in ("cpu", "cpuexecutionprovider")

    @cached_property
    def devices(self) -> list[DeviceSpec | str]:
        """The devices to price; a name stands for that of this machine."""
        from dnnp.formats.inputs.devices import load_device

        names = self.device or [DEFAULT_DEVICE]
        return [name if name == HERE else load_device(name) for name in names]


class CoarsenOptions(Options):
    """Options of groups. Without any of these: the rules `ort-cpu`, chains, and a share of 0.02."""

    # fmt: off
    rules: str | None = option(
        metavar="RULES", group="what to group", page=True,
        help="fuse operators: ort-cpu, ort-cuda, a file, ...; ort-cpu or ort-cuda: what ONNX "
        "Runtime fuses on a CPU or with CUDA; cudnn or tensorrt: what their documents list; "
        "moirai: Table I of the paper; none, or the path of a rule file; ort: what ONNX Runtime "
        "itself makes of this very model; without any of these options: "
        f"{DEFAULT_RULES}, with --chains --max-share {DEFAULT_SHARE}")
    model: str | None = option(
        needs=("--rules ort",), metavar="PATH",
        help="with --rules ort: the ONNX model, if it is not where the stream says")
    provider: str | None = option(
        choices=PROVIDERS, needs=("--rules ort",),
        help="with --rules ort: execution provider to optimise for (default: cpu)")
    chains: bool = option(
        False, page=True,
        help="join two groups where one alone follows the other; contracts series: one is all "
        "that reads the other, which is all that it waits for")
    max_share: float | None = option(
        least=0, needs=("--chains", "--to"), metavar="X", page=True,
        help="share of the work that a group may hold; with --chains or --to, besides its "
        "heaviest part, so that a long series stays divisible (default: 1, no limit); work is "
        "time, or bytes read and written while there are no costs")
    layers: bool = option(
        False, page=True,
        help="join what lies in the same layer; by the scopes in the names of the nodes")
    depth: int | None = option(
        least=1, needs=("--layers",), metavar="N",
        help="with --layers: number of scope components that tell layers apart (default: up to "
        "the innermost numbered component whose instances follow one another)")
    to: int | None = option(
        least=1, metavar="N", page=True,
        help="join groups of about equal work until there are N; along the largest tensors")
    # fmt: on

    def check(self) -> None:
        """Refuse what makes no sense, a rule file that is none too."""
        super().check()
        _ = self.rule_set  # which is read now, and refused if it is none

    @property
    def plain(self) -> bool:
        """True if nothing is said about what to group."""
        return self.rules is None and not self.chains and not self.layers and self.to is None

    @property
    def rule_name(self) -> str | None:
        """The rules that are meant."""
        return DEFAULT_RULES if self.plain else self.rules

    @property
    def own_rules(self) -> bool:
        """True if the rules are those of the user."""
        from dnnp.formats.files import bundled_names

        return self.rule_name not in bundled_names("rules")

    @cached_property
    def rule_set(self) -> RuleSet | None:
        """Rules to fuse by; None: none, or those of ONNX Runtime."""
        from dnnp.formats.inputs.rules import load_rules

        name = self.rule_name
        return None if name is None or name in ("none", "ort") else load_rules(name)

    @property
    def chain_share(self) -> float | None:
        """Share of the work up to which chains are joined; None: they are not."""
        if self.plain:
            return DEFAULT_SHARE
        return (1.0 if self.max_share is None else self.max_share) if self.chains else None


def _pairs(texts: Iterable[str], flag: str = "--set-input") -> dict[str, str]:
    """Values by name, from `NAME=VALUE`; UsageError: no such pair, or a name twice."""
    found: dict[str, str] = {}
    for text in texts:
        name, _, value = text.rpartition("=")
        if not name or not value or name in found:
            raise UsageError(f"{flag} {text}: give NAME=VALUE, once for each NAME")
        found[name] = value
    return found


def check_text(text: str) -> None:
    """Refuse a name that a stream cannot hold."""
    if text != text.encode(errors="replace").decode():
        raise UsageError(f"{text!a} is not UTF-8, so a stream cannot hold it; rename the file")
