"""Tables 1 and 4 of the 2020 device-placement paper.

J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: Efficient Algorithms for
Device Placement of DNN Graph Operators, NeurIPS 2020. Its table 2 has quotients of these
values, which figure 8 draws.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A workload in table 1: time per sample, largest load of a device; None: not given."""

    nodes: int
    ideals: int
    """Ideals of the forward part."""
    seconds: str
    """Time of the dynamic program, as printed."""
    free_seconds: str
    """Time of the integer program for splits that need not be contiguous, likewise."""
    dp: float
    """The best contiguous split."""
    ip: float
    """The integer program for contiguous splits, within 1 % or as far as it came in 20 minutes."""
    free: float
    """The same for splits that need not be contiguous."""
    linearised: float
    local_search: float
    scotch: float
    expert: float | None = None
    pipedream: float | None = None


_TABLE_1 = """\
op_bert_l-3_inference 235 1428 1s 2s 27.92 27.92 21.91 27.92 24.32 35.94
op_bert_l-6_inference 418 1923 5s 54s 29.58 29.58 28.33 29.58 42.52 49.80
op_bert_l-12_inference 783 2906 19s >20m 147.48 147.48 130.03 147.48 257.38 230.12
op_resnet50_inference 604 241 0s 1m 124.35 124.35 124.35 124.35 250.08 197.84
op_bert_l-3_training 600 2774 8s 1s 65.30 65.30 54.21 65.30 66.17 416.97
op_bert_l-6_training 1071 3776 25s 13m 72.86 72.86 71.64 79.50 94.86 130.20
op_bert_l-12_training 2012 2938 1m >20m 438.00 438.00 373.42 438.00 737.99 800.79
op_resnet50_training 1243 258 2s 7s 255.19 255.19 255.19 255.19 530.95 379.21
layer_bert24_inference 32 30 0s >20m 17.79 17.79 17.71 17.79 17.80 18.03 20.08 17.79
layer_resnet50_inference 177 242 0s 14s 33.77 33.77 33.31 33.77 35.63 34.50 43.92 39.38
layer_inceptionv3_inference 326 36596 32m 19s 51.55 51.55 51.52 51.55 54.03 54.01 102.48 60.42
layer_gnmt_inference 96 17914 29s 9s 32.91 32.91 31.68 32.91 31.75 34.92 46.21 33.03
layer_bert24_training 64 30 0s 9s 41.75 41.75 39.79 41.75 39.93 42.01 49.40 41.75
layer_resnet50_training 354 242 1s 15s 78.63 78.63 76.65 78.65 81.32 80.10 112.11 83.67
layer_inceptionv3_training 652 36596 58m 43s 122.76 123.35 117.72 123.93 122.80 128.32 213.65 128.32
layer_gnmt_training 192 17914 42s 1s 107.00 107.00 88.47 107.00 91.52 107.00 137.15 107.35
"""
TABLE_1 = {
    name: Row(int(nodes), int(ideals), time, free, *map(float, values))
    for name, nodes, ideals, time, free, *values in map(str.split, _TABLE_1.splitlines())
}
"""Workload -> its row; the names are those of the authors' files, after what they are made of."""


class Latency(NamedTuple):
    """A workload in table 4: latency of one sample, as printed; `†`: it exceeds the memory."""

    greedy: str
    max_load: str
    scotch: str
    expert: str
    ip: str
    ip_time: str
    ip_gap: str


_TABLE_4 = """\
op_bert_l-3_inference        416.20  415.90   497.75       -  408.47  3m   <1%
op_bert_l-6_inference        494.13  445.48   564.61       -  438.06 >1h 12.6%
op_bert_l-12_inference       867.84 1327.03  1755.41       -  729.56 >1h 93.8%
op_resnet50_inference        839.54 1123.65   857.73       -  672.06 >1h 54.0%
layer_bert24_inference       100.22  108.03   108.03  111.94  100.22 14s   <1%
layer_resnet50_inference    4197.06 1443.79 3610.87†     OOM 1191.02 >1h 93.1%
layer_inceptionv3_inference 2485.24 1621.74 3068.00†     OOM 1318.08 >1h 93.5%
layer_gnmt_inference         268.50  244.33  636.91† 293.40†   225.6  3m   <1%
"""
TABLE_4 = {name: Latency(*cells) for name, *cells in map(str.split, _TABLE_4.splitlines())}

LABELS = {
    "op_bert_l-3": "BERT-3", "op_bert_l-6": "BERT-6", "op_bert_l-12": "BERT-12",
    "op_resnet50": "ResNet50 (operators)", "layer_bert24": "BERT-24", "layer_resnet50": "ResNet50",
    "layer_inceptionv3": "InceptionV3", "layer_gnmt": "GNMT",
}  # fmt: skip
"""The paper's name of a workload; it tells the two ResNet50 apart by where they stand."""


def label(workload: str) -> str:
    """The paper's name of a workload, and which pass it is for."""
    model, _, what = workload.rpartition("_")
    return f"{LABELS[model]} {what}"
