#!/usr/bin/env bash
# Libraries: anrg-saga 2.0.2, networkx 3.6.1, pydantic 2.14.4 (Python 3.11).
# Expected:  published list schedulers from a library of them are usable baselines: GDL (dynamic levels) puts tasks where they end
#            early, HBMCT returns schedules of all tasks.
# Happens:   GDL takes the least dynamic level where the method takes the greatest, for tasks and for devices. A chain goes to the slowest
#            device, four times as long as on the fastest; of two equal devices one gets all six branches.
#            With three devices HBMCT loses tasks: moving one between two devices takes off what the third has of
#            the group. A fork and join of five tasks comes back with four and a makespan that looks right (49.8);
#            nothing is raised. With two devices all five are there.
# Matters:   GDL makes any method look good, and what HBMCT returns cannot be run. Check each schedule that a library returns: each task
#            once, after its inputs, and not longer than all on the fastest device.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/env"
{
  "$work/env/bin/pip" install -q networkx==3.6.1 numpy==2.4.6 pydantic==2.14.4 pysmt==0.9.6 &&
    "$work/env/bin/pip" install -q --no-deps anrg-saga==2.0.2
} >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 2; }
cd "$work"
env/bin/python - <<'PY'
import itertools
import logging

from saga import Network, TaskGraph
from saga.schedulers import FastestNodeScheduler, GDLScheduler, HbmctScheduler, HeftScheduler

logging.disable()


def network(speeds, links):
    return Network.create(list(speeds.items()), [(*pair, links[pair]) for pair in links])


def links(names, speed):
    return dict.fromkeys(itertools.combinations(names, 2), speed)


def used(schedule):
    return {name for name, row in schedule.items() if row}


chain = TaskGraph.create([("t0", 4.0), ("t1", 4.0), ("t2", 4.0)], [("t0", "t1", 1.0), ("t1", "t2", 1.0)])
for speeds in ({"fast": 4.0, "slow": 1.0}, {"fast": 4.0, "middle": 2.0, "slow": 1.0}):
    net = network(speeds, links(speeds, 8.0))
    for scheduler in (HeftScheduler(), FastestNodeScheduler()):
        schedule = scheduler.schedule(net, chain)
        assert used(schedule) == {"fast"} and schedule.makespan == 3
    for scheduler in (GDLScheduler(1), GDLScheduler(2)):
        schedule = scheduler.schedule(net, chain)
        assert used(schedule) == {"slow"} and schedule.makespan == 12
branches = {f"b{i}": 2 + i / 8 for i in range(6)}
fork = [("in", name, 1.0) for name in branches] + [(name, "out", 1.0) for name in branches]
fork = TaskGraph.create([("in", 1.0), *branches.items(), ("out", 1.0)], fork)
equal = network({"a": 1.0, "b": 1.0}, links("ab", 100.0))
idle = GDLScheduler().schedule(equal, fork)
assert len({node for node, row in idle.items() for task in row if task.name in branches}) == 1, idle
assert idle.makespan > 15.8 and HeftScheduler().schedule(equal, fork).makespan < 9.5

costs = {"t0": 40.0, "t1": 56.0, "t2": 15.0, "t3": 36.0, "t4": 17.0}
sizes = {("t0", "t1"): 15.0, ("t0", "t2"): 21.0, ("t0", "t3"): 9.0, ("t0", "t4"): 14.0}
sizes |= {("t1", "t4"): 18.0, ("t2", "t4"): 30.0, ("t3", "t4"): 27.0}
graph = TaskGraph.create(list(costs.items()), [(*edge, size) for edge, size in sizes.items()])
speeds = {"a": 1.0, "b": 2.0, "c": 3.0}
bands = {("a", "b"): 5.0, ("b", "c"): 7.0, ("a", "c"): 3.0}
schedule = HbmctScheduler().schedule(network(speeds, bands), graph)
placed = sorted(task.name for _, row in schedule.items() for task in row)
assert placed == ["t0", "t1", "t2", "t4"], placed
assert not schedule.is_scheduled("t3") and round(schedule.makespan, 1) == 49.8
for pair in itertools.combinations(speeds, 2):
    two = HbmctScheduler().schedule(network({n: speeds[n] for n in pair}, {pair: bands[pair]}), graph)
    assert sorted(task.name for _, row in two.items() for task in row) == sorted(costs)
print("as stated: GDL takes 12 for a chain of 3 - HBMCT schedules", placed, "of five tasks")
PY
