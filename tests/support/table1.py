"""Table 1 of the 2020 paper: time per sample of the splits that it found."""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One workload; None: not given."""

    seconds: int
    """Time of the paper's dynamic program."""
    ideals: int
    """Ideals of the forward part."""
    dp: float
    """The best contiguous split."""
    free: float
    """The best split without that, within 1% or as far as the solver came."""
    dpl: float
    local_search: float
    scotch: float
    expert: float | None = None
    pipedream: float | None = None


TABLE1 = {
    "op_bert_l-3_inference": Row(1, 1428, 27.92, 21.91, 27.92, 24.32, 35.94),
    "op_bert_l-6_inference": Row(5, 1923, 29.58, 28.33, 29.58, 42.52, 49.80),
    "op_bert_l-12_inference": Row(19, 2906, 147.48, 130.03, 147.48, 257.38, 230.12),
    "op_resnet50_inference": Row(0, 241, 124.35, 124.35, 124.35, 250.08, 197.84),
    "op_bert_l-3_training": Row(8, 2774, 65.30, 54.21, 65.30, 66.17, 416.97),
    "op_bert_l-6_training": Row(25, 3776, 72.86, 71.64, 79.50, 94.86, 130.20),
    "op_bert_l-12_training": Row(60, 2938, 438.00, 373.42, 438.00, 737.99, 800.79),
    "op_resnet50_training": Row(2, 258, 255.19, 255.19, 255.19, 530.95, 379.21),
    "layer_bert24_inference": Row(0, 30, 17.79, 17.71, 17.79, 17.80, 18.03, 20.08, 17.79),
    "layer_resnet50_inference": Row(0, 242, 33.77, 33.31, 33.77, 35.63, 34.50, 43.92, 39.38),
    "layer_inceptionv3_inference": Row(
        1920, 36596, 51.55, 51.52, 51.55, 54.03, 54.01, 102.48, 60.42
    ),
    "layer_gnmt_inference": Row(29, 17914, 32.91, 31.68, 32.91, 31.75, 34.92, 46.21, 33.03),
    "layer_bert24_training": Row(0, 30, 41.75, 39.79, 41.75, 39.93, 42.01, 49.40, 41.75),
    "layer_resnet50_training": Row(1, 242, 78.63, 76.65, 78.65, 81.32, 80.10, 112.11, 83.67),
    "layer_inceptionv3_training": Row(
        3480, 36596, 122.76, 117.72, 123.93, 122.80, 128.32, 213.65, 128.32
    ),
    "layer_gnmt_training": Row(42, 17914, 107.00, 88.47, 107.00, 91.52, 107.00, 137.15, 107.35),
}
"""Name of the workload's file, without `.json` -> its row."""
