"""Methods of dnnp-partition for the objectives throughput and gpipe.

Each is a function of the problem (`SplitProblem`), of what is asked (`Asked`) and of the run
(`Run`), and returns a `Solution`.
"""

from __future__ import annotations

from dnnp.core.methods.method import Method, by_name

ORDERED = ("ordered",)
FREE = ("free",)
ANY = ("ordered", "convex", "free")
EVOLUTION = ("population", "generations", "elite", "mutants", "bias")

SPLITS = by_name(
    Method(
        "auto",
        "the default: `exact`; `ip` for convex splits, `anneal` for free ones",
        kinds=ANY,
        more="`--validity` says which are wanted. It heeds what that method heeds.",
    ),
    Method(
        "exact",
        "slicing, then a search over order ideals (sets of groups that the first stages may hold "
        "together): optimal, with proof; where that would not end, heuristics and a bound",
        "dnnp.core.portfolio.exact:exact",
        ORDERED,
        ("order", "effort", "seed", "max-replicas"),
        "2020 paper, 5.1.1, 5.3, appendices B and C",
        "For any classes of devices, capacities, replicas and a backward pass. Instead of filling "
        "the paper's table of pairs of ideals it decides one load after the other, after "
        "contractions that cannot change the optimum. Where there are too many ideals to end, it "
        "also anneals, searches windows around the best split, and keeps the bound that was "
        "proven; what is left of a `--time-limit` goes to `heuristic`.",
    ),
    Method(
        "heuristic",
        "the best that slicing, an evolved order, annealing and windows (a search close to the "
        "best split) find, without proof; for graphs that are too wide or too large for "
        "`exact`",
        "dnnp.core.portfolio.improve:heuristic",
        ORDERED,
        ("order", "effort", "seed", "max-replicas"),
        heavy="dnnp.core.local.sweep:sweep",
        little=0.03,
        more="Graphs of 10,000 groups and more are split by levels. Each part has its turn once; "
        "with `--time-limit` they go on from other seeds until the time is over.",
    ),
    Method(
        "slice",
        "the best cuts of a topological order (each node after those that it reads from): the "
        "best of four, or a given one",
        "dnnp.core.portfolio.slices:slice_order",
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
        "dnnp.core.portfolio.slices:dpl",
        ORDERED,
        source="2020 paper, 5.1.2",
        more="The linearization heuristic of the paper.",
    ),
    Method(
        "random",
        "the best slicing of many random orders",
        "dnnp.core.portfolio.orders:search_orders",
        ORDERED,
        ("effort", "seed", "samples"),
        "MTPP, 5.3",
        "`--samples` says how many.",
    ),
    Method(
        "brkga",
        "the best slicing of orders that evolve by a genetic algorithm",
        "dnnp.core.portfolio.orders:search_orders",
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
        "dnnp.core.portfolio.orders:search_orders",
        ORDERED,
        ("effort", "seed", *EVOLUTION),
        "MTPP, 5.3",
        "The order that minimises the total length of the edges (minimum linear arrangement), "
        "found by the same genetic algorithm.",
    ),
    Method(
        "mla-weighted",
        "the slicing of an order with short edges, weighed by the time to move their tensors",
        "dnnp.core.portfolio.orders:search_orders",
        ORDERED,
        ("effort", "seed", *EVOLUTION),
        "MTPP, 5.3",
    ),
    Method(
        "ip",
        "integer program, solved by CBC or HiGHS: optimal, with proof, given time",
        "dnnp.core.portfolio.exact:ip",
        ANY,
        ("order", "solver", "effort", "max-replicas"),
        "2020 paper, 5.1.3, Fig. 6; 5.2 for free splits",
        "Starts from the best split that a short exact search finds. It proves what it finds, but "
        "slower than `exact`.",
    ),
    Method(
        "anneal",
        "simulated annealing: random changes, worse ones less and less often",
        "dnnp.core.portfolio.improve:annealed",
        ("free", "ordered"),
        ("order", "effort", "seed", "max-replicas"),
        heavy="dnnp.core.local.sweep:sweep",
        little=0.01,
        more="Starts from the best ordered split that is found quickly. Its splits are free: their "
        "stages may wait for each other (2020 paper, 5.2), so that `dnnp-run` needs a schedule by "
        "`dnnp-schedule`, which lets each device take turns with parts of its stage. With "
        "`--validity ordered` it anneals pipelines, from the best slicing.",
    ),
    Method(
        "greedy",
        "baseline: fills one device after the other in topological order",
        "dnnp.core.baselines.cuts:greedy",
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
        "dnnp.core.baselines.cuts:cut_order",
        ORDERED,
        ("order",),
        more="Of Kahn's order, unless `--order` says another.",
    ),
    Method(
        "params",
        "by hand: intervals with equal bytes of parameters",
        "dnnp.core.baselines.cuts:cut_order",
        ORDERED,
        ("order",),
        more="Of Kahn's order, unless `--order` says another.",
    ),
    Method(
        "single",
        "by hand: everything on one device",
        "dnnp.core.baselines.cuts:cut_order",
        ORDERED,
        ("order",),
    ),
)
"""Name -> method; gpipe is asked of the same ones."""
