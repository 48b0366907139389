"""HEFT: heterogeneous earliest finish time (Topcuoglu, Hariri and Wu 2002)."""

from __future__ import annotations

from dnnp.core.cost.latency import LatencyProblem, LatencySolution
from dnnp.core.latency.lists.insertion import DONE, insertion
from dnnp.core.latency.lists.net import falling, net_of, upward_rank
from dnnp.core.latency.lists.room import FULL, attempts, room_of
from dnnp.core.latency.lists.schedule import answer, by_start, list_schedule, schedule_order
from dnnp.core.model.asked import Asked
from dnnp.core.model.errors import LimitError
from dnnp.core.model.run import Run


def heft(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """Tasks by falling upward rank, each on the device where it ends first, gaps included.

    Devices are chosen, as published, as if transfers did not wait for each other; the schedule
    is then followed under the congestion rule. A device that is full is not chosen, and colours
    stay with their first task. Where that leaves no place for a task, large ones are packed
    beforehand, and the method is called `heft-packed`. O(n D (degree + gaps)).

    Raises
    ------
    InfeasibleError, LimitError
        It is proven, or just so, that the tasks do not fit.
    """
    net, room = net_of(problem), room_of(problem)
    order = falling(net, upward_rank(problem, net))
    for home in attempts(room, run):
        lost, device, start = insertion(net, order, home, room.able, room.memory, room.limit)
        if lost == DONE:
            found = schedule_order(problem, device, by_start(order, start))
            return answer((found, bool((home >= 0).any())), "heft", run)
    raise LimitError(FULL)


def heft_congested(problem: LatencyProblem, asked: Asked, run: Run) -> LatencySolution:
    """HEFT where devices are chosen under the congestion rule, without insertion.

    Transfers occupy their channels while the schedule is built (Sinnen and Sousa 2005).
    """
    rank = upward_rank(problem, net_of(problem))
    found = list_schedule(problem, room_of(problem), rank, by_end=True, run=run)
    return answer(found, "heft-congested", run)
