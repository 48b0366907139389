"""A pipeline of stages: one thread a replica, bounded queues, tensors routed by name.

    source --> stage 0 --> stage 1 --> stage 3 --> sink
                  \\---> stage 2 --------^

An edge carries, sample by sample, the tensors that one stage makes and another reads; a skip
connection is an edge like any other. It holds as many samples as the longest way around it, so
that it never holds the others up.

Of a stage with r replicas, replica j runs the samples j, j + r, j + 2r, ... Edges hand samples
over by number: whichever replica is done first, the next stage takes them in order. The source and
the sink have no thread: the stages themselves take inputs from there and leave outputs there.

A schedule says instead what each device runs, and in which order, and how many samples edges hold:
then there is one thread a device, whatever stages it runs.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from graphlib import TopologicalSorter
from threading import Condition
from typing import Generic, TypeVar

import numpy as np

from dnnp.core.model.errors import DnnpError, LimitError
from dnnp.core.runtime.model.inputs import blamed
from dnnp.core.runtime.pipeline.channel import Channel, ClosedError, Ends, Log
from dnnp.core.runtime.pipeline.sources import Sink, Source
from dnnp.core.runtime.pipeline.steps import (
    SOURCE,
    Answer,
    DeviceOrders,
    Edge,
    Job,
    Remote,
    Step,
    Worker,
    route,
)
from dnnp.core.runtime.report.statistics import Trace
from dnnp.core.runtime.values import Values
from dnnp.core.runtime.waits import StealClock, WaitClock, waits_are_known

_Put = Callable[[int, Values], None]
_POLL_S = 0.1
"""How often the main thread looks whether it was interrupted, seconds."""


J = TypeVar("J")


class Relay(Generic[J]):
    """Sends jobs to workers elsewhere, the next one while one is computed; answers come in order.

    One thread sends, another takes answers. Only jobs of the same worker are sent ahead: those of
    others wait until it is done.
    """

    def __init__(
        self,
        jobs: Iterable[J],
        remote_of: Callable[[J], Remote | None],
        send: Callable[[J], Callable[[], Answer]],
        take: Callable[[J, Callable[[], Answer]], None],
    ) -> None:
        """`send` waits for the inputs of a job, submits it, and returns what waits for the answer;
        `take` calls that and hands the answer on. A job without a worker elsewhere is done when it
        is sent, while no other is under way."""
        self._jobs, self._remote_of, self._send, self._take = jobs, remote_of, send, take
        self._under_way: deque[tuple[J, Remote | None, Callable[[], Answer]]] = deque()
        self._changed = Condition()
        self._fed = self._closed = False

    def feed(self) -> None:
        """Send all jobs."""
        try:
            for job in self._jobs:
                remote = self._remote_of(job)
                with self._changed:
                    self._changed.wait_for(partial(self._may_send, remote))
                    if self._closed:
                        return
                answer = self._send(job)
                with self._changed:
                    self._under_way.append((job, remote, answer))
                    self._changed.notify_all()
        except ClosedError:
            return
        finally:
            with self._changed:
                self._fed = True
                self._changed.notify_all()

    def _may_send(self, remote: Remote | None) -> bool:
        held = self._under_way
        if self._closed or not held:
            return True
        return remote is not None and held[-1][1] is remote and len(held) < remote.ahead

    def collect(self) -> J | None:
        """Hand on what comes of them; returns the last one."""
        last: J | None = None
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._closed or self._under_way or self._fed)
                    if self._closed or not self._under_way:
                        return last
                    job, _, answer = self._under_way[0]
                self._take(job, answer)
                last = job
                with self._changed:
                    self._under_way.popleft()
                    self._changed.notify_all()
        except ClosedError:
            return last

    def close(self) -> None:
        """Wake both."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class _PipelineRun:
    """State that the threads of one run share."""

    def __init__(
        self, steps: Sequence[Step], edges: Sequence[Edge], ends: Ends, window: int | None
    ) -> None:
        self.steps, self.ends, self.count = steps, ends, ends.source.count
        self.channels: list[Channel] = []
        self.inboxes: list[list[Callable[[int], Values]]] = [[] for _ in steps]
        """What gives each step tensors of a sample."""
        self.outboxes: list[list[tuple[_Put, tuple[str, ...]]]] = [[] for _ in steps]
        """What takes which tensors of a sample from each step."""
        for edge in edges:
            if edge.tail == SOURCE and edge.head < len(steps):
                self.inboxes[edge.head].append(partial(ends.get, names=edge.names))
            elif edge.head < len(steps):
                channel = Channel(edge.capacity)
                self.channels.append(channel)
                self.inboxes[edge.head].append(channel.get)
                self.outboxes[edge.tail].append((channel.put, edge.names))
            elif edge.tail != SOURCE:
                self.outboxes[edge.tail].append((ends.put, edge.names))
        before = {i: [e.tail for e in edges if e.head == i] for i in range(len(steps))}
        self.turn = [i for i in TopologicalSorter(before).static_order() if i != SOURCE]
        """The steps, each after those that it waits for."""
        self.relays: list[Relay[Job]] = []
        self.start_ns, self.end_ns, self.waited_ns = (
            Log(len(steps), self.count, window) for _ in range(3)
        )

    def stop(self) -> None:
        self.ends.close()
        for channel in self.channels:
            channel.close()
        for relay in self.relays:
            relay.close()

    def hand_through(self) -> None:
        """Do without any step."""
        with suppress(ClosedError):
            for s in itertools.count():
                self.ends.get(s, ())
                self.ends.put(s, {})

    def tasks(self, orders: Sequence[Sequence[Job]] | None) -> list[Callable[[], object]]:
        """List a callable for each thread; `orders`: jobs of each device, None: samples in turn."""
        lists: list[tuple[Iterable[Job], bool]] = []
        if orders is None:
            seats: dict[object, list[tuple[int, int]]] = {}
            for i in self.turn:
                for j, worker in enumerate(self.steps[i].workers):
                    seats.setdefault(worker.remote or (i, j), []).append((i, j))
            lists = [(self._turns(row), not isinstance(key, tuple)) for key, row in seats.items()]
        else:
            lists = [(jobs, any(self.worker(job).remote for job in jobs)) for jobs in orders]
        tasks: list[Callable[[], object]] = []
        for jobs, remote in lists:
            if remote:
                relay = Relay(jobs, lambda job: self.worker(job).remote, self._send, self._take)
                self.relays.append(relay)
                tasks += [relay.feed, partial(self._gather, relay)]
            else:
                tasks.append(partial(self.follow, jobs))
        return tasks or [self.hand_through]

    def _turns(self, seats: Sequence[tuple[int, int]]) -> Iterator[Job]:
        """Sample by sample, those that fall to replicas of stages in one worker."""
        for s in itertools.count() if self.count is None else range(self.count):
            for i, j in seats:
                if s % len(self.steps[i].workers) == j:
                    yield Job(i, j, s)

    def worker(self, job: Job) -> Worker:
        """The worker that does a job."""
        return self.steps[job.step].workers[job.replica]

    def follow(self, jobs: Iterable[Job]) -> None:
        """Run jobs one after the other."""
        cores: tuple[int, ...] = ()
        used: set[int] = set()
        last: Job | None = None
        waits, steals = WaitClock(), StealClock()
        try:
            for job in jobs:
                worker = self.worker(job)
                if worker.cores != cores:
                    worker.pin()
                    cores = worker.cores
                    used.update(cores[:1])
                ended_ns = self.do(job, worker)
                waited_ns = waits.at_times_ns(ended_ns, worker.threads)
                self.waited_ns[job.step, job.sample] = waited_ns
                last = job
            if last is not None:
                self.waited_ns[last.step, last.sample] += steals.passed_ns(used)
        except ClosedError:
            return

    def nothing(self, i: int) -> Values:
        """Stand-ins for the outputs of a step on whose sample a step has failed."""
        return dict.fromkeys(name for _, names in self.outboxes[i] for name in names)

    def do(self, job: Job, worker: Worker) -> int:
        """Wait for the inputs of a job, run it, and hand over what it makes; when it ended."""
        i, s = job.step, job.sample
        values = self._inputs(job)
        spoilt = self.ends.is_spoilt(s)
        self.start_ns[i, s] = time.perf_counter_ns()
        try:
            values = self.nothing(i) if spoilt else worker.run(values)
        except DnnpError as error:
            values = self._without(job, error)
        ended_ns = time.perf_counter_ns()
        self.end_ns[i, s] = ended_ns
        self._hand_over(job, values)
        return ended_ns

    def _inputs(self, job: Job) -> Values:
        """Wait for the inputs of a job."""
        values: Values = {}
        for take in self.inboxes[job.step]:
            values.update(take(job.sample))
        return values

    def _without(self, job: Job, error: DnnpError) -> Values:
        """Stand-ins for the outputs of a job that fails, if the others go on; else raises."""
        s = job.sample
        error = type(error)(f"{self.worker(job).name}: sample {s}: {error}")
        error = blamed(error, self.ends.source.sample(s) or {})
        if not self.ends.spoil(s, error):
            raise error from None
        return self.nothing(job.step)

    def _hand_over(self, job: Job, values: Values) -> None:
        for put, names in self.outboxes[job.step]:
            put(job.sample, {name: values[name] for name in names})

    def _send(self, job: Job) -> Callable[[], Answer]:
        """Wait for the inputs of a job and send it; returns what waits for its answer."""
        values, worker = self._inputs(job), self.worker(job)
        start_ns = time.perf_counter_ns()
        try:
            if self.ends.is_spoilt(job.sample):
                values = self.nothing(job.step)
            elif worker.remote is None:  # a transfer, between jobs that are computed elsewhere
                values = worker.run(values)
            else:
                worker.remote.submit(values, job.sample, worker.part)
                return worker.remote.result
        except DnnpError as error:
            values = self._without(job, error)
        answer = Answer(values, start_ns, time.perf_counter_ns())
        return lambda: answer

    def _take(self, job: Job, result: Callable[[], Answer]) -> None:
        """Wait for the answer to a job and hand it over."""
        try:
            answer = result()
        except DnnpError as error:
            now_ns = time.perf_counter_ns()
            answer = Answer(self._without(job, error), now_ns, now_ns)
        values, start_ns, end_ns, waited_ns = answer
        i, s = job.step, job.sample
        self.start_ns[i, s], self.end_ns[i, s], self.waited_ns[i, s] = start_ns, end_ns, waited_ns
        self._hand_over(job, values)

    def _gather(self, relay: Relay[Job]) -> None:
        """Take what comes of the jobs of a relay."""
        steals = StealClock()
        last = relay.collect()
        if last is not None:
            used = self.worker(last).cores[:1]
            self.waited_ns[last.step, last.sample] += steals.passed_ns(used)

    def trace(self, first: int, done: int, own_share: float) -> Trace:
        """Trace of the samples from `first` on; `done` went through."""
        ends = self.ends
        return Trace(
            self.start_ns.array(first, done),
            self.end_ns.array(first, done),
            ends.done_ns.array(first, done)[0],
            np.array([len(step.workers) for step in self.steps], dtype=np.int64),
            {},
            not ends.whole,
            self.waited_ns.array(first, done) if waits_are_known() else None,
            own_share,
            first,
            ends.source.arrived_ns(first, done),
        )


