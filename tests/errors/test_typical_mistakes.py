"""Mistakes that people make every day: one line, the right hint, the right status."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from dnnp.formats.inputs.amounts import parse_rate, parse_size
from support.run import dnnp

TEXT = """
<ir_version: 8, opset_import: ["": 17]>
g (int64[batch, seq] ids) => (float[batch, seq, 4] y) {
  shape = Shape(ids)
  zero = Constant<value_ints = [0]>()
  one = Constant<value_ints = [1]>()
  two = Constant<value_ints = [2]>()
  length = Slice(shape, one, two, zero)
  at = Slice(positions, zero, length, one)
  place = Gather(places, at)
  word = Gather(words, ids)
  y = Add(word, place)
}
"""
"""A model whose table of positions has 128 rows."""

BOTH = ["--dim", "batch=1"]
DEVICE = {
    "name": "toy", "kind": "cpu", "peak_flop_per_s": {"float32": 1e9}, "memory_bytes": 1e9,
    "memory_bandwidth_bytes_per_s": 1e9, "link_bandwidth_bytes_per_s": 1e9, "launch_overhead_s": 0,
}  # fmt: skip

MISTAKES: dict[str, tuple[list[str], int, str]] = {
    # options
    "option": (["partition", "--methd", "exact", "-k", "2"], 2, "did you mean '--method'"),
    "option with a value": (["partition", "--memmory=16G"], 2, "did you mean '--memory'?"),
    "one dash": (["check", "-json"], 2, "'-json'; did you mean '--json'"),
    "underscore": (["run", "--save_outputs", "o"], 2, "did you mean '--save-outputs'"),
    "abbreviation": (["schedule", "--micro", "4"], 2, "unknown option '--micro'"),
    "of another program": (["import", "-j", "4", "m.onnx"], 2, "unknown option '-j'"),
    "two streams": (["check", "-", "b.dnnp"], 2, "unexpected argument 'b.dnnp'"),
    "no value": (["partition", "-k"], 2, "argument -k: expected one argument"),
    "no number": (["partition", "-k", "two"], 2, "argument -k: 'two' is not a whole number"),
    # names
    "method": (["partition", "--method", "exakt"], 2, "'exakt'; did you mean 'exact'"),
    "method of schedules": (["schedule", "--method", "1F1B"], 2, "did you mean '1f1b'"),
    "provider": (["run", "--provider", "gpu"], 2, "'gpu'; known: cpu, cuda"),
    "family": (["import", "--synthetic", "erdos-reny"], 2, "did you mean 'erdos-renyi'"),
    "format": (["import", "m.onnx", "--from", "msr"], 2, "did you mean 'msr-json'"),
    "device": (["profile", "--device", "A100"], 2, "'A100'; did you mean 'a100'"),
    "device that nobody knows": (["profile", "--device", "foo"], 2, "'foo'; known: a100, cpu-core"),
    "rules": (["coarsen", "--rules", "ort_cpu"], 2, "'ort_cpu'; did you mean 'ort-cpu'"),
    "rules that nobody knows": (["coarsen", "--rules", "foo"], 2, "'foo'; known: cudnn, moirai, "),
    "cluster": (["partition", "--devices", "moirai-inta"], 2, "did you mean 'moirai-intra'"),
    "cluster that nobody knows": (["partition", "--devices", "foo"], 2, "known: a100-t4, "),
    "shape": (["schedule", "--shape", "W"], 2, "invalid choice: 'W'; known: "),
    # sizes
    "bits": (["partition", "--bandwidth", "100Gbit/s"], 2, "; 8 bits are a byte"),
    "memory by the second": (["partition", "--memory", "16GB/s"], 2, "is not a size, such as 16G"),
    "small letters": (["partition", "--memory", "16gb"], 2, "'16gb' is not a size, such as 16G"),
    # files of another kind
    "model as stream": (["check", "m.onnx"], 3, "not a stream; it is an ONNX model; dnnp-import"),
    "version 10 as stream": (["check", "ir10.onnx"], 3, "it is an ONNX model; dnnp-import"),
    "stream as model": (["import", "s.dnnp"], 3, "not an ONNX model; it is a stream"),
    "gzip as stream": (["check", "s.dnnp.gz"], 3, "compressed by gzip; gunzip it"),
    "pointer as model": (["import", "lfs.onnx"], 3, "a pointer of Git LFS; git lfs pull"),
    "page as model": (["import", "page.onnx"], 3, "not an ONNX model; it is a web page"),
    "device file as stream": (["check", "toy.json"], 3, "is this a stream? dnnp-import makes one"),
    "stream as split": (["partition", "-k", "2", "--eval", "s.dnnp"], 3, "; it is a stream"),
    "split of another graph": (["partition", "-k", "2", "--eval", "split.json"], 3,
                               "split.json: the split does not fit the graph: there is no node 99"),
    "the same for latency": (["partition", "-k", "2", "--objective", "latency", "--eval",
                              "split.json"], 3, "there is no node 99"),
    "replicas of a split": (["partition", "-k", "2", "--max-replicas", "1", "--eval",
                             "replicas.json"], 2, "runs a stage on 2 devices"),
    "order of another graph": (["partition", "-k", "2", "--method", "slice", "--sequence",
                                "order.json"], 3, "99 is no id of a unit of the stream"),
    "method for other splits": (["partition", "-k", "2", "--method", "pipedream", "--validity",
                                 "free"], 2, "method pipedream makes ordered splits"),
    "method for throughput": (["partition", "-k", "2", "--method", "pipedream", "--objective",
                               "latency"], 2, "method pipedream is not for --objective latency"),
    "stream as rules": (["coarsen", "--rules", "./s.dnnp"], 3, "; it is a stream"),
    "no file": (["check", "plan.dnnp"], 1, "plan.dnnp: No such file or directory"),
    # fields of files
    "key of a device": (["profile", "--device", "typo.json"], 3, "did you mean 'memory_bytes'"),
    "key of a cluster": (["partition", "--devices", "cluster.json"], 3, "did you mean 'count'"),
    "class of a cluster": (["partition", "--devices", "class.json"], 2, "did you mean 'v100'"),
    "key of rules": (["coarsen", "--rules", "rules.json"], 3, "did you mean 'sequence'"),
    # dimensions
    "no dimension": (["import", "m.onnx"], 2, "m.onnx --dim batch=1 --dim seq=128"),
    "dimension": (["import", "m.onnx", "--dim", "bach=1"], 2, "--dim bach: no free dimension"),
    "dimension, hint": (["import", "m.onnx", "--dim", "bach=1"], 2, "did you mean 'batch'"),
    "no equals sign": (["import", "m.onnx", "--dim", "batch"], 2, "give NAME=VALUE, as in batch=1"),
    "too long": (["import", "m.onnx", *BOTH, "--dim", "seq=500"], 2, "cannot join tensors"),
    "empty": (["import", "m.onnx", *BOTH, "--dim", "seq=0"], 2, "every output is empty"),
    # order of the commands
    "no devices": (["partition"], 2, "how many devices? give -k N or --devices FILE"),
    "no plan to run": (["run"], 2, "no plan to run; run dnnp-partition first"),
    "no plan to schedule": (["schedule"], 2, "no plan to schedule; run dnnp-partition first"),
    "no plan to bound": (["bound"], 2, "run dnnp-partition, or give -k N"),
    "objective of an option": (["partition", "-k", "2", "--execution", "blocks"], 2,
                               "--execution is for --objective latency"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the mistakes are about."""
    made = tmp_path_factory.mktemp("mistakes")
    model = onnx.parser.parse_model(TEXT)
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.arange(128)[None], "positions"),
            numpy_helper.from_array(np.ones((128, 4), np.float32), "places"),
            numpy_helper.from_array(np.ones((50, 4), np.float32), "words"),
        ]
    )
    onnx.save(model, made / "m.onnx")
    stream = dnnp("import", made / "m.onnx", *BOTH, "--dim", "seq=8").out
    rules = {"name": "r", "rules": [{"name": "a", "sequnce": ["Conv", "Relu"]}]}
    files: dict[str, bytes | object] = {
        "s.dnnp": stream,
        "s.dnnp.gz": gzip.compress(stream),
        "ir10.onnx": b"\x08\x0a\x12\x04test",
        "lfs.onnx": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "page.onnx": b"<!DOCTYPE html>\n<html></html>\n",
        "toy.json": DEVICE,
        "typo.json": {**DEVICE, "memroy_bytes": 1e9},
        "cluster.json": [{"class": "v100", "cuont": 2}],
        "class.json": [{"class": "V-100", "count": 2}],
        "rules.json": rules,
        "split.json": [[99]],
        "replicas.json": {"fpgas": [{"nodes": [0], "replicas": 2}]},
        "order.json": [99],
    }
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        (made / name).write_bytes(data)
    return made


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command, *arguments), status, hint = MISTAKES[name]
    monkeypatch.chdir(folder)
    result = dnnp(command, *arguments, stdin=(folder / "s.dnnp").read_bytes())
    assert (result.status, result.out) == (status, b""), result.err
    assert result.err.startswith(f"dnnp-{command}: ")
    assert result.err.count("\n") == 1, result.err
    assert hint in result.err


@pytest.mark.parametrize("text", ["16G", "16GB", "16e9", "16 GB", "16000MB", "16000000000B"])
def test_sizes_that_mean_the_same(text: str) -> None:
    assert parse_size(text) == 16e9


@pytest.mark.parametrize("text", ["12G", "12GB/s", "12e9", "12GB", "12 GB/s", "12000000k"])
def test_bandwidths_that_mean_the_same(text: str) -> None:
    assert parse_rate(text) == 12e9
