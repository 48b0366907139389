"""Folders that onnxruntime-genai opens: stages, configuration, tokenizer."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from dnnp import export, load, load_stages, profile, split
from dnnp.core.model.errors import FormatError, UsageError
from dnnp.graph import Graph
from support.decoder_models import WORDS, eager_decoder, grouped_decoder

PHASES = ["prompt:batch=1,seq=4..40", "token:batch=1,past=4..60"]
GIVEN = ["model.eos_token_id=49", "model.pad_token_id=0", "model.context_length=128"]


def planned(path: Path) -> Graph:
    return split(profile(load(path, phase=PHASES)), k=2, workload=[(8, 12)])


def config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "genai_config.json").read_bytes())


def test_config_from_the_graph(tmp_path: Path) -> None:
    graph = planned(eager_decoder(tmp_path / "m.onnx"))
    export(graph, tmp_path / "out", to="genai", config=[*GIVEN, "search.top_k=5"])
    found = config(tmp_path / "out")
    model, decoder = found["model"], found["model"]["decoder"]
    assert model["type"] == "decoder-pipeline"
    assert (model["vocab_size"], model["eos_token_id"], model["pad_token_id"]) == (WORDS, 49, 0)
    assert (decoder["head_size"], decoder["num_key_value_heads"]) == (16, 2)
    assert decoder["num_hidden_layers"] == 4
    assert decoder["inputs"] == {
        "input_ids": "input_ids", "position_ids": "position_ids",
        "past_key_names": "past_key_values.%d.key", "past_value_names": "past_key_values.%d.value",
    }  # fmt: skip
    assert decoder["outputs"]["present_value_names"] == "present.%d.value"
    assert found["search"] == {
        "past_present_share_buffer": False, "top_k": 5, "max_length": 128
    }  # fmt: skip


def test_stages_run_as_the_config_lists_them(tmp_path: Path) -> None:
    path = eager_decoder(tmp_path / "m.onnx")
    export(planned(path), tmp_path / "out", to="genai", config=GIVEN)
    values: dict[str, Any] = {
        "input_ids": np.array([[3, 5, 7, 9]]), "position_ids": np.arange(4)[None, :]
    }  # fmt: skip
    for i in range(4):
        for what in ("key", "value"):
            values[f"past_key_values.{i}.{what}"] = np.zeros((1, 2, 0, 16), np.float32)
    whole = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    right = whole.run(["logits"], values)[0]
    pipeline = config(tmp_path / "out")["model"]["decoder"]["pipeline"]
    assert len(pipeline) == 2
    for number, entry in enumerate(pipeline):
        ((name, stage),) = entry.items()
        assert name == f"stage-{number}"
        session = onnxruntime.InferenceSession(
            tmp_path / "out" / stage["filename"], providers=["CPUExecutionProvider"]
        )
        assert {x.name for x in session.get_inputs()} == set(stage["inputs"])
        made = session.run(stage["outputs"], {n: values[n] for n in stage["inputs"]})
        values |= dict(zip(stage["outputs"], made, strict=True))
    assert np.array_equal(values["logits"], right)


def test_config_beside_the_model(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    beside: dict[str, dict[str, Any]] = {
        "model": {
            "type": "llama", "context_length": 64, "eos_token_id": 1, "pad_token_id": 1,
            "decoder": {"filename": "m.onnx", "hidden_size": 32, "head_size": 16},
        },
        "search": {"max_length": 50},
    }  # fmt: skip
    (source / "genai_config.json").write_text(json.dumps(beside))
    (source / "tokenizer.json").write_text("{}")
    (source / "notes.txt").write_text("mine")
    graph = planned(grouped_decoder(source / "m.onnx"))
    export(graph, tmp_path / "out", to="genai")
    found = config(tmp_path / "out")
    assert found["model"]["type"] == "decoder-pipeline"
    assert "filename" not in found["model"]["decoder"]
    assert found["model"]["decoder"]["hidden_size"] == 32
    assert found["search"] == {"max_length": 50, "past_present_share_buffer": True}
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert not (tmp_path / "out" / "notes.txt").exists()
    for text, reason in (
        ("[]", "no JSON object"), ("{", "not JSON"), ('{"model":[]}', "has no model.decoder"),
        ("{}", "has no model.decoder"), ('{"model":{"decoder":1}}', "has no model.decoder"),
    ):  # fmt: skip
        (source / "genai_config.json").write_text(text)
        with pytest.raises(FormatError, match=re.escape(f"genai_config.json: {reason}")):
            export(graph, tmp_path / "other", to="genai")
    with pytest.raises(FormatError, match="has no model"):
        export(graph, tmp_path / "other", to="genai", config=["model={}"])
    (source / "genai_config.json").write_text('{"model":{"decoder":{}},"search":[]}')
    with pytest.raises(UsageError, match="'search' has a value and no parts"):
        export(graph, tmp_path / "other", to="genai")
    beside["model"]["eos_token_id"] = [1, 2]
    (source / "genai_config.json").write_text(json.dumps(beside))
    export(graph, tmp_path / "third", to="genai", config=["model.eos_token_id=3"])
    assert config(tmp_path / "third")["model"]["eos_token_id"] == 3
    (source / "genai_config.json").unlink()
    (source / "config.json").write_text("{")
    eager = planned(eager_decoder(source / "e.onnx"))
    with pytest.raises(FormatError, match=r"/config\.json: not JSON"):
        export(eager, tmp_path / "other", to="genai", config=GIVEN)


@pytest.mark.parametrize(
    ("make", "to"),
    [(eager_decoder, "stages"), (eager_decoder, "genai"), (grouped_decoder, "stages")],
)
def test_exported_stages_generate(tmp_path: Path, make: Any, to: str) -> None:
    graph = planned(make(tmp_path / "m.onnx"))
    export(graph, tmp_path / "out", to=to, config=GIVEN if to == "genai" else ())
    stages = load_stages(tmp_path / "out")
    prompts = [[3, 5, 7], [9, 8, 7, 6, 5], [4, 4]]
    made: dict[int, list[int]] = {}
    for number, token in stages.generate(prompts, 6, rows=2, in_flight=3, stop=[]):
        made.setdefault(number, []).append(token)
    for number, prompt in enumerate(prompts):
        alone = [token for _, token in stages.generate([prompt], 6, chunk=2)]
        assert made[number] == alone
        assert len(alone) == 6
    for given in ({"prompts": [[]]}, *({"prompts": prompts, "chunk": n} for n in (0, -2))):
        with pytest.raises(UsageError, match="at least one of each"):
            stages.generate(**given)


def test_values_keep_their_types(tmp_path: Path) -> None:
    graph = planned(eager_decoder(tmp_path / "m.onnx"))
    taken = {
        "model.eos_token_id=[1,2]": [1, 2], "search.temperature=0.7": 0.7, "search.top_k=3": 3,
        "search.do_sample=true": True, "model.tokenizer_dir=abc": "abc",
        "model.decoder.session_options.intra_op_num_threads=2": 2,
        "model.decoder.sliding_window.window_size=8": 8, "search.top_p=1": 1,
    }  # fmt: skip
    export(graph, tmp_path / "out", to="genai", config=[*GIVEN, *taken])
    found = config(tmp_path / "out")
    for text, value in taken.items():
        place = found
        *above, last = text.partition("=")[0].split(".")
        for key in above:
            place = place[key]
        assert place[last] == value
        assert type(place[last]) is type(value)


REFUSED = {
    "x": "give KEY=VALUE", "=3": "give KEY=VALUE", "model..x=1": "give KEY=VALUE",
    "model.=1": "give KEY=VALUE",
    "model.vocab_size.x=1": "'vocab_size' has a value and no parts",
    "model.vocab_sise=3": "there is no 'vocab_sise'; did you mean 'vocab_size'?",
    "search.topk=3": "there is no 'topk'; did you mean 'top_k'?",
    "serch.top_k=1": "there is no 'serch'; did you mean 'search'?",
    "search.foo=1": "there is no 'foo'",
    "model.eos_token_id=abc": "'eos_token_id' has values such as 49",
    "model.eos_token_id=[1,2": "'eos_token_id' has values such as 49",
    "model.bos_token_id=": "'bos_token_id' has values such as 0",
    "model.bos_token_id=[1]": "'bos_token_id' has values such as 0",
    "model.context_length=true": "'context_length' has values such as 128",
    "search.do_sample=1": "'do_sample' has values such as false",
    "search.temperature=NaN": "'temperature' has values such as 0",
    "search=3": "'search' has values such as {",
    "model=null": "'model' has values such as {",
    "model.decoder=[]": "'decoder' has values such as {",
    "model.decoder.head_size=big": "'head_size' has values such as 16",
}  # fmt: skip


def test_what_is_refused(tmp_path: Path) -> None:
    graph = planned(eager_decoder(tmp_path / "m.onnx"))
    with pytest.raises(UsageError, match=r"give --config model\.context_length=N"):
        export(graph, tmp_path / "out", to="genai")
    for text, reason in REFUSED.items():
        given = [*GIVEN, text]
        with pytest.raises(UsageError, match=re.escape(f"--config {text}: ") + re.escape(reason)):
            export(graph, tmp_path / "out", to="genai", config=given)
    direct = planned(grouped_decoder(tmp_path / "g.onnx"))
    with pytest.raises(FormatError, match=r"onnxruntime-genai gives no input '[st]"):
        export(direct, tmp_path / "out", to="genai", config=GIVEN)
    assert not (tmp_path / "out").exists()


def test_positions_of_gpt_2_are_its_context(tmp_path: Path) -> None:
    graph = planned(eager_decoder(tmp_path / "m.onnx"))
    beside = {"n_positions": 96, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0}
    (tmp_path / "config.json").write_text(json.dumps(beside))
    export(graph, tmp_path / "out", to="genai")
    model = config(tmp_path / "out")["model"]
    assert {name: model[name] for name in beside if name in model} | {"n_positions": 96} == beside
    assert model["context_length"] == 96
    (tmp_path / "config.json").write_text(json.dumps({**beside, "max_position_embeddings": 64}))
    export(graph, tmp_path / "out", to="genai")
    assert config(tmp_path / "out")["model"]["context_length"] == 64


def test_states_without_keys_are_named(tmp_path: Path) -> None:
    model = onnx.load(eager_decoder(tmp_path / "m.onnx"))
    told = re.compile(r"(past|present)(?:_key_values)?\.(\d+)\.(key|value)")

    def renamed(name: str) -> str:
        return told.sub(lambda m: f"{m[1]}_{m[2]}_{int(m[3] == 'value')}", name)

    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.name = renamed(value.name)
    for node in model.graph.node:
        node.input[:] = map(renamed, node.input)
        node.output[:] = map(renamed, node.output)
    onnx.save(model, tmp_path / "n.onnx")
    graph = planned(tmp_path / "n.onnx")
    assert len(graph.records("state")) == 8
    with pytest.raises(FormatError, match=r"of one kind: no state has 'key' in its name$"):
        export(graph, tmp_path / "out", to="genai", config=GIVEN)
