"""Methods of dnnp-schedule.

A search is a function of the micro-batches' blocks, of what is wanted and of the run, and finds a
schedule. A recipe is one of the placement and of the number N of micro-batches, and returns the
rank of every block, i64[N, k].
"""

from __future__ import annotations

from dnnp.core.methods import Method, by_name

ALL_SHAPES = ("V", "X", "M", "NN", "K", "NN-eager", "multi-modal", "fine-tuning", "AlphaFold", "VV")
"""Placements from the literature; see `core.schedule.shapes`."""

SEARCHES = by_name(
    Method(
        "auto",
        "shortest period, then least memory, then shortest span, each proven where the effort "
        "allows; then a short warm-up and cool-down",
        "dnnp.core.schedule.auto:auto",
        heeds=("unroll",),
        source="Tessel, III.C, IV.B",
    ),
    Method(
        "optimal",
        "shortest schedule of N micro-batches; for small N",
        "dnnp.core.schedule.optimal:shortest_schedule",
        source="Tessel, III.A, IV.C",
        more="Looks for the shortest schedule of all micro-batches at once, without repetends "
        "(Tessel calls this time-optimal). The record says `in-turn` where nothing is shorter than "
        "each unit running all blocks of a micro-batch before those of the next.",
    ),
    Method(
        "tessel",
        "Tessel's search (Algorithm 1), for comparison",
        "dnnp.core.schedule.tessel:tessel_schedule",
        heeds=("max-micro-batches", "eager"),
        source="Tessel, Alg. 1",
        more="All ways to take the blocks of a repetend from 1, 2, and more micro-batches; for "
        "each of them the best order. `--max-micro-batches` bounds their number where memory does "
        "not, `--eager` completes every repetend that is better than those before.",
    ),
    Method(
        "tessel-fast",
        "the reduced search of Tessel's authors: one repetend, made at once",
        "dnnp.core.schedule.tessel:tessel_fast_schedule",
        source="Lin et al. 2024, TPDS",
        more="Packs the blocks of a micro-batch as if none waited for another, then lets blocks of "
        "earlier micro-batches take their places. Memory is whatever that needs: a limit below it "
        "ends the search.",
    ),
)
"""Name -> search."""

RECIPES = by_name(
    Method(
        "sequential",
        "one micro-batch after the other",
        "dnnp.core.schedule.recipes:sequential",
    ),
    Method(
        "gpipe",
        "all forward passes, then all backward passes",
        "dnnp.core.schedule.recipes:gpipe",
        source="Huang et al. 2019",
    ),
    Method(
        "1f1b",
        "one forward, one backward (PipeDream-flush, DAPPLE)",
        "dnnp.core.schedule.recipes:one_f_one_b",
        source="Narayanan et al. 2021; Fan et al. 2021",
    ),
    Method(
        "1f1b+",
        "the same, with blocks of several devices beside their neighbours",
        "dnnp.core.schedule.recipes:one_f_one_b_plus",
        source="Tessel, VI.A",
    ),
    Method(
        "interleaved-1f1b",
        "the same with several stages a device (Megatron-LM)",
        "dnnp.core.schedule.recipes:interleaved",
        source="Megatron-LM, Narayanan et al. 2021",
    ),
    Method(
        "chimera",
        "two pipelines of opposite directions (shape X)",
        "dnnp.core.schedule.recipes:chimera",
        source="Chimera, Li and Hoefler 2021",
    ),
    Method(
        "zb-h1",
        "zero bubble: passes that only weights need fill the gaps (`--split-backward`)",
        "dnnp.core.schedule.zero_bubble:zb_h1",
        source="Qi et al. 2023, section 2",
        more="Needs backward blocks that are split.",
    ),
    Method(
        "zb-h2",
        "zero bubble in twice the memory of 1f1b, from N = 2 D - 1 micro-batches on D devices on",
        "dnnp.core.schedule.zero_bubble:zb_h2",
        source="Qi et al. 2023, section 2",
        more="Needs backward blocks that are split. Where all blocks take the same time, no device "
        "waits after its first block from 2 D - 1 micro-batches on; with fewer of them some do.",
    ),
    Method(
        "zb-v",
        "zero bubble with two stages a device, there and back (shape VV)",
        "dnnp.core.schedule.zero_bubble:zb_v",
        source="Qi et al. 2023, section 6; Qi et al. 2024, V-ZB",
        more="Needs backward blocks that are split. Where all blocks take the same time, no device "
        "ever waits after its first block, from twice as many micro-batches as devices on, in "
        "the memory of 1f1b.",
    ),
    Method(
        "v-half",
        "zero bubble with two stages a device (shape VV) in half the memory of 1f1b",
        "dnnp.core.schedule.zero_bubble:v_half",
        source="Qi et al. 2024, V-Half",
        more="Needs backward blocks that are split. Devices hold (D + 2) // 2 micro-batches, and "
        "wait for about 3 D blocks of 6 N.",
    ),
    Method(
        "v-min",
        "the same in a third of the memory of 1f1b",
        "dnnp.core.schedule.zero_bubble:v_min",
        source="Qi et al. 2024, V-Min",
        more="Needs backward blocks that are split. Devices hold (D + 4) // 3 micro-batches, and "
        "wait for about 4 D blocks of 6 N.",
    ),
    Method(
        "dualpipe",
        "two pipelines from both ends (shape X), split backward passes",
        "dnnp.core.schedule.zero_bubble:dualpipe",
        source="DeepSeek-V3 2024, section 3.2.1",
        more="Needs backward blocks that are split. A micro-batch is one of each pipeline. Forward "
        "and backward passes that the published schedule overlaps run one after the other.",
    ),
    Method(
        "dualpipev",
        "the same folded on half as many devices (shape VV), split backward passes",
        "dnnp.core.schedule.zero_bubble:dualpipev",
        source="DeepSeek-V3 2024; Sea AI Lab 2025, cut in half",
        more="Needs backward blocks that are split. Devices hold 2 D + 1 stages, but no parameters "
        "twice.",
    ),
    Method(
        "inference",
        "forward passes as they come, later stages first",
        "dnnp.core.schedule.recipes:inference",
        source="Tessel, VI.B, Fig. 8",
    ),
)
"""Name -> recipe; searches try them in this order."""

SCHEDULES = SEARCHES | RECIPES
