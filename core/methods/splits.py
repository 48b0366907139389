"""Methods of dnnp-partition: for the objectives throughput and gpipe, and for latency.

Each is a function of the problem (`SplitProblem`, `LatencyProblem`), of what is asked (`Request`)
and of the run (`Run`), and returns a `Solution`, for latency a `LatencySolution`.
"""

from __future__ import annotations

from dnnp.core.methods import Method, by_name

ORDERED = ("ordered",)
FREE = ("free",)
ANY = ("ordered", "convex", "free")
EVOLUTION = ("population", "generations", "elite", "mutants", "bias")

SPLITS = by_name(
    Method(
        "auto",
        "the default: slicing, bounds, `exact`, annealing and search close to the best split, one "
        "after the other until value and bound meet; `anneal`, then `ip`, for convex and free ones",
        "dnnp.core.split.auto:auto",
        ANY,
        ("order", "effort", "seed", "max-replicas"),
        more="`--validity` says which are wanted. Where `exact` would not end, chains of groups "
        "are searched as one, the split is annealed, and windows around it are searched; the best "
        "bound of all is kept. Two stages are searched by minimum cuts. What is left of a "
        "`--time-limit` goes to what `heuristic` does. For convex splits, and for free ones of few "
        "groups or under a `--time-limit`, a program closes the gap that annealing leaves.",
    ),
    Method(
        "exact",
        "slicing, then a search over order ideals (sets of groups that the first stages may hold "
        "together): optimal, with proof; where that would not end, the best so far and a bound",
        "dnnp.core.split.exact:exact",
        ORDERED,
        ("order", "effort", "max-replicas"),
        "2020 paper, 5.1.1, 5.3, appendices B and C",
        "For any classes of devices, capacities, replicas and a backward pass. Instead of filling "
        "the paper's table of pairs of ideals it decides one load after the other, after "
        "contractions that cannot change the optimum. Where there are too many ideals, groups "
        "that may be exchanged come in one order; where they are too many still, it ends with the "
        "best slicing, or the best split that it met, and the bound that was proven; `auto` goes "
        "on from there.",
    ),
    Method(
        "heuristic",
        "the best that slicing, an evolved order, annealing and windows (a search close to the "
        "best split) find, without proof; for graphs that are too wide or too large for "
        "`exact`",
        "dnnp.core.split.heuristic:heuristic",
        ORDERED,
        ("order", "effort", "seed", "max-replicas"),
        more="Graphs of 10,000 groups and more are split by levels. Each part has its turn once; "
        "with `--time-limit` they go on from other seeds until the time is over.",
    ),
    Method(
        "slice",
        "the best cuts of a topological order (each node after those that it reads from): the "
        "best of four, or a given one",
        "dnnp.core.split.slices:slice_order",
        ORDERED,
        ("order", "sequence", "priorities"),
        "MTPP, 3.2, Algorithms 1 and 3",
        "Cuts the order into at most N intervals whose largest load is minimal: exact for that "
        "order. `--order` says which order: Kahn's or that of a depth-first search, from the "
        "inputs or from the outputs, or the best of the four. `--sequence` gives the order itself, "
        "a JSON list of the ids of all groups (of all nodes, where there are no groups). "
        "`--priorities` gives a number for each of them, in the order of the stream, and Kahn's "
        "algorithm takes the one of highest priority of those that are ready.",
    ),
    Method(
        "dpl",
        "the best cuts of a depth-first order",
        "dnnp.core.split.slices:dpl",
        ORDERED,
        source="2020 paper, 5.1.2",
        more="The linearization heuristic of the paper.",
    ),
    Method(
        "random",
        "the best slicing of many random orders",
        "dnnp.core.split.order_search:search_orders",
        ORDERED,
        ("effort", "seed", "samples"),
        "MTPP, 5.3",
        "`--samples` says how many.",
    ),
    Method(
        "brkga",
        "the best slicing of orders that evolve by a genetic algorithm",
        "dnnp.core.split.order_search:search_orders",
        ORDERED,
        ("effort", "seed", *EVOLUTION),
        "MTPP, 5.3, Algorithm 2",
        "Random priorities evolve, by a biased random-key genetic algorithm with `--generations` "
        "of `--population` orders. From one to the next, the share `--elite` stays, the share "
        "`--mutants` is drawn at random, and the rest are children of one parent from the elite "
        "and one from the others; each priority comes from the former with probability `--bias`.",
    ),
    Method(
        "mla",
        "the slicing of an order with short edges",
        "dnnp.core.split.order_search:search_orders",
        ORDERED,
        ("effort", "seed", *EVOLUTION),
        "MTPP, 5.3",
        "The order that minimises the total length of the edges (minimum linear arrangement), "
        "found by the same genetic algorithm.",
    ),
    Method(
        "mla-weighted",
        "the slicing of an order with short edges, weighed by the time to move their tensors",
        "dnnp.core.split.order_search:search_orders",
        ORDERED,
        ("effort", "seed", *EVOLUTION),
        "MTPP, 5.3",
    ),
    Method(
        "ip",
        "integer program, solved by CBC or HiGHS: optimal, with proof, given time",
        "dnnp.core.split.heuristic:ip",
        ANY,
        ("order", "solver", "effort", "max-replicas"),
        "2020 paper, 5.1.3, Fig. 6; 5.2 for free splits",
        "Starts from the best split that `auto` finds with little effort. It proves what it finds, "
        "but slower than `exact`.",
    ),
    Method(
        "anneal",
        "simulated annealing: random changes, worse ones less and less often",
        "dnnp.core.split.heuristic:annealed",
        ("free", "convex", "ordered"),
        ("order", "effort", "seed", "solver", "max-replicas"),
        more="Starts from the best ordered split that is found quickly. Its splits are free: their "
        "stages may wait for each other (2020 paper, 5.2), so that `dnnp-run` needs a schedule by "
        "`dnnp-schedule`, which lets each device take turns with parts of its stage. With "
        "`--validity convex` no move makes a path leave a stage and come back; with `--validity "
        "ordered` it anneals pipelines, from the best slicing. The bound is one by minimum cuts.",
    ),
    Method(
        "greedy",
        "baseline: fills one device after the other in topological order",
        "dnnp.core.baselines.blocks:greedy",
        ORDERED,
        ("order", "sequence"),
        "2020 paper, 7",
        "Each accelerator takes its share of the work and as much as its memory holds; what is "
        "left goes to CPUs. With `--order published` it takes as much as its memory holds.",
    ),
    Method(
        "local-search",
        "baseline: random splits, each improved by the best single reassignment",
        "dnnp.core.baselines.local_search:local_search",
        FREE,
        ("effort", "seed"),
        "2020 paper, 6",
        "Ten of them, until no reassignment helps.",
    ),
    Method(
        "pipedream",
        "baseline: PipeDream's optimiser for chains, with replicas and clusters",
        "dnnp.core.baselines.pipedream:pipedream",
        ORDERED,
        ("max-replicas",),
        "2020 paper, 6, C.2, C.3; PipeDream, Narayanan et al. 2019, 3.1",
        "Contracts branchings until the graph is a chain, and cuts the chain.",
    ),
    Method(
        "scotch",
        "baseline: parts by Scotch, whose program `gpart` must be installed",
        "dnnp.core.baselines.partitioners:scotch",
        FREE,
        source="Scotch, Pellegrini 2009",
    ),
    Method(
        "metis",
        "baseline: parts by METIS, for which the Python package `pymetis` must be installed",
        "dnnp.core.baselines.partitioners:metis",
        FREE,
        ("seed",),
        "METIS, Karypis and Kumar 1998",
    ),
    Method(
        "uniform",
        "by hand: intervals with equal numbers of nodes",
        "dnnp.core.baselines.blocks:cut_order",
        ORDERED,
        ("order",),
        more="Of Kahn's order, unless `--order` says another.",
    ),
    Method(
        "params",
        "by hand: intervals with equal bytes of parameters",
        "dnnp.core.baselines.blocks:cut_order",
        ORDERED,
        ("order",),
        more="Of Kahn's order, unless `--order` says another.",
    ),
    Method(
        "single",
        "by hand: everything on one device",
        "dnnp.core.baselines.blocks:cut_order",
        ORDERED,
        ("order",),
    ),
)
"""Name -> method; gpipe is asked of the same ones."""


