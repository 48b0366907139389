"""Generate over the stages of a plan: prompts in, tokens out, rates and a comparison."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import orjson

from dnnp.callbacks import Callbacks, open_source
from dnnp.core.model.errors import FormatError, InputFileError, UsageError, VerificationError
from dnnp.core.model.processes import available_cores
from dnnp.core.model.text import counted, shown_seconds
from dnnp.core.runtime.generate.decoder import Decoder, State, decoder_of, named_states
from dnnp.core.runtime.generate.head import keep_last
from dnnp.core.runtime.generate.loop import (
    SHARED,
    WHOLE,
    Generated,
    Generation,
    Prompt,
    ShardedStage,
    StageRunner,
    parted,
)
from dnnp.core.runtime.generate.sampling import MOST_WORDS, Sampling
from dnnp.core.runtime.generate.text import Text
from dnnp.core.runtime.limits import making_session
from dnnp.core.runtime.model.providers import Place, SessionConfig
from dnnp.core.runtime.model.session import make_session
from dnnp.core.runtime.model.weights import Weights, shard_weights
from dnnp.core.runtime.pipeline.prepare import RAY, THREAD, pooled_worker, shared_model
from dnnp.deployment.workers import pool_of
from dnnp.formats.graph import graph_of
from dnnp.formats.onnx.stages import split_model
from dnnp.formats.onnx.value_types import TensorType, types_of
from dnnp.formats.phases import check_positions
from dnnp.formats.plan import check_runnable, plan_digest, plan_of
from dnnp.formats.stream import Stream
from dnnp.options.run import RunOptions
from dnnp.workload import has_shards, refuse_contradictions, refuse_infeasible

if TYPE_CHECKING:
    from onnx import ModelProto

    from dnnp.core.runtime.generate.remote import RemoteStage
    from dnnp.core.runtime.workers.pool import WorkerPool
    from dnnp.formats.onnx.shards import StatePart
    from dnnp.formats.onnx.stages import StageModel

RANDOM = "random"
FIELDS = ("ids", "text", "max_tokens", "stop")
"""Fields of a prompt; those of other programs begin with x_."""
PROMPTS, LENGTH, BRIEF_S = 8, 16, 0.1
"""Random prompts at least, their tokens where no plan says how many, and time to generate after
them by the rate of the plan."""

TIE = {True: 2e-2, False: 1e-5}
"""Share of the largest logit by which those of two tokens may differ where either is right: with
8-bit activations (matrix products of 4 bits at accuracy level 4), and without."""

MOST_NAMED = 3

REPLICAS = 2
"""Sessions of the whole model, side by side, that `--compare` times beside one."""


def read_prompts(
    data: bytes, file: str, most: int, words: int = MOST_WORDS, encode: Callable[[str], Any] = list
) -> list[Prompt]:
    """Prompts from JSON lines with `ids`, each below `words`, or `text`; `max_tokens` and `stop`.

    FormatError: a line is no such object.
    """
    found: list[Prompt] = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            raise FormatError("not JSON", file, number) from None
        row = row if type(row) is dict else {"ids": None}
        if unknown := sorted(name for name in row.keys() - set(FIELDS) if name[:2] != "x_"):
            raise FormatError(f"is none of {', '.join(FIELDS)}", file, number, unknown[0])
        if type(text := row.get("text")) is str and "ids" not in row:
            row = {**row, "ids": encode(text)}
        if not _are_ids(row.get("ids")) or not row["ids"]:
            raise FormatError("is no list of ids", file, number, "ids")
        if max(row["ids"]) >= words:
            reason = f"{max(row['ids'])} is no word of the model, which has {words}"
            raise FormatError(reason, file, number, "ids")
        if not _are_ids(row.get("stop", [])):
            raise FormatError("is no list of ids", file, number, "stop")
        count = row.get("max_tokens", most)
        if type(count) is not int or count < 1:
            raise FormatError("is no number of at least 1", file, number, "max_tokens")
        stop = frozenset(row.get("stop", ()))
        found.append(Prompt(len(found), tuple(row["ids"]), min(count, most), stop))
    if not found:
        raise FormatError("no prompts", file)
    return found


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(type(x) is int and 0 <= x < MOST_WORDS for x in value)


def random_prompts(count: int, length: int, words: int, most: int, seed: int) -> list[Prompt]:
    """Prompts of random ids; the last is not one of the first three, which often mean padding."""
    rng = np.random.default_rng(seed)
    low = min(3, words - 1)
    ids = rng.integers(low, words, size=(count, length))
    return [Prompt(i, tuple(map(int, row)), most) for i, row in enumerate(ids)]


class _Setting:
    """The setting of a generation: the model, its plan, and how rows share passes."""

    def __init__(self, stream: Stream, options: RunOptions) -> None:
        caller = options.caller
        self.options, self.caller = options, caller
        graph = graph_of(stream)
        plan = plan_of(stream, graph)
        if plan is None:
            raise UsageError(f"{stream.name}: no plan to run; run dnnp-partition first")
        refuse_contradictions(stream, plan)
        refuse_infeasible(stream, plan)
        check_runnable(plan, graph, "generating needs an ordered plan")
        self.plan, self.graph, self.stream = plan, graph, stream
        if has_shards(plan) and options.kind != THREAD:
            raise UsageError(f"--workers {options.kind}: stages on several devices run in threads")
        model, path, _ = open_source(caller, stream, options.model, light=options.kind != RAY)
        self.model: ModelProto = model
        self.folder: Path = path.parent
        self.decoder: Decoder = decoder_of(model, named_states(stream.records))
        file = options.tokenizer or os.fspath(self.folder / "tokenizer.json")
        self.text = Text(caller.read_input, file, options.tokenizer is not None)
        self.known = {n: TensorType(t.dtype, None) for n, t in types_of(stream).items()}
        workload = plan.options.workload
        self.rows = options.pass_rows or (1 if workload is None else workload.rows)
        if self.rows > 1 and not self.decoder.by_row:
            caller.note("rows cannot be padded where caches grow: one sequence a pass")
            self.rows = 1
        flow = options.under_way or plan.options.in_flight or self.rows * len(plan.stages)
        # Random prompts are twice as many as keep all stages busy.
        self.prompts = self._prompts(stream, min(flow, 2 * self.rows * len(plan.stages)))
        self.rows = min(self.rows, len(self.prompts))
        self.groups = max(1, -(-min(flow, len(self.prompts)) // self.rows))
        longest = max(len(p.ids) + p.most for p in self.prompts)
        check_positions(stream, longest, "a prompt and what follows")
        if longest > (plan.options.max_length or longest):
            caller.note(f"{longest} tokens; the plan has room for {plan.options.max_length}")
        self.tokens = max(longest, 2)
        self.chunk = options.chunk or max(SHARED, *(len(p.ids) for p in self.prompts))
        self.sampling = Sampling(
            options.temperature, options.top_k or 0, options.top_p, options.seed
        )

    def _prompts(self, stream: Stream, flow: int) -> list[Prompt]:
        most = self.options.generate or 0
        given = self.options.prompts
        shapes = (t.get("shape") for t in stream.get("tensor") if t["name"] == self.decoder.logits)
        words = (next(shapes, None) or [MOST_WORDS])[-1]
        if given not in (None, RANDOM):
            path = os.fspath(given)
            data = self.caller.read_input(path)
            return read_prompts(data, path, most, words, self.text.ids)
        workload = self.plan.options.workload
        length = LENGTH if workload is None else max(1, round(workload.prompt))
        count = self.options.samples
        if count is None:  # for a tenth of a second, so that stages are busy for most of it
            rate = (self.plan.tokens_per_s or 0.0) / max(most, 1)
            count = max(PROMPTS, flow, min(round(rate * BRIEF_S), 8 * flow))
        return random_prompts(count, length, words, most, self.options.seed)

    def config(self, threads: int | None = None, *, alone: bool = False) -> SessionConfig:
        """Settings of a session, which may run `alone`; `threads`: None: those of a stage."""
        own = threads or self.options.threads
        return SessionConfig("cpu", self.options.optimization, own, pin=False, alone=alone)

    def cores(self, stages: int) -> Sequence[int]:
        """A core for each stage of one thread; none where there are too few, or one pass alone."""
        cores = available_cores()
        free = self.options.no_pin or self.options.threads > 1 or stages > len(cores)
        return () if free or min(stages, self.groups) < 2 else cores[:stages]

    def parts(self, nodes: Sequence[Sequence[int]]) -> list[StageModel]:
        """Models of stages of these nodes, with logits of last positions alone."""
        made = split_model(self.model, nodes, self.known)
        for part in made:
            keep_last(part.model, self.decoder.logits)
        return made

    def sharded(self) -> list[ShardedStage]:
        """The stages of the plan that several devices hold, and others, in this process."""
        from dnnp.deployment.shards import runnable_shards

        found = runnable_shards(
            self.caller, self.stream, self.graph, self.plan, self.model, generating=True
        )
        made = found.made
        if made is None:
            raise AssertionError("nothing was cut")
        logits = {x for e in made.exchanges if e.tensor == self.decoder.logits for x in e.parts}
        whole = {state.input: state for state in self.decoder.states}
        states = [_part_of(whole[part.whole[0]], part) for part in made.states]
        decoder = replace(self.decoder, states=states)
        weights = shard_weights(made.model, made.slices, self.folder, {})
        stages: list[list[StageRunner]] = [[] for _ in self.plan.stages]
        parts = split_model(made.model, [p.nodes for p in found.parts], self.known | {**made.types})
        for owner, part in zip(found.owners, parts, strict=True):
            torn = [
                s.input for s in states if s.input in part.inputs and s.output not in part.outputs
            ]
            if torn:
                reason = "is read apart from what makes it: its stage must be on one device"
                raise FormatError(f"the state '{torn[0]}' {reason}")
            for name in (self.decoder.logits, *sorted(logits)):
                keep_last(part.model, name)
            name, config = f"stage {owner}", self.config()
            stages[owner].append(self._runner(part, name, config, decoder, weights))
        return [ShardedStage(each) for each in stages]

    def remote(self, pool: WorkerPool[Any], nodes: Sequence[Sequence[int]]) -> list[RemoteStage]:
        """The stages of the plan, of these nodes, in workers that are ready."""
        from dnnp.core.runtime.generate.remote import DecodeRecipe, RemoteStage
        from dnnp.core.runtime.workers.messages import SessionRecipe
        from dnnp.core.runtime.workers.pool import WorkerSpec

        cores, found = self.cores(len(nodes)), []
        after = {state.output for state in self.decoder.states}
        for i, (part, stage) in enumerate(zip(self.parts(nodes), self.plan.stages, strict=True)):
            place = pool.place(Place(cores=tuple(cores[i : i + 1])))
            made = tuple(name for name in part.outputs if name not in after)
            session = SessionRecipe(made, str(self.folder.resolve()), self.config().at(place))
            recipe = DecodeRecipe(session, self.decoder, self.rows, self.tokens)
            shared = shared_model(pool, part.model, self.folder, {})
            spec = WorkerSpec(f"stage {i}", place, stage.homes[0], self.options.threads)
            worker = pooled_worker(pool, spec, recipe, shared)
            found.append(RemoteStage(worker, frozenset(part.inputs), self.rows, self.tokens))
        pool.ready()
        return found

    def stages(
        self, nodes: Sequence[Sequence[int]], threads: int | None = None, *, alone: bool = False
    ) -> list[StageRunner]:
        """Stages of these nodes in this process, ready to run."""
        config = self.config(threads, alone=alone)
        return [
            self._runner(part, WHOLE if threads else f"stage {i}", config, self.decoder)
            for i, part in enumerate(self.parts(nodes))
        ]

    def _runner(
        self, part: StageModel, name: str, config: SessionConfig, decoder: Decoder,
        weights: Weights | None = None,
    ) -> StageRunner:  # fmt: skip
        """A stage in this process, ready to run within the limits."""
        with making_session(name):
            session = make_session(part.model, self.folder, config, weights)
        return StageRunner(session, part.outputs, decoder, self.rows, self.tokens, name)


def _part_of(state: State, part: StatePart) -> State:
    """The state of a device."""
    shape = (n // (part.devices if a == part.axis else 1) for a, n in enumerate(state.shape))
    return replace(state, input=part.own[0], output=part.own[1], shape=tuple(shape))


def generate_stream(stream: Stream, options: RunOptions) -> None:
    """Generate over the plan of a stream, and put what was measured into it.

    Raises
    ------
    UsageError
        There is no plan, or options do not fit it.
    FormatError
        The model is no decoder that is known, or the prompts are malformed.
    VerificationError
        Logits hold NaN, or the whole model gives other tokens.
    """
    setting = _Setting(stream, options)
    caller = options.caller
    parts = [stage.nodes for stage in setting.plan.stages]
    with caller.interruptible():
        done, seconds = _over_stages(setting, parts)
        found = _figures(done, seconds)
        if setting.text.wanted:
            found["texts"] = list(map(setting.text.texts.get, sorted(setting.text.texts)))
        caller.note(f"{_words(found)}{_predicted(setting)}")
        if options.compare and not caller.interrupted:
            found["whole_tokens_per_s"] = _copies(setting, parts, 1)
        if options.compare and options.threads * len(parts) > 1 and not caller.interrupted:
            found["replicas_tokens_per_s"] = _copies(setting, parts, REPLICAS)
        if options.verify and not caller.interrupted:
            found["ties"] = _verify(setting, done, caller)
        if caller.interrupted:
            found["interrupted"] = True
    found |= {"rows": setting.rows, "in_flight": setting.groups * setting.rows}
    if options.kind != THREAD:
        found["workers"] = options.kind
    found["digest"] = plan_digest(stream.get("plan")[0], stream.get("stage"))
    stream.replace("generation", [{"type": "generation", **found}])


def _over_stages(
    setting: _Setting, parts: Sequence[Sequence[int]]
) -> tuple[list[Generated], float]:
    """Generate over stages, which end then; see `_generate`."""
    options, caller, joint = setting.options, setting.caller, has_shards(setting.plan)
    with pool_of(options, by_device=False) as pool, _tokens_file(options.tokens) as tokens:
        loop = Generation(
            setting.sharded() if joint
            else setting.stages(parts) if pool is None else setting.remote(pool, parts),
            setting.decoder, setting.groups, setting.chunk, setting.sampling,
            lambda: caller.interrupted, () if pool is not None or joint
            else setting.cores(len(parts)),
        )  # fmt: skip
        return _generate(loop, setting.prompts, tokens, setting.text)


@contextmanager
def _tokens_file(path: str | None) -> Iterator[IO[bytes] | None]:
    """The file that tokens go to as they come, a JSON object a line."""
    try:
        with nullcontext() if path is None else open(path, "wb") as file:
            yield file
    except OSError as error:
        if path is None or isinstance(error, BrokenPipeError):
            raise
        raise InputFileError(f"{error.filename or path}: {error.strerror}") from None


def _generate(
    loop: Generation, prompts: Iterable[Prompt], tokens: IO[bytes] | None, text: Text | None = None
) -> tuple[list[Generated], float]:
    """Run all prompts; the sequences in order of their numbers, and seconds."""
    began, seen = time.perf_counter(), dict[int, Generated]()
    for sequence, token, ended in loop.run(prompts):
        seen[sequence.prompt.number] = sequence
        row: dict[str, Any] = {"sequence": sequence.prompt.number, "token": token}
        if text is not None and text.wanted:
            row["text"] = text.piece(sequence.prompt.number, token, ended)
        if tokens is not None:
            if ended:
                row["end"] = "stop" if token in sequence.prompt.stop else "length"
            tokens.write(orjson.dumps(row) + b"\n")
            tokens.flush()
    last = max((sequence.times[-1] for sequence in seen.values()), default=began)
    return [seen[number] for number in sorted(seen)], last - began


def _copies(setting: _Setting, parts: Sequence[Sequence[int]], count: int) -> float:
    """Tokens per second of sessions of the whole model that share the threads of all stages."""
    caller, threads = setting.caller, setting.options.threads * len(parts) // count
    nodes = [[node for part in parts for node in part]]
    cores = setting.cores(count) if threads == 1 else ()
    loops = [
        Generation(
            setting.stages(nodes, threads, alone=count == 1), setting.decoder,
            max(1, setting.groups // count), setting.chunk, setting.sampling,
            lambda: caller.interrupted, cores[i : i + 1],
        )
        for i in range(count)
    ]  # fmt: skip
    waiting = iter(setting.prompts)  # for whichever session has room first
    with ThreadPoolExecutor(count) as pool:
        ran = list(pool.map(lambda loop: _generate(loop, waiting, None), loops))
    done = [sequence for sequences, _ in ran for sequence in sequences]
    found = _figures(done, max(seconds for _, seconds in ran))
    what = "whole model" if count == 1 else f"{count} replicas of it, each"
    caller.note(f"{what} on {counted(threads, 'thread')}: {_words(found)}")
    return float(found["tokens_per_s"])


def _figures(done: Sequence[Generated], seconds: float) -> dict[str, Any]:
    """Rates and times of a generation."""
    first = [s.times[0] - s.began for s in done]
    later = [b - a for s in done for a, b in zip(s.times, s.times[1:], strict=False)]
    count = sum(len(s.tokens) for s in done)
    found: dict[str, Any] = {"sequences": len(done), "tokens": count}
    found["tokens_per_s"] = count / seconds if seconds else 0.0
    for name, values in (("ttft", first), ("tpot", later)):
        if values:
            for part in (50, 99):
                found[f"{name}_p{part}_s"] = float(np.percentile(values, part))
    return found


def _words(found: dict[str, Any]) -> str:
    """Say how fast it was."""
    words = f"{counted(found['tokens'], 'token')} of {counted(found['sequences'], 'sequence')}, "
    words += f"{found['tokens_per_s']:.4g} tokens/s"
    for name in ("ttft", "tpot"):
        if f"{name}_p50_s" in found:
            each = [shown_seconds(found[f"{name}_p{part}_s"]) for part in (50, 99)]
            words += f", {name.upper()} {each[0]} (99 %: {each[1]})"
    return words


def _predicted(setting: _Setting) -> str:
    """The rate that the plan predicts, if what ran is what it is for."""
    plan, workload = setting.plan, setting.plan.options.workload
    if workload is None or plan.tokens_per_s is None or setting.rows != workload.rows:
        return ""
    lengths = [len(prompt.ids) for prompt in setting.prompts]
    as_planned = round(sum(lengths) / len(lengths)) == round(workload.prompt)
    whole = workload.prompt_past > 0 or setting.chunk >= max(lengths)
    if round(workload.tokens) != setting.options.generate or not (as_planned and whole):
        return ""
    return f"; predicted {plan.tokens_per_s:.4g} tokens/s"


def _verify(setting: _Setting, done: Sequence[Generated], caller: Callbacks) -> int:
    """Compare tokens with those of the whole model in one session; returns how many parted at ties.

    VerificationError: others differ.
    """
    with making_session(WHOLE):
        session = make_session(setting.model, setting.folder, setting.config())
    near = TIE[_has_int8_products(setting.model)]
    ties, wrong = 0, list[str]()
    for sequence in done:
        prompt = sequence.prompt
        others = parted(session, setting.decoder, sequence, setting.chunk, setting.sampling)
        far = [f"token {at} (by {apart:.2g})" for at, apart in others.items() if apart > near]
        far += [] if sequence.ended else ["its end"]
        wrong += [f"sequence {prompt.number} at {each}" for each in far[:1]]
        ties += bool(others) and not far
    if wrong:
        named = ", ".join(wrong[:MOST_NAMED]) + ", ..." * (len(wrong) > MOST_NAMED)
        raise VerificationError(
            f"the whole model gives other tokens: {named}; beyond {near:g} of the largest logit"
        )
    said = f"; {counted(ties, 'sequence')} with ties" if ties else ""
    caller.note(f"verified: {counted(len(done), 'sequence')} as by the whole model{said}")
    return ties


def _has_int8_products(model: ModelProto) -> bool:
    """True if matrix products take activations in 8 bits."""
    return any(
        a.name == "accuracy_level" and a.i == 4
        for node in model.graph.node
        if node.op_type == "MatMulNBits"
        for a in node.attribute
    )
