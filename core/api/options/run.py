"""Options of what runs, exports, shows and checks plans."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dnnp.core.model.errors import UsageError
from dnnp.options.table import (
    ENGINES,
    EXPORTS,
    OPTIMIZATIONS,
    PROVIDERS,
    VIEW_AXES,
    VIEW_PICTURES,
    VIEW_TABLES,
    VIEWS,
    WORKERS,
    Options,
    option,
)  # fmt: skip

SWEEP = "sweep"
"""In place of a rate: a table for many rates."""

PART = ("--to subgraph",)
TABULAR = ("csv", "tsv", "md")
"""Views that are a table."""


class RunOptions(Options):
    """Options of a run: what is run, how, and what is checked."""

    # fmt: off
    provider: str = option(
        "cpu", metavar="NAME", group="what to run", page=True,
        help="execution provider, such as cuda (default: cpu); of ONNX Runtime; on GPUs stages "
        "and replicas go to these in turn")
    place: Sequence[str] = option(
        (), metavar="CLASS=NAME[:GPU]", page=True,
        help="provider of a device class or a device; with the number of the GPU, as in "
        "t4/1=cuda:0; may be repeated (default: --provider)")
    provider_option: Sequence[str] = option(
        (), metavar="NAME=VALUE",
        help="option of the providers other than cpu, such as use_tf32=0; may be repeated")
    allow_fallback: bool = option(
        False,
        help="let nodes that a provider cannot run run on the CPU; the record lists them "
        "(default: that is an error)")
    samples: int | None = option(
        short="-n", least=1, most=10_000_000, apart="samples", metavar="N", page=True,
        help="samples to measure (default: for a second); those of the schedule; or what takes "
        "a second, by the rate of the warm-up, and at least 32")
    warmup: int | None = option(
        least=0, most=1_000_000, metavar="N",
        help="samples before them that are not measured, for each replica of a stage (default: "
        "until the rate is steady, for two seconds at most; a measurement that other processes "
        "disturb is then repeated)")
    duration: float | None = option(
        above=0, most=1e6, apart="samples", metavar="S", page=True,
        help="in place of -n: samples for so many seconds; they set out, or arrive")
    rate: float | str | None = option(
        above=0, most=1e9, words=(SWEEP,), metavar="R", page=True,
        help="samples that arrive a second, or sweep; whatever becomes of those before them: "
        "latency counts from the arrival (default: for 10 seconds, and at least 32); sweep: "
        "tables for rates of 10 to 120 % of what the pipeline can do (for 2 seconds each, and "
        "at least 32)")
    arrivals: str = option(
        "poisson", needs=("--rate",), choices=("poisson", "uniform"),
        help="how they arrive: at random, or at equal distances (default: poisson)")
    inputs: Sequence[str] = option(
        (), metavar="FILE", page=True,
        help="one sample, or a folder of many (default: random); one: .npz by name, .npy or .pb "
        "for one input, or a folder of input_0.pb, ...; may be repeated; a folder of other such "
        "files, or - for names on standard input, one a line: many samples, each of which goes "
        "through once")
    null: bool = option(
        False, needs=("--inputs -",), help="names on standard input end with a NUL byte instead")
    outputs: str | None = option(
        needs=("--inputs",), metavar="DIR", page=True,
        help="write the outputs of each input there; to a file of its name, as .npz, and pass "
        "over inputs whose outputs are there")
    keep_going: bool = option(
        False,
        help="say which inputs fail, and go on with the others; the status is 1 then")
    seed: int = option(
        0, least=0, metavar="N",
        help="seed of random inputs, and of arrivals at random (default: 0)")
    random_weights: int | None = option(
        least=0, metavar="SEED",
        help="draw the weights that the model makes from one constant, or that are missing")
    model: str | None = option(
        metavar="PATH",
        help="the ONNX model, if it is not where the stream says")
    verify: bool = option(
        False, group="checks", page=True,
        help="compare outputs with those of the unsplit model")
    rtol: float | None = option(
        least=0, metavar="X",
        help="allowed error relative to each value (default: by the model's precision)")
    atol: float | None = option(
        least=0, metavar="X",
        help="allowed error relative to the largest value of an output (default: likewise)")
    locate: bool = option(
        False, needs=("--verify",), page=True,
        help="find the first tensor that parts, and why; its operator, stage and values")
    save_located: str | None = option(
        needs=("--locate",), metavar="FILE",
        help="write the smallest model that shows it, with values for its inputs")
    compare: bool = option(
        False, page=True,
        help="also time the whole model, and replicas of it; the model on all cores, replicas "
        "on one core each, at most as many as the plan uses devices")
    choose: bool = option(
        False, page=True,
        help="say what to deploy, after comparing so; until it is clear which is the fastest of "
        "those that fit the memory of the plan's devices (implies --compare)")
    save_outputs: str | None = option(
        metavar="FILE",
        help="write the outputs of each distinct sample as .npz")
    trace: str | None = option(
        metavar="FILE", page=True,
        help="write a timeline, for Perfetto or chrome://tracing; of what was measured")
    calibrate: str | None = option(
        metavar="FILE", page=True,
        help="write what loads tell of costs; for dnnp-profile --from-run")
    generate: int | None = option(
        least=1, most=10_000_000, metavar="T", group="generating (of decoders)", page=True,
        help="generate up to T tokens of each prompt; their states stay in the stages")
    prompts: str | None = option(
        needs=("--generate",), metavar="FILE|random",
        help="prompts as JSON lines with ids or text, max_tokens and stop (default: random; as "
        "long as those of the plan)")
    tokenizer: str | None = option(
        needs=("--generate",), metavar="FILE",
        help="tokenizer.json for text (default: beside the model; needs the extra 'text')")
    tokens: str | None = option(
        needs=("--generate",), metavar="FILE", page=True,
        help="write tokens as they come; a JSON object a line")
    under_way: int | None = option(
        needs=("--generate",), least=1, metavar="N",
        help="sequences under way at a time (default: as the plan has it)")
    pass_rows: int | None = option(
        flag="--rows", needs=("--generate",), least=1, metavar="B",
        help="sequences of a pass over tokens (default: as the phase was priced, or 1)")
    chunk: int | None = option(
        needs=("--generate",), least=1, metavar="S",
        help="tokens of a pass over prompts, between which other sequences go on (default: all)")
    temperature: float = option(
        0.0, needs=("--generate",), least=0, metavar="X",
        help="draw tokens at this temperature, by --seed (default: 0; the most likely one)")
    top_k: int | None = option(
        needs=("--generate",), least=1, metavar="K", help="draw among the K most likely tokens")
    top_p: float = option(
        1.0, needs=("--generate",), above=0, most=1, metavar="X",
        help="draw among the fewest tokens whose probability is X together (default: 1)")
    threads: int = option(
        1, least=1, most=1_024, metavar="N", group="how to run it", page=True,
        help="threads of a stage, or of each replica (default: 1)")
    queue: int = option(
        2, least=1, metavar="N",
        help="samples that may wait between neighbouring stages, if need be one for each "
        "replica; with a schedule: besides those that wait in it (default: 2)")
    emulate_links: bool = option(
        False,
        help="let the transfers of a schedule take as long as it says, by the links that are "
        "stated (default: copy the tensors)")
    no_pin: bool = option(False, help="let the system move threads between cores")
    workers: str = option(
        "thread", choices=WORKERS, page=True,
        help="thread (default) or process; what computes a stage: a thread of this process, or "
        "a process of its own, which gets tensors through shared memory")
    engine: str = option(
        "local", choices=ENGINES, page=True,
        help="local (default) or ray; local: stages run here, by --workers; ray: as actors on a "
        "Ray cluster (needs the extra 'ray')")
    ray_address: str | None = option(
        needs=("--engine ray",), metavar="ADDRESS",
        help="the cluster, as HOST:PORT, or auto for the one of this machine (default: one that "
        "is started, and shut down at the end)")
    retries: int = option(
        0, least=0, most=1_000, metavar="N",
        help="start each worker that is lost again, N times at most; the samples that it had "
        "are computed again (default: 0)")
    optimization: str = option(
        "all", choices=OPTIMIZATIONS,
        help="ONNX Runtime's graph optimization level (default: all)")
    # fmt: on

    def check(self) -> None:
        """Refuse what makes no sense."""
        super().check()
        if self.provider not in PROVIDERS or self.place:
            from dnnp.core.runtime.model.providers import parse_places, provider_name

            provider_name(self.provider)
            parse_places(self.place)
        self._check_inputs()
        if self.rate is not None and (self.compare or self.choose):
            raise UsageError("--rate: compare ways to run a model without it")
        if any(x is not None and not math.isfinite(x) for x in (self.rtol, self.atol)):
            raise UsageError("--rtol and --atol: must be finite")
        self._check_workers()
        if self.generate is not None:
            self._check_generation()

    def _check_generation(self) -> None:
        """Refuse what a decode loop does not do."""
        others = {
            "--retries": self.retries, "--provider": self.provider != "cpu",
            "--place": self.place, "--duration": self.duration, "--rate": self.rate,
            "--inputs": self.inputs, "--choose": self.choose, "--calibrate": self.calibrate,
            "--trace": self.trace, "--save-outputs": self.save_outputs,
            "--random-weights": self.random_weights is not None, "--locate": self.locate,
        }  # fmt: skip
        if self.tokens == "-":
            raise UsageError("--tokens -: standard output has the stream; give a file")
        if not self.temperature and (self.top_k is not None or self.top_p < 1):
            raise UsageError("--top-k and --top-p draw tokens: give --temperature too")
        if self.prompts not in (None, "random") and self.samples is not None:
            raise UsageError("-n is the number of random prompts: not with --prompts FILE")
        for name, given in others.items():
            if given:
                raise UsageError(f"--generate runs on the CPU, and has no {name}")

    @property
    def kind(self) -> str:
        """Kind of worker that computes a stage: a thread, a process or an actor of Ray."""
        return "ray" if self.engine == "ray" else self.workers

    def _check_workers(self) -> None:
        """Refuse what does not go with the kind of workers."""
        if self.engine == "ray" and self.workers != "thread":
            raise UsageError(f"--workers {self.workers}: with --engine ray stages are actors")
        if self.allow_fallback and self.kind != "thread":
            raise UsageError("--allow-fallback: only threads say what a provider leaves to the CPU")
        if self.retries and self.kind == "thread":
            raise UsageError("--retries: a thread cannot be lost; say --workers process")

    def _check_inputs(self) -> None:
        """Refuse inputs and outputs that do not go together."""
        if "-" in self.inputs and len(self.inputs) > 1:
            raise UsageError("--inputs -: names come from standard input alone, or are all given")
        if self.outputs is not None:
            self.refuse_with_files("--outputs")

    def refuse_with_files(self, what: str) -> None:
        """Refuse options that make no sense where, by `what`, each input goes through once."""
        for name in ("save_outputs", "compare", "choose", "duration", "rate"):
            if getattr(self, name):
                flag = self.rows[name].flag
                raise UsageError(f"{flag} and {what}: each input goes through once, not {flag}")


class ExportOptions(Options):
    """Options of an export."""

    # fmt: off
    to: str = option(
        "stages", choices=EXPORTS, page=True,
        help="stages (default), triton, msr-split, torch-csv, ...; stages: a folder with an "
        "ONNX model for each stage, and a manifest; genai: the same as a decoder pipeline of "
        "onnxruntime-genai; triton: the same as a model repository for Triton; ort-layers: the "
        "whole model, with stages as layers for ONNX Runtime; onnx-devices: with stages as device "
        "configurations of ONNX; subgraph: a part of the model; msr-split: the split as JSON, in "
        "the format of the 2020 device-placement paper; torch-csv: the schedule, a row a rank, for "
        "torch.distributed.pipelining; torch-comms-csv: the same with what ranks send one "
        "another; torch-plan: a row a stage, modules to split before, and degrees; torch: stages "
        "and schedule of training as one file of PyTorch")
    model: str | None = option(
        metavar="PATH", page=True,
        help="the ONNX model; if it is not where the stream says")
    from_: Sequence[str] = option(
        (), flag="--from", needs=PART, metavar="TENSOR", page=True, help="where a subgraph begins")
    upto: Sequence[str] = option(
        (), needs=PART, metavar="TENSOR", page=True, help="what a subgraph hands out; repeatable")
    part: Sequence[str] = option(
        (), needs=PART, metavar="NAME", page=True, help="layer or node in a subgraph; repeatable")
    schedule: str | None = option(
        needs=("--to torch",), metavar="FILE", page=True,
        help="whose schedule to follow (default: the plan's stream)")
    config: Sequence[str] = option(
        (), needs=("--to genai",), metavar="KEY=VALUE", page=True,
        help="with --to genai: a value of its configuration; that the one beside the model does "
        "not say, such as model.eos_token_id=2; repeatable")
    max_batch_size: int = option(
        0, least=0, most=2_147_483_647, needs=("--to triton",), metavar="N", page=True,
        help="with --to triton: the largest batch; along the first dimension of every tensor, "
        "which must be free in all of them (default: 0, tensors are as in the model)")
    # fmt: on


class ViewOptions(Options):
    """Options of a view."""

    # fmt: off
    as_: str = option(
        "text", flag="--as", choices=tuple(VIEWS), page=True,
        help="text, csv, md, svg, png, html, dot, trace, onnx, ...; text: what a person wants to "
        "know, on a terminal; csv, tsv, md: a table; svg, png (needs the extra 'png'): pictures; "
        "html: a page with all of it; dot, graphml: the graph for other programs; trace: schedule "
        "or latency for Perfetto; onnx: the model with stages and costs, for Netron (default: by "
        "the ending of the file that -o names; if it has none, with --plot svg, else text)")
    table: str | None = option(
        choices=VIEW_TABLES, needs=("--as csv|tsv|md",), page=True,
        help="stages, nodes, cuts, bounds, runs, ...; with --as csv, tsv or md: which table "
        "(default: stages of one stream, plans of several)")
    columns: str | Sequence[str] | None = option(
        needs=("--as csv|tsv|md",), several=True, metavar="NAME,...", page=True,
        help="only these columns of the table, in this order")
    digits: int | None = option(
        least=1, most=17, needs=("--as csv|tsv|md",), metavar="N", page=True,
        help="round numbers of the table; to so many significant digits (default: exact)")
    raw: bool = option(
        False, needs=("--as csv|tsv|md",),
        help="with --as csv, tsv or md: texts as they are, also where a spreadsheet would take "
        "them for formulas, or Markdown for HTML and links")
    picture: str | None = option(
        choices=VIEW_PICTURES, needs=("--as svg|png",), page=True,
        help="loads, schedule or graph; with --as svg or png: what loads are made of, the "
        "schedule, or the graph in the colours of its stages (default: all that there are, one "
        "below the other)")
    plot: str | None = option(
        choices=VIEW_AXES, needs=("--as svg|png",), page=True,
        help="a chart of plans' values, over k or method; over the number of devices or over "
        "the methods, with a panel for each model")
    model: str | None = option(
        needs=("--as html|onnx",), metavar="PATH", page=True,
        help="with --as html or onnx: the model; if it is not where the stream says")
    verbose: bool = option(
        False, flag="", help="text with all rows, not the most important ones alone")
    width: int = option(100, flag="", help="columns of a text")
    plain: bool = option(False, flag="", help="text in ASCII alone")
    color: bool = option(False, flag="", help="text whose bars have the colours of a terminal")
    # fmt: on

    def check(self) -> None:
        """Refuse what makes no sense."""
        super().check()
        if self.picture is not None and self.plot is not None:
            raise UsageError("--picture is for --as svg or png without --plot")


class CheckOptions(Options):
    """Options of a check: what is verified besides what always is, and gates."""

    # fmt: off
    certificate: bool = option(
        False, page=True,
        help="verify the bound exactly; by its certificate, or a search")
    max_gap: float | None = option(
        least=0, most=1, metavar="X", group="gates (status 8 where one does not hold)", page=True,
        help="the largest gap of the plan, such as 0.05; for 5 %; with --certificate of the gap "
        "that is proven")
    max_memory: float | str | None = option(
        above=0, unit="share_or_size", metavar="X|BYTES", page=True,
        help="the most that a device may need; up to 1 a share of its memory, such as 0.9 for "
        "90 %; above that bytes, such as 14Gi")
    min_throughput: float | str | None = option(
        above=0, unit="frequency", metavar="R", page=True,
        help="the fewest samples a second, such as 100/s; by the plan, or by its schedule if "
        "there is one")
    max_latency: float | str | None = option(
        above=0, unit="latency", metavar="T", page=True,
        help="the longest time of one sample, such as 50ms; by the same")
    min_tokens_per_s: float | str | None = option(
        above=0, unit="frequency", metavar="R", page=True,
        help="the fewest tokens a second, such as 100/s; by a plan for prompts and tokens")
    max_ttft: float | str | None = option(
        above=0, unit="latency", metavar="T", page=True,
        help="the longest time to first token; such as 200ms, by the same")
    max_tpot: float | str | None = option(
        above=0, unit="latency", metavar="T", page=True,
        help="the longest time of each later token; such as 30ms, by the same")
    measured: bool = option(
        False, page=True,
        needs=("--min-throughput", "--max-latency", "--max-memory", "--max-ttft", "--max-tpot",
               "--min-tokens-per-s"),
        help="judge what the last run measured; throughput, latency (its 99th percentile), memory, "
        "or times and rate of tokens")
    # fmt: on
