"""The exact search for splits of few items: each to the pool or a block, depth first.

Items come in topological order. Each goes to the pool, joins a block, or opens one between two
blocks of an accelerator: so the order of blocks is part of the state, and no split comes twice.
The times of a state are those of the cost model for its items alone. No time falls when others
come, since a flow between two blocks moves in any case. With the least times of all that follows
they are lower bounds for all splits that extend the state.

Live tensors of a block may take less when others join it: the least peak of all sets of items that
extend it is looked up.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, NamedTuple

import numpy as np

from dnnp.core.cost.latency import POOL, Invocations, LatencyProblem, SearchProof, rank_of
from dnnp.core.cost.live import block_peaks
from dnnp.core.cost.load_formula import ROOM
from dnnp.core.kernels.kernel import callee, lean, plain, scratch
from dnnp.core.latency.blocks.items import BlockItems, block_items, kind_of_each
from dnnp.core.latency.depth_first import ENDED, FOUND, OPEN, search_depth_first
from dnnp.core.latency.operators.windows import SAFE
from dnnp.core.model.graph import Floats, Ints
from dnnp.core.model.search_context import PLAIN, SearchContext

BOUND = "orders of blocks"
"""Name of the bound in plans."""

SMALL, FEW = 14, 10
"""Items up to which a problem is searched; the same where live tensors count."""

MOST_STEPS = 500_000
"""Steps at effort 1."""


class Limits(NamedTuple):
    """Limits and bounds of a problem of `c` items, `n` tasks and `a` accelerators."""

    kind: Ints
    """i64[a], kind of each accelerator."""
    most: int
    """Blocks of one pass on an accelerator."""
    rest: Floats
    """f64[n], least time from the start of a task to the end of all."""
    work: Floats
    """f64[c + 1], least work on accelerators of the items from each on."""
    peak: Floats
    """f64[c + 1, 2^c], least peak of live tensors of a set of items (a bit mask) and any from an
    item on, bytes; 0 where none counts."""


class BlockTree(NamedTuple):
    """State of the search; level i places item i. An accelerator has `w` places at most."""

    now: Annotated[Ints, "i64[2]"]
    choice: Annotated[Ints, "i64[c1]"]
    """As `core.latency.depth_first` says. 0: the pool; 1 + d * w + x: on accelerator d, into block
    x // 2 (x odd), or into a new one before it."""
    low: Annotated[Floats, "f64[c1]"]
    home: Annotated[Ints, "i64[c]"]
    """Block of each item, or `POOL`."""
    device: Annotated[Ints, "i64[c]"]
    late: Annotated[Ints, "i64[c]"]
    mask: Annotated[Ints, "i64[c]"]
    """Accelerator, pass and items of each block."""
    line: Annotated[Ints, "i64[a, w]"]
    many: Annotated[Ints, "i64[a1]"]
    """Blocks of each accelerator in order; their number, and that of all."""
    start: Annotated[Floats, "f64[c]"]
    spent: Annotated[Floats, "f64[c]"]
    """Start of each block; its in, compute and out."""
    ready: Annotated[Floats, "f64[n]"]
    """End of each task in the pool."""


@lean
def search_blocks(items, limits, tree, target, most):  # type: ignore[no-untyped-def]
    """Go on with the search for a split below a target, for `most` steps from the first one."""
    level, count = tree.now[0], len(items.memory)
    while level >= 0 and tree.now[1] < most:
        tree.now[1] += 1
        deeper = level < count and _place(items, limits, tree, level, target)
        level += 1 if deeper else -1
        if deeper:
            tree.choice[level] = -1
            if level == count:
                tree.now[0] = level
                return FOUND
    tree.now[0] = level
    return ENDED if level < 0 else OPEN


@callee
def _place(items, limits, tree, i, target):  # type: ignore[no-untyped-def]
    """Give an item its next place; False: there is none."""
    accelerators, width = tree.line.shape
    first = tree.choice[i] + 1
    if first > 0:
        _remove(tree, i)
    for code in range(first, 1 + accelerators * width):
        d, x = (code - 1) // width if code else POOL, (code - 1) % width
        if not _admits(items, limits, tree, i, d, x):
            continue
        tree.choice[i] = code
        tree.now[1] += 1
        _insert(items, tree, i, d, x)
        value = np.inf
        if d < 0 or _holds(items, limits, tree, i, d):
            value = _lower_bound(items, limits, tree, i) * SAFE
        if value < target:
            tree.low[i + 1] = max(tree.low[i], value)
            return True
        _remove(tree, i)
    return False


