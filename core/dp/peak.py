"""Peak memory of a block whose nodes run in a given order; a kernel."""

from __future__ import annotations

from dnnp.core.cost.kernel import callee


@callee
def peak_of(p, items, count, live, mark, last):  # type: ignore[no-untyped-def]
    """Peak of live activations when the block of items[:count] runs in that order; bytes."""
    steps = 0
    for i in range(count):
        for a in range(p.node_ptr[items[i]], p.node_ptr[items[i] + 1]):
            v = p.nodes[a]
            mark[v] = steps + 1
            steps += 1
            for b in range(p.read_ptr[v], p.read_ptr[v + 1]):
                last[p.read_idx[b]] += 1
    # `last` counts the uses inside; live[t] gets what begins at step t, less what ended before.
    for t in range(steps + 1):
        live[t] = 0.0
    step = 0
    for i in range(count):
        for a in range(p.node_ptr[items[i]], p.node_ptr[items[i] + 1]):
            v = p.nodes[a]
            for b in range(p.made_ptr[v], p.made_ptr[v + 1]):
                t = p.made_idx[b]
                live[step] += p.tensor_bytes[t]
                if last[t] == 0 and p.tensor_uses[t] == 0 and not p.tensor_kept[t]:
                    live[step + 1] -= p.tensor_bytes[t]
            step += 1
    step = steps - 1
    for i in range(count - 1, -1, -1):
        for a in range(p.node_ptr[items[i] + 1] - 1, p.node_ptr[items[i]] - 1, -1):
            v = p.nodes[a]
            for b in range(p.read_ptr[v], p.read_ptr[v + 1]):
                t = p.read_idx[b]
                uses = last[t]
                if uses > 0:
                    # From the end, this is the tensor's last use in the block.
                    last[t] = 0
                    inside = p.producer[t] >= 0 and mark[p.producer[t]] > 0
                    if not inside:
                        live[0] += p.tensor_bytes[t]
                        live[step + 1] -= p.tensor_bytes[t]
                    elif uses == p.tensor_uses[t] and not p.tensor_kept[t]:
                        live[step + 1] -= p.tensor_bytes[t]
            step -= 1
    best = 0.0
    total = 0.0
    for t in range(steps):
        total += live[t]
        best = max(best, total)
    for i in range(count):
        for a in range(p.node_ptr[items[i]], p.node_ptr[items[i] + 1]):
            mark[p.nodes[a]] = 0
    return best
