"""dnnp-export --to triton: what Triton's definitions say of it, what its ensembles compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import dnnp
from dnnp.formats.export.triton import _allowed, repository, text
from dnnp.formats.workloads.costgraph import parse_text
from support import triton
from support.exports import KINDS, exported, plan_of_kind, same, sample, two_ways
from support.run import dnnp as command
from support.split_models import MODELS, feeds_of, graph, make, node, run_whole, value
from support.stage_folders import ABOUT, files

PROTOS = triton.definitions()
needs_protos = pytest.mark.skipif(PROTOS is None, reason="needs the package tritonclient")


def checked(repository: Path) -> dict[str, Any]:
    """The configurations, which break no rule of the server."""
    assert PROTOS is not None
    configs = triton.read(repository, PROTOS)
    triton.check(configs, repository)
    return configs


@needs_protos
@pytest.mark.parametrize("kind", KINDS)
def test_the_ensemble_computes_what_the_model_computes(kind: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    manifest = exported(plan_of_kind(kind, tmp_path), out, to="triton")
    configs = checked(out)
    assert manifest["layout"] == "triton"
    assert set(configs) == {manifest["triton"]["ensemble"], *manifest["triton"]["models"]}
    found = triton.run(out, configs, sample())
    same({name: found[name] for name in ("y", "a1t")}, sample())
    for stage, name in zip(manifest["stages"], manifest["triton"]["models"], strict=True):
        (group,) = configs[name].instance_group
        assert (group.kind, group.count) == (group.KIND_CPU, stage["replicas"])
        assert stage["file"] == f"{name}/1/model.onnx"
    same(dnnp.load_stages(out).run(sample()), sample())


@needs_protos
@pytest.mark.parametrize("name", MODELS)
def test_every_feature_of_models(name: str, tmp_path: Path) -> None:
    model = MODELS[name]()
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    dims = ["--dim", "n=3"] if name == "stale_shapes" else []
    plan = command("partition", "-k", "3", stdin=command("import", *dims, tmp_path / "m.onnx").out)
    manifest = exported(plan.out, tmp_path / "out", to="triton")
    found = triton.run(tmp_path / "out", checked(tmp_path / "out"), feeds_of(model))
    expected = run_whole(model, feeds_of(model))
    missing = set(expected) - set(found)
    assert missing == set(manifest["triton"]["handed_through"])
    for output in found:
        array = found[output].reshape(expected[output].shape)
        np.testing.assert_array_equal(array, expected[output])


@needs_protos
def test_batches(tmp_path: Path) -> None:
    stream = plan_of_kind("ordered", tmp_path)
    exported(stream, tmp_path / "out", "--max-batch-size", "16", to="triton")
    configs = checked(tmp_path / "out")
    assert {c.max_batch_size for c in configs.values()} == {16}
    assert {tuple(t.dims) for c in configs.values() for t in c.input} == {(64,), (1,)}
    same(triton.run(tmp_path / "out", configs, sample()), sample())


def test_what_cannot_be_batched(tmp_path: Path) -> None:
    model = two_ways()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 8
    stream = plan_of_kind("ordered", tmp_path, model)
    options = ("export", "--to", "triton", "-o", tmp_path / "out", "--max-batch-size", "4")
    done = command(*options, stdin=stream)
    assert done.status == 3
    assert "the first dimension of the first input is not a free one with a name" in done.err
    assert not (tmp_path / "out").exists()
    other = make(
        graph(
            [node("Add", ["x", "z"], ["a"]), node("Relu", ["a"], ["y"])],
            "other",
            [value("x", ["n", 4]), value("z", [1, 4])],
            [value("y", ["n", 4])],
        )
    )
    stream = plan_of_kind("ordered", tmp_path, other)
    done = command(*options, stdin=stream)
    assert done.status == 3
    assert "the first dimension of 'z' is not 'n'" in done.err
    done = command("export", "--to", "stages", *options[3:], stdin=stream)
    assert (done.status, "is for --to triton" in done.err) == (2, True)


def scalars() -> onnx.ModelProto:
    """Scalars as inputs, between stages and as outputs; an unused output; more."""
    nodes = [
        node("Mul", ["x", "s"], ["a"]),
        node("ReduceSum", ["a"], ["sum"], keepdims=0),
        node("Neg", ["sum"], ["t"]),
        node("Mul", ["a", "t"], ["y"]),
        node("Exp", ["y"], ["nobody"]),
    ]
    inputs = [value("x", [4]), value("s", []), value("unused", [2])]
    outputs = [value("y", [4]), value("t", []), value("x", [4])]
    return make(graph(nodes, "scalars", inputs, outputs))


@needs_protos
def test_tensors_without_dimensions_and_what_ensembles_cannot_have(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(scalars().SerializeToString())
    stream = command("import", tmp_path / "m.onnx").out
    plan = command("partition", "-k", "5", "--method", "uniform", stdin=stream)
    assert plan.status == 0, plan.err
    done = command("export", "--to", "triton", "-o", tmp_path / "out", stdin=plan.out)
    assert done.status == 0, done.err
    assert "the ensemble is without outputs that are inputs of the model: x" in done.err
    assert "the ensemble is without inputs that no output depends on: unused" in done.err
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    idle = manifest["triton"]["idle"]
    assert [[t["name"] for t in manifest["stages"][i]["outputs"]] for i in idle] == [["nobody"]]
    configs = checked(tmp_path / "out")
    feeds = {"x": np.arange(4, dtype=np.float32), "s": np.array(0.5, np.float32)}
    feeds["unused"] = np.zeros(2, np.float32)
    found = triton.run(tmp_path / "out", configs, feeds)
    expected = run_whole(scalars(), feeds)
    assert found["t"].shape == (1,)
    np.testing.assert_allclose(found["t"][0], expected["t"])
    np.testing.assert_allclose(found["y"], expected["y"])
    for name, array in dnnp.load_stages(tmp_path / "out").run(feeds).items():
        np.testing.assert_allclose(array, expected[name])


def stage_of(**fields: Any) -> dict[str, Any]:
    """A manifest with one stage `x -> y`."""
    x = {"name": "x", "dtype": "float32", "shape": [4]} | fields.pop("x", {})
    y = {"name": "y", "dtype": "float32", "shape": [4]}
    stage = {
        "id": 0,
        "class": "acc",
        "device": "acc/0",
        "devices": ["acc/0"],
        "replicas": 1,
        "inputs": [x | {"from": "model"}],
        "outputs": [y | {"to": ["model"]}],
    } | fields.pop("stage", {})
    return {
        **ABOUT,
        "inputs": [x | {"to": [0]}],
        "outputs": [y | {"from": 0}],
        "stages": [stage],
        **fields,
    }


def config(found: dict[str, Any]) -> str:
    made = repository(found)
    return made.files[f"{made.fields['models'][0]}/config.pbtxt"].decode()


def test_gpus() -> None:
    """Replicas are instances on GPUs of their own; classes follow each other."""
    devices = [
        {"class": "t4", "kind": "accelerator", "count": 2},
        {"class": "cpu-core", "kind": "accelerator", "count": 3},
        {"class": "a100", "kind": "accelerator", "count": 4},
    ]
    stage = {"class": "a100", "devices": ["a100/1", "a100/2"], "replicas": 2}
    found = config(stage_of(stage=stage, devices=devices))
    assert "kind: KIND_GPU" in found
    assert "gpus: [ 3, 4 ]" in found
    assert "count: 1" in found
    stage = {"class": "cpu-core", "devices": ["cpu-core/0"]}
    assert "gpus" not in config(stage_of(stage=stage, devices=devices))
    host = [{"class": "host", "kind": "cpu", "count": 1}]
    assert "KIND_CPU" in config(stage_of(stage={"class": "host"}, devices=host))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ({"dtype": "float8e4m3fn"}, "tensor 'x' is float8e4m3fn, which Triton does not know"),
        ({"dtype": "sequence"}, "tensor 'x' is sequence"),
        ({"shape": None}, "tensor 'x': its rank is unknown"),
    ],
)
def test_what_triton_cannot_be_told(x: dict[str, Any], message: str) -> None:
    with pytest.raises(dnnp.FormatError, match=message):
        repository(stage_of(x=x))


def test_a_stage_that_reads_nothing_and_a_model_that_makes_nothing() -> None:
    with pytest.raises(dnnp.FormatError, match="stage 0 reads nothing"):
        repository(stage_of(stage={"inputs": []}))
    with pytest.raises(dnnp.FormatError, match="no stage makes an output"):
        repository(stage_of(outputs=[{"name": "x", "from": "model"}]))


@pytest.mark.parametrize("name", ["a/b", "..", "-x", ".hidden", "ä ö", "manifest.json", "x" * 999])
def test_names(name: str, tmp_path: Path) -> None:
    """Folders have plain names for models of any name; the manifest has both."""
    found = repository(stage_of(model=name))
    assert (tmp_path / _allowed(name)).parent == tmp_path
    assert _allowed(name) not in ("manifest.json", "..", "")
    assert _allowed(name).isascii()
    assert found.fields["ensemble"] == _allowed(name)
    for path in found.files:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)


def test_texts_are_quoted() -> None:
    for name in ('a"b', "back\\slash", "new\nline", "ümlaut", "::/x:0", "\x01"):
        written = text([("name", name), ("inner", [("key", name), ("dims", [])])])
        assert written.isascii()
        message = parse_text(written.encode(), "x")
        assert message.fields[0][1] == name
    if PROTOS is not None:
        from google.protobuf import text_format

        made = text_format.Parse(text([("name", 'ü"\\\n')]), PROTOS.ModelConfig())
        assert made.name == 'ü"\\\n'


def test_a_stages_export_is_replaced_and_external_weights_go_along(tmp_path: Path) -> None:
    from support.stage_folders import chain

    (tmp_path / "source").mkdir()
    path = chain(tmp_path / "source", 3, 16)
    plan = command("partition", "-k", "2", stdin=command("import", path).out).out
    exported(plan, tmp_path / "out")
    manifest = exported(plan, tmp_path / "out", to="triton")
    names = manifest["triton"]["models"]
    assert set(files(tmp_path / "out")) == {
        "manifest.json",
        "m/config.pbtxt",
        *(f"{n}/{f}" for n in names for f in ("config.pbtxt", "1/model.onnx", "1/model.onnx.data")),
    }
    assert (tmp_path / "out/m/1").is_dir()
    feeds = {"x": np.ones((1, 16), np.float32)}
    stages = dnnp.load_stages(tmp_path / "out")
    assert np.isfinite(next(iter(stages.run(feeds).values()))).all()
    exported(plan, tmp_path / "out")
    assert not (tmp_path / "out/m").exists()