BOTH = ("blocks", "operators")
OPERATORS = ("operators",)

LATENCY = by_name(
    Method(
        "auto",
        "the default: for blocks a search over order ideals, where they are few; for operators "
        "`exact`, where it applies; list schedules or fillings, annealing from the best of them, "
        "and a bound without an integer program",
        {
            "blocks": "dnnp.core.latency.auto:auto_blocks",
            "operators": "dnnp.core.latency.auto:auto_operators",
        },
        BOTH,
        ("effort", "seed"),
        more="Ends early where value and bound meet; with `--time-limit` it goes on until the time "
        "is over. The search over ideals (sets of groups that may be done first) proves the "
        "optimum of blocks where each accelerator runs one of them.",
    ),
    Method(
        "anneal",
        "annealing alone: of the labels of blocks, or of an order of the operators and their "
        "devices",
        {
            "blocks": "dnnp.core.latency.auto:anneal_blocks",
            "operators": "dnnp.core.latency.auto:anneal_operators",
        },
        BOTH,
        ("effort", "seed"),
    ),
    Method(
        "exact",
        "branch and bound over placements and orders of up to 62 operators: optimal, with proof; "
        "where that would not end, the best so far and a bound",
        "dnnp.core.latency.exact.solve:exact",
        OPERATORS,
        ("effort",),
        "states after Sinnen 2014",
        "Schedules grow by the time at which operators start, forward and backward in time; states "
        "that are no better than one that failed are left. Parts of the graph bound the whole. "
        "Optimal with `--congestion none`; else the bound is that without waiting.",
    ),
    Method(
        "ip",
        "integer program, for some dozen nodes: optimal, with proof, given time",
        "dnnp.core.latency.ip.loop:ip",
        BOTH,
        ("solver",),
        "2020 paper, Fig. 3 and 4, of blocks; Moirai, Eq. 4 to 8, of operators",
    ),
    Method(
        "cpsat",
        "constraint programming: the same problems as intervals, solved by CP-SAT of the Python "
        "package `ortools`, which must be installed",
        "dnnp.core.latency.ip.loop:cpsat",
        BOTH,
        ("seed",),
    ),
    Method(
        "greedy",
        "baseline: fills one device after the other in topological order",
        {
            "blocks": "dnnp.core.baselines.placing.greedy:greedy_blocks",
            "operators": "dnnp.core.baselines.placing.greedy:greedy_operators",
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
        "dnnp.core.latency.solve:max_load",
        BOTH,
        ("effort", "order"),
        "2020 paper, 7",
        "Many splits are equally good for throughput; `--order published` takes the one that the "
        "paper's program returns.",
    ),
    Method(
        "scotch",
        "baseline: the parts of Scotch, priced by their latency",
        "dnnp.core.latency.solve:by_throughput",
        BOTH,
        source="Scotch, Pellegrini 2009",
    ),
    Method(
        "single",
        "baseline: everything on the fastest device that holds it",
        {
            "blocks": "dnnp.core.baselines.placing.greedy:single_block",
            "operators": "dnnp.core.baselines.placing.greedy:single",
        },
        BOTH,
    ),
    Method(
        "heft",
        "baseline: list scheduling by upward rank, with insertion",
        "dnnp.core.baselines.placing.greedy:heft",
        OPERATORS,
        source="Topcuoglu et al. 2002",
    ),
    Method(
        "heft-congested",
        "baseline: the same without insertion, for devices chosen with the waiting of transfers "
        "in mind",
        "dnnp.core.baselines.placing.greedy:heft_congested",
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
        "dnnp.samples.papers.placeto:placeto",
        OPERATORS,
        ("effort", "seed"),
        "Placeto, Addanki et al. 2019",
        more="Rounds of message passing over the graph, and REINFORCE with a baseline for each "
        "step, on PyTorch, which must be installed; see below.",
    ),
)
"""Name -> method."""