@callee
def _admits(items, limits, tree, i, d, x):  # type: ignore[no-untyped-def]
    """True if an item may go to a place, memory aside."""
    for j in range(i):
        b = tree.home[j]
        here = d == (tree.device[b] if b >= 0 else POOL)
        if items.group[j] == items.group[i] and not here:
            return False
        for r in range(len(items.marks) if here else 0):
            one, other = items.marks[r, i], items.marks[r, j]
            if one != other and one > 0 and other > 0:
                return False
    if d < 0:
        return items.pooled[i]
    if x > 2 * tree.many[d] or items.time[d, i] == np.inf:
        return False
    if x % 2:
        return tree.late[tree.line[d, x // 2]] == items.late[i]
    mine, twin = 0, True
    for p in range(tree.many[d]):
        mine += tree.late[tree.line[d, p]] == items.late[i]
    for o in range(d):
        twin = twin and (limits.kind[o] != limits.kind[d] or tree.many[o] > 0)
    return mine < limits.most and (twin or tree.many[d] > 0)


@callee
def _insert(items, tree, i, d, x):  # type: ignore[no-untyped-def]
    """Put an item into its place."""
    tree.home[i] = POOL
    if d < 0:
        return
    if x % 2 == 0:
        b = tree.many[-1]
        tree.device[b], tree.late[b], tree.mask[b] = d, items.late[i], 0
        for p in range(tree.many[d], x // 2, -1):
            tree.line[d, p] = tree.line[d, p - 1]
        tree.line[d, x // 2] = b
        tree.many[d] += 1
        tree.many[-1] += 1
    tree.home[i] = tree.line[d, x // 2]
    tree.mask[tree.home[i]] |= 1 << i


@callee
def _remove(tree, i):  # type: ignore[no-untyped-def]
    """Take an item, the last one that has a place, out of it."""
    b, width = tree.home[i], tree.line.shape[1]
    if b < 0:
        return
    d, x = tree.device[b], (tree.choice[i] - 1) % width
    tree.mask[b] ^= 1 << i
    if x % 2 == 0:
        tree.many[d] -= 1
        tree.many[-1] -= 1
        for p in range(x // 2, tree.many[d]):
            tree.line[d, p] = tree.line[d, p + 1]


@callee
def _holds(items, limits, tree, i, d):  # type: ignore[no-untyped-def]
    """True if an accelerator may hold its blocks with items after the present one."""
    held, peak = 0.0, 0.0
    for j in range(i + 1):
        if tree.home[j] >= 0 and tree.device[tree.home[j]] == d:
            held += items.memory[j]
    for p in range(tree.many[d] if limits.peak.shape[1] > 1 else 0):
        peak = max(peak, limits.peak[i + 1, tree.mask[tree.line[d, p]]])
    return held + peak <= items.capacity[d]


@callee
def _set_spent(items, tree, i):  # type: ignore[no-untyped-def]
    """Set in, compute and out of all blocks by the items so far."""
    for b in range(tree.many[-1]):
        tree.spent[b] = 0.0
    for j in range(i + 1):
        b = tree.home[j]
        if b >= 0:
            tree.spent[b] += items.time[tree.device[b], j]
            for q in range(items.in_ptr[j], items.in_ptr[j + 1]):
                e = items.in_idx[q]
                seen = items.maker[e] >= 0 and tree.home[items.maker[e]] == b
                for y in range(items.use_ptr[e], items.use_ptr[e + 1]):
                    r = items.use_idx[y]
                    seen = seen or (r < j and tree.home[r] == b)
                if not seen:
                    tree.spent[b] += items.move[tree.device[b], e]
            for q in range(items.out_ptr[j], items.out_ptr[j + 1]):
                e = items.out_idx[q]
                away = items.leaves[e]
                for y in range(items.use_ptr[e], items.use_ptr[e + 1]):
                    r = items.use_idx[y]
                    away = away or (r <= i and tree.home[r] != b)
                if away:
                    tree.spent[b] += items.move[tree.device[b], e]


@callee
def _sweep(items, tree, i):  # type: ignore[no-untyped-def]
    """Raise starts of blocks and ends of pool tasks; False: all were right."""
    changed = False
    for j in range(i + 1):
        b = tree.home[j]
        for q in range(items.member_ptr[j], items.member_ptr[j + 1]):
            t = items.member_idx[q]
            soon = 0.0
            for y in range(items.task_before_ptr[t], items.task_before_ptr[t + 1]):
                u = items.task_before_idx[y]
                a = tree.home[items.label[u]]
                if b < 0 or a != b:
                    soon = max(soon, tree.ready[u] if a < 0 else tree.start[a] + tree.spent[a])
            if b < 0:
                tree.ready[t] = soon + items.pool[t]
            elif soon > tree.start[b]:
                tree.start[b] = soon
                changed = True
    for d in range(len(tree.line)):
        for p in range(1, tree.many[d]):
            a, b = tree.line[d, p - 1], tree.line[d, p]
            if tree.start[a] + tree.spent[a] > tree.start[b]:
                tree.start[b] = tree.start[a] + tree.spent[a]
                changed = True
    return changed


@callee
def _lower_bound(items, limits, tree, i):  # type: ignore[no-untyped-def]
    """Lower bound of the latency with the items so far; inf: blocks wait for each other."""
    _set_spent(items, tree, i)
    work, left = limits.work[i + 1], tree.many[-1] + 2
    for b in range(tree.many[-1]):
        tree.start[b] = 0.0
        work += tree.spent[b]
    while left and _sweep(items, tree, i):
        left -= 1
    if not left:
        return np.inf
    value = work / max(len(tree.line), 1)
    for j in range(i + 1):
        b = tree.home[j]
        for q in range(items.member_ptr[j], items.member_ptr[j + 1]):
            t = items.member_idx[q]
            end = tree.ready[t] if b < 0 else tree.start[b] + tree.spent[b]
            value = max(value, end)
            for y in range(items.task_after_ptr[t], items.task_after_ptr[t + 1]):
                u = items.task_after_idx[y]
                if items.label[u] > i:
                    value = max(value, end + limits.rest[u])
    return value


def order_latency(
    problem: LatencyProblem, *, upper: float = np.inf, run: SearchContext = PLAIN
) -> SearchProof:
    """Prove that no split of few items takes less than a known one, or find the best.

    `upper`: latency of a known split, if any. A stop or a limit leaves a weaker bound.
    """
    items = block_items(problem)
    counts = problem.live is not None and problem.live.binds
    if not 0 < items.size <= (FEW if counts else SMALL):
        return SearchProof()
    items = items._replace(capacity=problem.machine.capacity[items.devices] * ROOM)
    limits, tree = _limits_of(problem, items), _first_tree(problem, items)

    last = np.full(items.size + 1, tree.line.size)
    go_on, split = partial(search_blocks, items, limits, tree), partial(_split_of, items, tree)
    return search_depth_first(
        problem, tree, last, go_on, split, name=BOUND, upper=upper, most=MOST_STEPS, run=run
    )


def _split_of(items: BlockItems, tree: BlockTree) -> Invocations:
    """The split of a complete state."""
    rows = zip(tree.line, tree.many.tolist(), strict=False)
    line = np.concatenate([np.zeros(0, dtype=np.int64), *(row[:many] for row, many in rows)])
    number = np.full(items.size + 1, POOL, dtype=np.int64)
    number[line] = np.arange(len(line))
    return Invocations(items.devices[tree.device[line]], number[tree.home[items.label]])


def _limits_of(problem: LatencyProblem, items: BlockItems) -> Limits:
    """Lay out limits and bounds for the kernel."""
    tasks, count = problem.tasks, items.size
    least = np.minimum(items.pool, tasks.time[items.devices].min(axis=0, initial=np.inf))
    rest = np.zeros(tasks.n)
    for v in tasks.order[::-1].tolist():
        after = items.task_after_idx[items.task_after_ptr[v] : items.task_after_ptr[v + 1]]
        rest[v] = least[v] + rest[after].max(initial=0.0)
    need = np.where(items.pooled, 0.0, items.time.min(axis=0, initial=np.inf))
    work = np.append(np.cumsum(need[::-1])[::-1], 0.0)
    peak = np.zeros((count + 1, 1))
    if problem.live is not None and problem.live.binds:
        rank = rank_of(tasks)
        peak = np.zeros((count + 1, 2**count))
        for mask in range(1, 2**count):
            block = np.where(mask >> items.label & 1, 0, POOL)
            peak[count, mask] = block_peaks(problem.live, block, 1, rank)[0]
        masks = np.arange(2**count)
        for i in range(count - 1, -1, -1):
            peak[i] = np.minimum(peak[i + 1], peak[i + 1][masks | 1 << i])
    kind, rest, work, peak = plain(kind_of_each(items), rest, work, peak)
    return Limits(kind, problem.options.invocations, rest, work, peak)


def _first_tree(problem: LatencyProblem, items: BlockItems) -> BlockTree:
    """State in which no item has a place."""
    count, some = items.size, len(items.devices)
    passes = 1 + int(items.late.max(initial=0))
    width = 2 * min(problem.options.invocations * passes, count) + 1
    sizes = {"c": count, "c1": count + 1, "a": some, "a1": some + 1, "w": width}
    tree = scratch(BlockTree, sizes | {"n": problem.tasks.n})
    tree.choice[0] = -1
    return tree
