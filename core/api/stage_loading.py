"""Run the stages of an export, which need nothing of the stream that they are from."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from dnnp.core.model.errors import FormatError, UsageError
from dnnp.options.table import PROVIDERS


class Stages:
    """Exported stages, loaded into ONNX Runtime."""

    def __init__(self, manifest: Mapping[str, Any], runners: Mapping[int, Any]) -> None:
        self._manifest = manifest
        self._runners = runners
        self._inputs = [t for t in manifest["inputs"] if t["to"]]
        self._outputs = [t["name"] for t in manifest["outputs"]]
        self._later = _read_later(manifest)

    @property
    def manifest(self) -> Mapping[str, Any]:
        """The manifest, see dnnp-stages(5)."""
        return self._manifest

    @property
    def loaded(self) -> list[int]:
        """Numbers of the stages that are loaded."""
        return sorted(self._runners)

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that a sample must have."""
        return [tensor["name"] for tensor in self._inputs]

    @property
    def outputs(self) -> list[str]:
        """Names of the outputs of the model."""
        return list(self._outputs)

    def run(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Compute the outputs of the model for a sample: name -> array, as for its inputs.

        Raises
        ------
        UsageError
            Not all stages are loaded.
        FormatError
            An input is missing or unknown, or has another type or shape than the model declares.
        InputFileError
            ONNX Runtime cannot run a stage.
        """
        count = len(self._manifest["stages"])
        if len(self._runners) < count:
            raise UsageError(f"only {len(self._runners)} of {count} stages are loaded")
        values = self.accept(sample)
        for number in range(count):
            values = self.pass_on(number, values)
        return {name: values[name] for name in self._outputs}

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int = 128,
        *,
        in_flight: int = 8,
        rows: int = 1,
        chunk: int | None = None,
        stop: Sequence[int] = (),
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        seed: int = 0,
    ) -> Iterator[tuple[int, int]]:
        """Generate as `dnnp-run --generate` does: number of the prompt and token, as they come.

        Parameters
        ----------
        prompts
            Ids of each prompt, at least one, all of them words of the model.
        max_tokens
            Tokens for each of them, at most.
        in_flight
            Sequences under way at a time.
        rows
            Sequences of a pass over tokens, where these may have different lengths; else 1.
        chunk
            Tokens of a pass over prompts; None: all of one, of several together at most 256.
        stop
            Tokens after which a sequence ends.
        temperature, top_k, top_p, seed
            How tokens are drawn; temperature 0: the most likely ones.

        Raises
        ------
        UsageError
            Not all stages are loaded, not on CPUs, or they are of no decoder that is known.
        InputFileError
            ONNX Runtime cannot run a stage.
        VerificationError
            A logit is not a number.
        """
        from dnnp.core.runtime.generate.decoder import decoder_in
        from dnnp.core.runtime.generate.loop import SHARED, Generation, Prompt, StageRunner
        from dnnp.core.runtime.generate.sampling import MOST_WORDS, Sampling
        from dnnp.core.runtime.model.session import CpuStage

        found, count = self._manifest.get("decoder"), len(self._manifest["stages"])
        runners = [self._runners[number] for number in self.loaded]
        if found is None:
            raise UsageError("the export does not say how to generate with it")
        if len(runners) < count or not all(isinstance(r, CpuStage) for r in runners):
            raise UsageError("generating needs all stages, on CPUs")
        counts = [max_tokens, in_flight, rows, *([] if chunk is None else [chunk])]
        prompts = list(map(tuple, prompts))
        if not prompts or not all(prompts) or min(counts) < 1:
            raise UsageError("generating needs prompts, tokens and rows: at least one of each")
        if not (temperature >= 0 <= top_k and 0 < top_p <= 1):
            raise UsageError("temperature and top_k are from 0, top_p is above 0, up to 1")
        shapes = {t["name"]: t.get("planned_shape") for t in self._manifest["outputs"]}
        words = (shapes.get(found["logits"]) or [MOST_WORDS])[-1]
        for x in chain.from_iterable(prompts):
            if not (hasattr(x, "__index__") and 0 <= x < words):
                reason = f"its ids are whole numbers from 0 to {words - 1}"
                raise UsageError(f"{x} is no word of the model: {reason}")
        dtypes = {tensor["name"]: tensor["dtype"] for tensor in self._manifest["inputs"]}
        decoder = decoder_in(found, dtypes)
        rows = rows if decoder.by_row else 1
        longest = max(map(len, prompts))
        stages = [
            StageRunner(runner.session, runner.outputs, decoder, rows, longest + max_tokens)
            for runner in runners
        ]
        groups = max(1, -(-min(in_flight, len(prompts)) // rows))
        sampling = Sampling(temperature, top_k, top_p, seed)
        loop = Generation(stages, decoder, groups, chunk or max(SHARED, longest), sampling)
        ends = frozenset(stop)
        given = (Prompt(i, tuple(ids), max_tokens, ends) for i, ids in enumerate(prompts))
        return ((sequence.prompt.number, token) for sequence, token, _ in loop.run(given))

    def accept(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of a sample, after checking names, types and shapes."""
        from dnnp.core.runtime.model.inputs import InputSpec, check_sample
        from dnnp.formats.onnx.value_types import CONTAINERS, element_type

        known = [t for t in self._manifest["inputs"] if t["to"] or t["name"] in sample]
        specs = []
        for tensor in known:
            dtype, held = tensor.get("dtype"), tensor.get("element", "")
            element = element_type(held.removeprefix("sequence(").removesuffix(")") or dtype)
            kind = "tensor" if element else dtype if dtype in CONTAINERS else "untyped"
            if "sequence" in (dtype, held.partition("(")[0]):
                kind = "sequence" if element else "optional"  # as older manifests have it
            shape = tuple(tensor["shape"]) if "shape" in tensor else None
            specs.append(InputSpec(tensor["name"], kind, element, shape, dtype == "optional"))
        return dict(check_sample(sample, specs, ""))

    def pass_on(self, number: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Run one stage: what goes in, and comes out, is all that later stages still need.

        Raises
        ------
        UsageError
            The stage is not loaded.
        FormatError
            A tensor that it reads is not among the values.
        InputFileError
            ONNX Runtime cannot run it.
        """
        from dnnp.core.runtime.model.session import to_numpy

        if number not in self._runners:
            raise UsageError(f"stage {number} is not loaded")
        stage = self._manifest["stages"][number]
        feeds = {}
        for tensor in stage["inputs"]:
            if tensor["name"] not in values:
                raise FormatError(f"stage {number} reads '{tensor['name']}', which is not given")
            feeds[tensor["name"]] = values[tensor["name"]]
        made = self._runners[number](feeds)
        later = self._later[number]
        kept = {name: value for name, value in values.items() if name in later}
        return kept | {name: to_numpy(value) for name, value in made.items() if name in later}


def load_stages(
    path: str | os.PathLike[str],
    *,
    stages: Sequence[int] | None = None,
    provider: str = "cpu",
    threads: int = 1,
    verify: bool = True,
) -> Stages:
    """Load the stages of an export, to run them one after the other.

    Parameters
    ----------
    path
        Folder that `dnnp-export --to stages` wrote, or `--to triton`.
    stages
        Numbers of the stages to load; None: all.
    provider
        Execution provider of ONNX Runtime; `cuda`: stages go to GPUs in turn.
    threads
        Threads of each stage.
    verify
        Compare every file that is loaded with its digest, and refuse what was changed. Of hard
        links to the weights of a model, and of what was missing, no digest is known.

    Raises
    ------
    UsageError
        There is no such stage.
    FormatError
        The manifest is malformed, a file is not what was exported, or it has not got stages.
    InputFileError
        A file cannot be read, or ONNX Runtime cannot load it.
    UnavailableError
        The provider is not there.
    """
    from dnnp.core.runtime.model.providers import SessionConfig, places
    from dnnp.core.runtime.model.session import make_session, make_stage, own_seed, seeded
    from dnnp.formats.export.manifest import check_files, check_runs, read_manifest
    from dnnp.formats.onnx.load_model import load_with_hash

    if provider not in PROVIDERS:
        raise UsageError(f"provider '{provider}': choose from {', '.join(PROVIDERS)}")
    folder = Path(path)
    manifest = read_manifest(folder)
    check_runs(folder, manifest)
    numbers = _numbers(stages, len(manifest["stages"]))
    if verify:
        check_files(folder, manifest, numbers)
    config = SessionConfig(provider, threads=threads, pin=False)
    homes, _ = places(len(manifest["stages"]), config)
    runners = {}
    for number in numbers:
        entry = manifest["stages"][number]
        file = folder / entry["file"]
        model, _ = load_with_hash(file, light=True)
        peak = entry.get("peak_bytes", 0.0)
        mine, _ = seeded(config, model, number, base=own_seed)
        mine = replace(mine, as_listed=peak <= entry.get("default_peak_bytes", peak))
        mine = mine.at(homes[number])
        session = make_session(model, file.parent, mine)
        names = [tensor["name"] for tensor in entry["outputs"]]
        # All of it comes back: it is not known here where the next stage runs.
        runners[number] = make_stage(session, names, names, mine)
    return Stages(manifest, runners)


def _numbers(stages: Sequence[int] | None, count: int) -> list[int]:
    """Stages to load, ascending."""
    wanted = sorted({*(range(count) if stages is None else stages)})
    for number in wanted:
        if not 0 <= number < count:
            raise UsageError(f"there is no stage {number}: the export has {count}, from 0")
    return wanted


def _read_later(manifest: Mapping[str, Any]) -> list[set[str]]:
    """For each stage the tensors that stages after it read, or that the model hands out."""
    needed = {tensor["name"] for tensor in manifest["outputs"]}
    later = []
    for stage in reversed(manifest["stages"]):
        later.append(set(needed))
        needed |= {tensor["name"] for tensor in stage["inputs"]}
    return later[::-1]
