"""Choices of options. Commands start with it, so that it imports nothing."""

WITH_ATTRIBUTES = ("csv", "dot", "graphml", "gml", "node-link")
"""Formats of graphs whose nodes and edges have attributes of any name."""
OWN_GRAPHS = (*WITH_ATTRIBUTES, "stg", "wfcommons", "dagbench")
"""Formats of graphs of named nodes and edges."""
MODEL_FORMATS = ("onnx", "msr-json", "piper", "costgraph", *OWN_GRAPHS)
IN_JSON = ("msr-json", "piper", "node-link", "wfcommons", "dagbench")
JSON = "json"
"""Stands for these, which are told apart by content."""
EXTENSIONS = {
    ".json": JSON,
    ".pbtxt": "costgraph",
    ".pbtext": "costgraph",
    ".textproto": "costgraph",
    ".csv": "csv",
    ".dot": "dot",
    ".gv": "dot",
    ".graphml": "graphml",
    ".gml": "gml",
    ".stg": "stg",
}
"""Ending of a file -> its format, where that is not ONNX."""

SHAPES = ("auto", "value-info", "infer", "symbolic", "run")
FAMILIES = ("erdos-renyi", "barabasi-albert", "watts-strogatz", "stochastic-block")
ANY_FAMILY = "regal"
READINGS = ("absolute", "cut-off", "own", "written", "normal")
"""Of what a paper says about costs of random graphs; the first unless told otherwise."""
LAYERED = "layered"

DEFAULT_RULES = "ort-cpu"
DEFAULT_SHARE = 0.02

DEFAULT_DEVICE = "cpu-core"
HERE = "cpu-here"
"""The class of this machine's processor, whose rates are measured at first use."""
PROFILE_MODES = ("analytic", "measure", "scaled")
MEASURED = "measured"
"""Stands for the only class which a graph prices."""

OPTIMIZERS = ("adam", "momentum", "sgd")
"""Optimizers that update the weights in training."""

RECOMPUTE = ("none", "full", "auto")
"""Stages that run their forward passes again."""
WEIGHT_SYNC = ("ring", "server")
"""Ways in which replicas add up gradients."""

PROVIDERS = ("cpu", "cuda")
WORKERS = ("thread", "process")
ENGINES = ("local", "ray")
FOLDERS = ("stages", "triton", "ort-layers", "onnx-devices")
"""Exports to a folder."""
TORCH = ("torch-csv", "torch-comms-csv", "torch-plan")
EXPORTS = (*FOLDERS, "msr-split", *TORCH, "torch")
VIEWS = {
    "text": (".txt",),
    "svg": (".svg",),
    "html": (".html", ".htm"),
    "dot": (".dot", ".gv"),
    "graphml": (".graphml",),
    "trace": (".json",),
    "onnx": (".onnx",),
    "csv": (".csv",),
    "tsv": (".tsv",),
    "md": (".md",),
}
"""View of dnnp-view -> endings of files that ask for it."""
VIEW_TABLES = ("stages", "nodes", "cuts", "bounds", "runs", "schedule", "plans", "tried")
VIEW_PICTURES = ("loads", "schedule", "graph")
VIEW_AXES = ("k", "method")
"""Axes of a chart of plans."""
OPTIMIZATIONS = ("disable", "basic", "extended", "all")

MAX_GAP = 1e-4
"""Gap up to which `auto` need not go on, unless another is asked for."""
