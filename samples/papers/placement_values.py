"""What the 2020 device-placement paper prints in its tables 1, 2 and 4.

J. Tarnawski, A. Phanishayee, N. Devanur, D. Mahajan, F. Nina Paravecino: Efficient Algorithms for
Device Placement of DNN Graph Operators, NeurIPS 2020. Its figure 8 draws table 2.
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
    dp: float
    """The best contiguous split."""
    ip_time: str
    ip: float
    """The integer program for contiguous splits, within 1 % or as far as it came in 20 minutes."""
    free_time: str
    free: float
    """The same for splits that need not be contiguous."""
    linearised: float
    local_search: float
    scotch: float
    expert: float | None = None
    pipedream: float | None = None


# fmt: off
TABLE_1 = {
    "op_bert_l-3_inference": Row(
        235, 1428, "1s", 27.92, "1s", 27.92, "2s", 21.91, 27.92, 24.32, 35.94),
    "op_bert_l-6_inference": Row(
        418, 1923, "5s", 29.58, "4s", 29.58, "54s", 28.33, 29.58, 42.52, 49.80),
    "op_bert_l-12_inference": Row(
        783, 2906, "19s", 147.48, "11m", 147.48, ">20m", 130.03, 147.48, 257.38, 230.12),
    "op_resnet50_inference": Row(
        604, 241, "0s", 124.35, "15s", 124.35, "1m", 124.35, 124.35, 250.08, 197.84),
    "op_bert_l-3_training": Row(
        600, 2774, "8s", 65.30, "2s", 65.30, "1s", 54.21, 65.30, 66.17, 416.97),
    "op_bert_l-6_training": Row(
        1071, 3776, "25s", 72.86, "6s", 72.86, "13m", 71.64, 79.50, 94.86, 130.20),
    "op_bert_l-12_training": Row(
        2012, 2938, "1m", 438.00, ">20m", 438.00, ">20m", 373.42, 438.00, 737.99, 800.79),
    "op_resnet50_training": Row(
        1243, 258, "2s", 255.19, "2m", 255.19, "7s", 255.19, 255.19, 530.95, 379.21),
    "layer_bert24_inference": Row(
        32, 30, "0s", 17.79, "1s", 17.79, ">20m", 17.71, 17.79, 17.80, 18.03, 20.08, 17.79),
    "layer_resnet50_inference": Row(
        177, 242, "0s", 33.77, "48s", 33.77, "14s", 33.31, 33.77, 35.63, 34.50, 43.92, 39.38),
    "layer_inceptionv3_inference": Row(
        326, 36596, "32m", 51.55, "3m", 51.55, "19s", 51.52, 51.55, 54.03, 54.01, 102.48, 60.42),
    "layer_gnmt_inference": Row(
        96, 17914, "29s", 32.91, "4s", 32.91, "9s", 31.68, 32.91, 31.75, 34.92, 46.21, 33.03),
    "layer_bert24_training": Row(
        64, 30, "0s", 41.75, "1s", 41.75, "9s", 39.79, 41.75, 39.93, 42.01, 49.40, 41.75),
    "layer_resnet50_training": Row(
        354, 242, "1s", 78.63, "45s", 78.63, "15s", 76.65, 78.65, 81.32, 80.10, 112.11, 83.67),
    "layer_inceptionv3_training": Row(
        652, 36596, "58m", 122.76, "8m", 123.35, "43s", 117.72, 123.93, 122.80, 128.32, 213.65,
        128.32),
    "layer_gnmt_training": Row(
        192, 17914, "42s", 107.00, "4s", 107.00, "1s", 88.47, 107.00, 91.52, 107.00, 137.15,
        107.35),
}
"""Workload -> its row; the names are those of the authors' files, after what they are made of."""


class Gains(NamedTuple):
    """A workload in table 2: throughput over that of the best contiguous split."""

    ip: float
    free: float
    linearised: float
    expert: float | None
    local_search: float
    pipedream: float | None
    scotch: float


