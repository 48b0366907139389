"""A folder that onnxruntime-genai opens: stages as a decoder pipeline, and its configuration.

The configuration is the one beside the source model, with stages in place of its model; or it
follows from the graph. What neither says is given as `KEY=VALUE`, such as `model.eos_token_id=2`.
As of onnxruntime-genai 0.18, layers keep the numbers that their caches have in the whole model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dnnp.core.model.errors import FormatError, UsageError
from dnnp.core.model.text import instead
from dnnp.formats.export.manifest import Record

CONFIG = "genai_config.json"

TOKENIZER = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "chat_template.*", "*.tiktoken", "sentencepiece*",
)  # fmt: skip
"""Files of a tokenizer beside a model."""

_TOLD = ("input_ids", "attention_mask", "position_ids", "inputs_embeds")
"""Inputs that are no caches, of names that onnxruntime-genai gives them."""

_REQUIRED = ("context_length", "eos_token_id", "pad_token_id")

_KNOWN: dict[str, dict[str, Any]] = {
    "": {"model": {}, "search": {}, "engine": {}, "speculative": {}},
    "model": dict.fromkeys((*_REQUIRED, "bos_token_id", "vocab_size"), 0)
    | {"type": "", "tokenizer_dir": "", "decoder": {}},
    "search": dict.fromkeys(
        ("batch_size", "chunk_size", "diversity_penalty", "length_penalty", "max_length",
         "min_length", "no_repeat_ngram_size", "num_beams", "num_return_sequences", "random_seed",
         "repetition_penalty", "temperature", "top_k", "top_p"), 0)
    | dict.fromkeys(("do_sample", "early_stopping", "past_present_share_buffer"), False),
}  # fmt: skip
"""Keys that onnxruntime-genai 0.18 has for texts, by the key above, with a value of their type."""


def genai_config(
    manifest: Record,
    states: Sequence[tuple[str, str]],
    folder: Path,
    given: Sequence[str],
    *,
    shared: bool,
) -> bytes:
    """The configuration of a decoder pipeline, as JSON.

    Parameters
    ----------
    manifest
        Of the stages.
    states
        Names of input and output of each state.
    folder
        Folder of the source model.
    given
        `KEY=VALUE`, keys with dots, values in JSON or as text.
    shared
        True if one buffer is both ends of a cache.

    Raises
    ------
    UsageError
        A value that is missing, or a key without one.
    FormatError
        The configuration beside the model is malformed, or caches have no numbers.
    """
    file = folder / CONFIG
    found = _read(file) if file.is_file() else _from_graph(manifest, states, folder)
    _set(found, f"search.past_present_share_buffer={json.dumps(shared)}")
    for text in given:
        _set(found, text)
    search, model = found["search"], found.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("decoder"), dict):
        raise FormatError("has no model.decoder", str(file))
    missing = [f"--config model.{name}=N" for name in _REQUIRED if name not in model]
    if missing:
        raise UsageError(f"nothing beside the model says it: give {' '.join(missing)}")
    search.setdefault("max_length", model["context_length"])
    model["type"] = "decoder-pipeline"
    decoder = model["decoder"]
    decoder.pop("filename", None)
    decoder["pipeline"] = [
        {
            f"stage-{stage['id']}": {
                "filename": f"stage-{stage['id']}/model.onnx",
                "inputs": [tensor["name"] for tensor in stage["inputs"]],
                "outputs": [tensor["name"] for tensor in stage["outputs"]],
                "run_on_prompt": True,
                "run_on_token_gen": True,
            }
        }
        for stage in manifest["stages"]
    ]
    return json.dumps(found, indent=2).encode() + b"\n"


def _read(file: Path) -> dict[str, Any]:
    """A configuration beside the source model; FormatError: it is no JSON object."""
    try:
        found = json.loads(file.read_bytes())
    except ValueError:
        raise FormatError("not JSON", str(file)) from None
    if not isinstance(found, dict):
        raise FormatError("no JSON object", str(file))
    return found


def _set(found: dict[str, Any], text: str) -> None:
    """Put the value of `KEY=VALUE` in its place, which is known and takes values of its type."""
    path, equals, value = text.partition("=")
    *above, last = path.split(".")
    if not equals or not all((*above, last)):
        raise UsageError(f"--config {text}: give KEY=VALUE, such as model.eos_token_id=2")
    for i, key in enumerate((*above, last)):
        own = _KNOWN.get(".".join(above[:i]))
        known = {**(own or {}), **found}
        if own is not None and key not in known:
            raise UsageError(f"--config {text}: there is no '{key}'{instead(key, known)}")
        if i < len(above):
            found = found.setdefault(key, {})
            if not isinstance(found, dict):
                raise UsageError(f"--config {text}: '{key}' has a value and no parts")
    try:
        new = json.loads(value, parse_constant=int)  # which refuses NaN and Infinity
    except ValueError:
        new = value
    old = new if known.get(last) is None else known[last]
    kinds = {float if type(v) is int else type(v) for v in (old, new)}
    if len(kinds) > 1 and (last, kinds) != ("eos_token_id", {float, list}):
        raise UsageError(f"--config {text}: '{last}' has values such as {json.dumps(old)[:40]}")
    found[last] = new


def _from_graph(
    manifest: Record, states: Sequence[tuple[str, str]], folder: Path
) -> dict[str, Any]:
    """The configuration by the graph, and by a `config.json` beside the model."""
    given = {tensor["name"]: tensor for tensor in manifest["inputs"]}
    inputs = {name: name for name in _TOLD if name in given}
    for name in sorted(given.keys() - inputs.keys() - {before for before, _ in states}):
        raise FormatError(f"onnxruntime-genai gives no input '{name}'")
    outputs = {"logits": "logits"}
    for what, word in (("key", "key"), ("value", "val")):
        pairs = [pair for pair in states if word in pair[1]]
        inputs[f"past_{what}_names"] = _pattern([before for before, _ in pairs], what)
        outputs[f"present_{what}_names"] = _pattern([after for _, after in pairs], what)
    cache = given[states[0][0]].get("shape", [0, 0, 0, 0])
    if len(cache) != 4:
        raise FormatError(f"the cache '{states[0][0]}' has {len(cache)} axes, not 4")
    logits = next((t for t in manifest["outputs"] if t["name"] == "logits"), None)
    if logits is None:
        raise FormatError("the model has no output 'logits'")
    beside = folder / "config.json"
    known = _read(beside) if beside.is_file() else {}
    heads = known.get("num_attention_heads", cache[1])
    model = {
        "vocab_size": int(logits.get("shape", [0])[-1]),
        "decoder": {
            "session_options": {"provider_options": []},
            "head_size": cache[3], "hidden_size": known.get("hidden_size", cache[3] * heads),
            "num_attention_heads": heads, "num_key_value_heads": cache[1],
            "num_hidden_layers": len(states) // 2,
            "inputs": inputs, "outputs": outputs,
        },
    }  # fmt: skip
    for ours, theirs in (
        ("context_length", "n_positions"), ("context_length", "max_position_embeddings"),
        *((f"{name}_token_id",) * 2 for name in ("eos", "bos", "pad")),
    ):  # fmt: skip
        if known.get(theirs) is not None:
            model[ours] = known[theirs]
    return {"model": model}


def _pattern(names: Sequence[str], what: str) -> str:
    """The names of the caches of all layers, with %d for the number of the layer."""
    patterns = {re.sub(r"\d+", "%d", name, count=1) for name in names}
    if len(patterns) != 1:
        listed = ", ".join(sorted(patterns)[:3]) or f"no state has '{what[:3]}' in its name"
        raise FormatError(f"the {what}s of layers have no names of one kind: {listed}")
    return patterns.pop()


def tokenizer_files(folder: Path) -> Mapping[str, bytes]:
    """Files of the tokenizer beside a model: name -> contents."""
    found = {path for pattern in TOKENIZER for path in folder.glob(pattern) if path.is_file()}
    return {path.name: path.read_bytes() for path in sorted(found)}
