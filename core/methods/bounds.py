"""Arguments of dnnp-bound.

Each is a function of the problem (`SplitProblem`), of what is known (`Known`) and of the run
(`Run`), and returns a `Claim`.
"""

from __future__ import annotations

from dnnp.core.methods import Method, by_name

ANY = ("ordered", "convex", "free")
NESTED = ("ordered", "convex")
ORDERED = ("ordered",)

BOUNDS = by_name(
    Method(
        "auto",
        "the default: one argument after the other, the cheapest first, until the gap is 0",
        kinds=ANY,
        more="Leaves out `no-io` and `no-dag`, which `bottleneck` contains, except `no-dag` for "
        "free splits.",
    ),
    Method(
        "simple",
        "mean load, largest group or set that must stay together",
        "dnnp.core.bounds.simple:simple_claim",
        ANY,
        source="MTPP, Lemma 4.2",
        more="The total time spread evenly over the devices, the time of the largest group, and "
        "that of the largest set of groups that must share a device. For every cost model. It is "
        "always tried first, and no bound below it is reported.",
    ),
    Method(
        "packing",
        "the longest groups over devices that are alike, by number and time",
        "dnnp.core.bounds.packing:packing_claim",
        ANY,
        ("effort",),
        "P||Cmax: Dell'Amico and Martello 1995",
        "Of the longest groups some device holds at least a certain number, and a load is at least "
        "a sum of their times; where all times are multiples of one, sums are few. Where no "
        "order and no transfers bind, it also packs the groups, and searches few of them to the "
        "end. For one class of accelerators, without replicas.",
    ),
    Method(
        "chain",
        "where stages can end along the heaviest path",
        "dnnp.core.bounds.chain:chain_claim",
        ORDERED,
        more="Stages of an ordered split can only end in certain places of the heaviest path, and "
        "pay there for the tensors that any such cut crosses.",
    ),
    Method(
        "zone-cut",
        "the same, and what stages pay where they end, by minimum cuts",
        "dnnp.core.bounds.zone_cut:zone_cut_claim",
        ORDERED,
        more="Between two groups of the heaviest path a stage may end in many ways; a minimum cut "
        "says what that costs at least, however far it goes. Groups that may follow another into "
        "its stage for free do so first. For one class of devices, without replicas and a backward "
        "pass, and with `--comm sum`.",
    ),
    Method(
        "node-cut",
        "the cheapest set of groups around each group, by minimum cuts",
        "dnnp.core.bounds.node_cut:node_cut_claim",
        ANY,
        more="The device of a group pays at least for the cheapest set of groups with it, whether "
        "or not the set could be a stage: a minimum cut for each group.",
    ),
    Method(
        "cpu-cut",
        "what costs every accelerator more than the bound is too much for the CPUs",
        "dnnp.core.bounds.node_cut:cpu_cut_claim",
        ANY,
        more="For accelerators with CPUs beside them. A group whose cheapest set costs as much as "
        "the bound on each accelerator runs on a CPU, and is in no set of others, which then cost "
        "more; all such groups together take CPUs too long.",
    ),
    Method(
        "ideal",
        "exact search over order ideals (what the first stages of a pipeline may hold together)",
        "dnnp.core.split.exact:ideal_claim",
        ORDERED,
        ("effort",),
        "2020 paper, 5.1.1",
        "The search of `dnnp-partition`, from the best split known, first with little effort. For "
        "clusters, the search with contiguous clusters.",
    ),
    Method(
        "halves",
        "exact search for two stages, by minimum cuts",
        "dnnp.core.bounds.searches:bisection_bound",
        ORDERED,
        ("effort",),
        more="Branch and bound over what the first of two stages holds. A weighed mean of both "
        "loads is below the larger one, and its least value a minimum cut. For two devices of one "
        "class, without replicas and a backward pass, and with `--comm sum`.",
    ),
    Method(
        "pairs",
        "groups that no stage can hold both of, and the tensors that must cross then",
        "dnnp.core.bounds.pairs:pairs_claim",
        ANY,
        more="Two groups share no stage if the cheapest set with both of them, and all that lies "
        "between them, costs more than a target. A tensor that such groups use crosses as often as "
        "there are groups no two of which share a stage; if compute and crossings are too much for "
        "all devices together, the target is out of reach. For one class of accelerators, without "
        "replicas and with `--comm sum`.",
    ),
    Method(
        "same-block",
        "linear program about which groups share a stage",
        "dnnp.core.bounds.same_block:same_block_claim",
        ANY,
        ("solver",),
        share=0.5,
        more="The load of the stage of each group is bounded below, so is the mean load; groups "
        "between two of a stage are in it too; pairs that cost more than a target are apart. "
        "Constraints are added when a solution violates them, and the bound is computed from its "
        "multipliers, whatever the solver says. For one class of accelerators, without replicas.",
    ),
    Method(
        "cover",
        "prices of groups: how many stages of a small load it takes to hold them all",
        "dnnp.core.bounds.column_generation:cover_claim",
        ANY,
        ("solver",),
        share=0.7,
        more="If no set of groups that could be a stage with a load below a target has a price "
        "above 1, there are at least as many such stages as all prices add up to. Prices come from "
        "linear programs, sets from a search. Strong where stages hold few groups. For one class "
        "of accelerators, without replicas and with `--comm sum`.",
    ),
    Method(
        "cover-cut",
        "the same for splits without order: sets are found by minimum cuts, CPUs by their rates",
        "dnnp.core.bounds.column_generation:cover_cut_claim",
        ANY,
        ("solver",),
        share=0.7,
        more="What a set of groups with a load below a target is worth on an accelerator is found "
        "by branch and bound over minimum cuts, and on a CPU as a knapsack. Nothing is said of "
        "order: `auto` tries it for free and convex splits only. Without replicas and with `--comm "
        "sum`.",
    ),
    Method(
        "links",
        "a search over order ideals that knows the links to the stages before and after",
        "dnnp.core.bounds.searches:linked_bound",
        ORDERED,
        more="For devices with links, without replicas and a backward pass. Tensors that surely go "
        "to the next stage, or come from the one before, are charged its link, others the best "
        "one. All other arguments know the best link of each class only.",
    ),
    Method(
        "no-dag",
        "integer program for one stage with its share of the work, for every order",
        "dnnp.core.bounds.ip:no_dag_bound",
        ANY,
        ("solver",),
        "MTPP, 5.4, Table 2",
        "Some stage has at least the work of the simple bound; what does such a stage cost at "
        "least? This counts transfers and forgets paths.",
        share=0.5,
    ),
    Method(
        "no-io",
        "integer program for one such stage, without transfers",
        "dnnp.core.bounds.ip:no_io_bound",
        NESTED,
        ("solver",),
        "MTPP, 5.4, Table 2",
        "No path leaves the stage and comes back.",
        share=0.5,
    ),
    Method(
        "bottleneck",
        "integer program for one such stage, what precedes it and what follows it",
        "dnnp.core.bounds.ip:bottleneck_bound",
        NESTED,
        ("solver",),
        "MTPP, 4.2, Eq. 14, Corollary 4.3",
        "Counts transfers, and no path leaves the stage and comes back.",
        share=0.3,
    ),
    Method(
        "guess",
        "the same for each place in the pipeline",
        "dnnp.core.bounds.ip:guess_bound",
        ORDERED,
        ("solver",),
        "MTPP, 4.3",
        "The stages before it and after it have their mean load. For one class of devices, without "
        "replicas.",
        share=0.5,
    ),
    Method(
        "exact",
        "integer program for the whole split",
        "dnnp.core.bounds.ip:exact_bound",
        ANY,
        ("solver",),
        "MTPP, 4.1, Fig. 3, Theorem 4.1",
        "That of MTPP where it serves, with what the best split known leaves room for; otherwise "
        "the one of `dnnp-partition --method ip`.",
        share=1.0,
    ),
)
"""Name -> argument, for throughput and gpipe."""