def send(
    steps: Sequence[Step],
    source: Source,
    sink: Sink,
    outputs: Sequence[str],
    *,
    queue: int = 2,
    window: int | None = None,
    orders: DeviceOrders | None = None,
    interrupted: Callable[[], bool] = lambda: False,
    progress: Callable[[int], None] = lambda done: None,
) -> Trace:
    """Send the samples of a source through the steps, to a sink.

    Parameters
    ----------
    steps
        The stages; the order does not matter.
    source, sink
        Where samples come from and outputs go; neither is closed but by a failure or interruption.
    outputs
        Names to collect; a model input among them is handed through.
    queue
        Samples that may wait between two neighbouring stages; at least one a replica may.
    window
        Samples that may be on their way at once; None: as many as there is room for.
    orders
        What each device runs; None: every replica runs its samples in turn.
    interrupted, progress
        Asked every 0.1 s whether to stop; told then, and at the end, how many samples are done.

    Raises
    ------
    DnnpError or whatever a step, the source or the sink raised
        The first failure; all other steps have been stopped.
    LimitError
        The system does not give as many threads as there are replicas.
    """
    edges = route(steps, outputs, queue, () if orders is None else orders.waits)
    if orders is not None:
        most = source.count or 0
        edges = [replace(e, capacity=orders.room.get((e.tail, e.head), most)) for e in edges]
    elif window is None:
        window = room_in(edges, steps)
    last = [e for e in edges if e.head == len(steps)]
    through = [name for e in last if e.tail == SOURCE for name in e.names]
    ends = Ends(source, sink, window=window, through=through)
    ends.parts = max(len(last) - bool(through), 1)
    run = _PipelineRun(steps, edges, ends, window)
    tasks = run.tasks(None if orders is None else orders.jobs)
    # If others compute, all threads of this process watch and bring.
    own_time_ns = time.process_time_ns if run.relays else time.thread_time_ns
    began_ns, began_own_ns = time.perf_counter_ns(), own_time_ns()
    failed: list[Future[object]] = []

    def watch(future: Future[object]) -> None:
        if future.exception() is not None:
            failed.append(future)
            run.stop()

    with ThreadPoolExecutor(len(tasks), thread_name_prefix="stage") as pool:
        try:
            if not interrupted():
                source.begin(time.perf_counter_ns())
                _start(pool, tasks, watch)
                while not ends.wait(_POLL_S) and not interrupted():
                    progress(ends.done)
        finally:
            run.stop()
            if not ends.whole:
                stop_workers(worker for step in steps for worker in step.workers)
    done, first = ends.done, ends.done_ns.first(ends.done)
    if failed and not ends.whole and not interrupted():
        failed[0].result()
    progress(done)
    own_ns = own_time_ns() - began_own_ns
    run.relays.clear()  # they refer to the run: without them all values go with it
    own_share = own_ns / max(time.perf_counter_ns() - began_ns, 1)
    return run.trace(first, done, own_share)


def room_in(edges: Sequence[Edge], steps: Sequence[Step]) -> int:
    """Samples that a pipeline can hold.

    A stage that waits for nobody gets no further ahead than the others have room for.
    """
    return sum(e.capacity for e in edges) + sum(len(step.workers) for step in steps)


def _start(
    pool: ThreadPoolExecutor,
    tasks: Sequence[Callable[[], object]],
    watch: Callable[[Future[object]], None],
) -> None:
    """Give each task a thread."""
    try:
        for task in tasks:
            pool.submit(task).add_done_callback(watch)
    except RuntimeError as error:
        raise LimitError(f"the stages need {len(tasks)} threads: {error}") from None


def stop_workers(workers: Iterable[Worker]) -> None:
    """End all calls that are under way."""
    for worker in workers:
        if worker.stop is not None:
            worker.stop()