TABLE_2 = {
    "op_bert_l-3_inference": Gains(1.00, 1.27, 1.00, None, 1.15, None, 0.78),
    "op_bert_l-6_inference": Gains(1.00, 1.04, 1.00, None, 0.70, None, 0.59),
    "op_bert_l-12_inference": Gains(1.00, 1.13, 1.00, None, 0.57, None, 0.64),
    "op_resnet50_inference": Gains(1.00, 1.00, 1.00, None, 0.50, None, 0.63),
    "op_bert_l-3_training": Gains(1.00, 1.20, 1.00, None, 0.99, None, 0.16),
    "op_bert_l-6_training": Gains(1.00, 1.02, 0.92, None, 0.77, None, 0.56),
    "op_bert_l-12_training": Gains(1.00, 1.17, 1.00, None, 0.59, None, 0.55),
    "op_resnet50_training": Gains(1.00, 1.00, 1.00, None, 0.48, None, 0.67),
    "layer_bert24_inference": Gains(1.00, 1.00, 1.00, 0.89, 1.00, 1.00, 0.99),
    "layer_resnet50_inference": Gains(1.00, 1.01, 1.00, 0.77, 0.95, 0.86, 0.98),
    "layer_inceptionv3_inference": Gains(1.00, 1.00, 1.00, 0.50, 0.95, 0.85, 0.95),
    "layer_gnmt_inference": Gains(1.00, 1.04, 1.00, 0.71, 1.04, 1.00, 0.94),
    "layer_bert24_training": Gains(1.00, 1.05, 1.00, 0.85, 1.05, 1.00, 0.99),
    "layer_resnet50_training": Gains(1.00, 1.03, 1.00, 0.70, 0.97, 0.94, 0.98),
    "layer_inceptionv3_training": Gains(1.00, 1.04, 0.99, 0.57, 1.00, 0.96, 0.96),
    "layer_gnmt_training": Gains(1.00, 1.21, 1.00, 0.78, 1.17, 1.00, 1.00),
}


class Latency(NamedTuple):
    """A workload in table 4: latency of one sample, as printed; `†`: it exceeds the memory."""

    greedy: str
    max_load: str
    scotch: str
    expert: str
    ip: str
    ip_time: str
    ip_gap: str


TABLE_4 = {
    "op_bert_l-3_inference": Latency(
        "416.20", "415.90", "497.75", "-", "408.47", "3m", "<1%"),
    "op_bert_l-6_inference": Latency(
        "494.13", "445.48", "564.61", "-", "438.06", ">1h", "12.6%"),
    "op_bert_l-12_inference": Latency(
        "867.84", "1327.03", "1755.41", "-", "729.56", ">1h", "93.8%"),
    "op_resnet50_inference": Latency(
        "839.54", "1123.65", "857.73", "-", "672.06", ">1h", "54.0%"),
    "layer_bert24_inference": Latency(
        "100.22", "108.03", "108.03", "111.94", "100.22", "14s", "<1%"),
    "layer_resnet50_inference": Latency(
        "4197.06", "1443.79", "3610.87†", "OOM", "1191.02", ">1h", "93.1%"),
    "layer_inceptionv3_inference": Latency(
        "2485.24", "1621.74", "3068.00†", "OOM", "1318.08", ">1h", "93.5%"),
    "layer_gnmt_inference": Latency(
        "268.50", "244.33", "636.91†", "293.40†", "225.6", "3m", "<1%"),
}
# fmt: on

LABELS = {
    "op_bert_l-3": "BERT-3", "op_bert_l-6": "BERT-6", "op_bert_l-12": "BERT-12",
    "op_resnet50": "ResNet50 (operators)", "layer_bert24": "BERT-24", "layer_resnet50": "ResNet50",
    "layer_inceptionv3": "InceptionV3", "layer_gnmt": "GNMT",
}  # fmt: skip
"""What the paper calls a workload; it tells the two ResNet50 apart by where they stand."""


def label(workload: str) -> str:
    """The paper's name of a workload, and which pass it is for."""
    model, _, what = workload.rpartition("_")
    return f"{LABELS[model]} {what}"