LATENCY_BOUNDS = by_name(
    Method(
        "auto",
        "the default: `simple`, with `blocks` then `ideal`, with up to 62 operators a branch and "
        "bound without waiting of transfers, then `exact`, until the gap is 0",
        kinds=("blocks", "operators"),
    ),
    Method(
        "simple",
        "the best argument that needs no integer program",
        "dnnp.core.latency.auto:simple_bound",
        ("blocks", "operators"),
        more="In every execution that is the longest path where each group runs on its fastest "
        "device; with `blocks` also the least time of a path that is cut into blocks, what the "
        "path passes between them paid; with `operators` also transfers along the path, and work "
        "that cannot be done by all devices together between its earliest start and its latest "
        "end (`windows`), or between two tasks of the longest path (`segments`). The one that "
        "proves most is reported.",
    ),
    Method(
        "ideal",
        "a search over order ideals (sets of groups that may be done first)",
        "dnnp.core.latency.blocks.ideals:ideal_latency",
        ("blocks",),
        ("effort",),
        more="For each ideal it bounds when what others wait for can be ready, and how long what "
        "is left takes from then on, and leaves out what cannot beat the plan; it finds better "
        "plans on the way. It proves the optimum where accelerators run one block of one pass; "
        "where they run several, each counts as if it had the memory of a device for itself. "
        "Graphs with more than 200,000 ideals are too wide for it.",
    ),
    Method(
        "exact",
        "the integer program of the execution",
        "dnnp.core.latency.ip.loop:solve_model",
        ("blocks", "operators"),
        ("solver",),
        more="It has 60 seconds where no `--time-limit` says otherwise.",
    ),
)
"""Name -> argument, for plans of the objective latency."""
