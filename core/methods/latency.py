"""Methods of dnnp-partition for the objective latency.

Each is a function of the problem (`LatencyProblem`), of what is asked (`Asked`) and of the run
(`Run`), and returns a `LatencySolution`.
"""

from __future__ import annotations

from dnnp.core.methods.method import Method, by_name

BOTH = ("blocks", "operators")
OPERATORS = ("operators",)

LATENCY = by_name(
    Method(
        "auto",
        "the default: for blocks a search over order ideals, where they are few; list schedules "
        "or fillings, annealing from the best of them, and a bound without an integer program",
        {
            "blocks": "dnnp.core.latency.blocks.solve:auto",
            "operators": "dnnp.core.portfolio.latency:auto",
        },
        BOTH,
        ("effort", "seed"),
        heavy={
            "blocks": "dnnp.core.latency.blocks.search:anneal_step",
            "operators": "dnnp.core.latency.operators.moves:sweep",
        },
        little=0.0005,
        more="Ends early where value and bound meet; with `--time-limit` it goes on until the time "
        "is over. The search over ideals (sets of groups that may be done first) proves the "
        "optimum of blocks where each accelerator runs one of them.",
    ),
    Method(
        "anneal",
        "annealing alone: of the labels of blocks, or of an order of the operators and their "
        "devices",
        {
            "blocks": "dnnp.core.latency.blocks.solve:anneal",
            "operators": "dnnp.core.latency.operators.solve:anneal",
        },
        BOTH,
        ("effort", "seed"),
        heavy={
            "blocks": "dnnp.core.latency.blocks.search:anneal_step",
            "operators": "dnnp.core.latency.operators.moves:sweep",
        },
        little=0.0005,
    ),
    Method(
        "ip",
        "integer program, for some dozen nodes: optimal, with proof, given time",
        "dnnp.core.latency.exact:ip",
        BOTH,
        ("solver",),
        "2020 paper, Fig. 3 and 4, of blocks; Moirai, Eq. 4 to 8, of operators",
    ),
    Method(
        "cpsat",
        "constraint programming: the same problems as intervals, solved by CP-SAT of the Python "
        "package `ortools`, which must be installed",
        "dnnp.core.latency.exact:cpsat",
        BOTH,
        ("seed",),
    ),
    Method(
        "greedy",
        "baseline: fills one device after the other in topological order",
        {
            "blocks": "dnnp.core.baselines.placing.greedy_blocks:greedy_blocks",
            "operators": "dnnp.core.baselines.placing.simple:greedy_operators",
        },
        BOTH,
        ("order", "sequence"),
        "2020 paper, 7",
        "Of blocks, `--order` and `--sequence` have groups taken strictly in that order. `--order "
        "published` is that of the paper's program, which breaks ties by the order of the edges in "
        "its file. No stream has that, so that latencies differ on 4 of the paper's 8 graphs "
        "(operators of BERT-3: 414.74, the paper has 416.20; of ResNet50: 755.80, 839.54), but not "
        "with the `--sequence` that `dnnp.samples.papers.placement` makes of the file.",
    ),
    Method(
        "max-load",
        "baseline: the split that is best for throughput, priced by its latency",
        "dnnp.core.portfolio.latency:max_load",
        BOTH,
        ("effort", "order"),
        "2020 paper, 7",
        "Many splits are equally good for throughput; `--order published` takes the one that the "
        "paper's program returns.",
    ),
    Method(
        "scotch",
        "baseline: the parts of Scotch, priced by their latency",
        "dnnp.core.portfolio.latency:by_throughput",
        BOTH,
        source="Scotch, Pellegrini 2009",
    ),
    Method(
        "single",
        "baseline: everything on the fastest device that holds it",
        {
            "blocks": "dnnp.core.baselines.placing.simple:single_block",
            "operators": "dnnp.core.baselines.placing.simple:single",
        },
        BOTH,
    ),
    Method(
        "heft",
        "baseline: list scheduling by upward rank, with insertion",
        "dnnp.core.baselines.placing.simple:heft",
        OPERATORS,
        source="Topcuoglu et al. 2002",
    ),
    Method(
        "heft-congested",
        "baseline: the same without insertion, for devices chosen with the waiting of transfers "
        "in mind",
        "dnnp.core.baselines.placing.simple:heft_congested",
        OPERATORS,
        source="Topcuoglu et al. 2002; Sinnen and Sousa 2005",
    ),
    Method(
        "m-topo",
        "baseline: topological filling (Baechi)",
        "dnnp.core.baselines.placing.baechi:m_topo",
        OPERATORS,
        source="Baechi, Jeon et al. 2020",
    ),
    Method(
        "m-etf",
        "baseline: earliest task first (Baechi)",
        "dnnp.core.baselines.placing.baechi:m_etf",
        OPERATORS,
        source="Baechi, Jeon et al. 2020",
    ),
    Method(
        "m-sct",
        "baseline: small communication times (Baechi)",
        "dnnp.core.baselines.placing.baechi:m_sct",
        OPERATORS,
        source="Baechi, Jeon et al. 2020",
        more="Favourite children come from a linear program.",
    ),
    Method(
        "getf",
        "baseline: generalized earliest time first: devices from a linear program, then a list "
        "schedule",
        "dnnp.core.baselines.placing.getf:getf",
        OPERATORS,
        source="Su et al. 2020",
    ),
    Method(
        "getf-milp",
        "baseline: the same with devices from the exact program, solved for 60 seconds times the "
        "effort at most",
        "dnnp.core.baselines.placing.getf:getf_milp",
        OPERATORS,
        ("effort",),
        "Su et al. 2020",
    ),
    Method(
        "placeto",
        "baseline: a learned policy that improves a placement step by step; trained first, unless "
        "`--policy` gives one",
        "dnnp.core.baselines.placeto.method:placeto",
        OPERATORS,
        ("effort", "seed"),
        "Placeto, Addanki et al. 2019",
        more="Rounds of message passing over the graph, and REINFORCE with a baseline for each "
        "step, on PyTorch, which must be installed; see below.",
    ),
)
"""Name -> method."""
