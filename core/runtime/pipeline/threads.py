"""A pipeline of stages: one thread a replica, bounded queues, tensors routed by name.

    source --> stage 0 --> stage 1 --> stage 3 --> sink
                  \\---> stage 2 --------^

An edge carries, sample by sample, the tensors that one stage makes and another reads; a skip
connection is an edge like any other. It holds as many samples as the longest way around it, so
that it never holds the others up.

Of a stage with r replicas, replica j runs the samples j, j + r, j + 2r, ... Edges hand samples over
by number, so that the next stage takes them in order, whichever replica is done first. The source
and the sink have no thread: the stages themselves take inputs from there and leave outputs there.

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
from threading import Condition, Event
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import DnnpError, LimitError
from dnnp.core.runtime.model.inputs import blamed
from dnnp.core.runtime.model.session import Values
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
from dnnp.core.runtime.usage import StealClock, WaitClock, waits_are_known


class ClosedError(Exception):
    """The channel was closed: some part of the pipeline stopped."""


class Channel:
    """Holds samples until they are taken; it can be closed from outside.

    Samples are numbered from 0. Replicas may put them in and take them out in any order, but
    none gets further than `capacity` samples beyond the first one that was not taken yet.
    """

    def __init__(self, capacity: int) -> None:
        self._items: dict[int, Any] = {}
        self._first = 0
        """All samples before this one were taken."""
        self._taken: set[int] = set()
        """Samples after it that were taken."""
        self._capacity = capacity
        self._changed = Condition()
        self._closed = False

    def put(self, sample: int, item: Any) -> None:
        """Add a sample; waits while the channel is full; raises `ClosedError`."""
        with self._changed:
            while sample >= self._first + self._capacity and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ClosedError
            self._items[sample] = item
            self._changed.notify_all()

    def get(self, sample: int) -> Any:
        """Take a sample, waiting for it; raises `ClosedError`."""
        with self._changed:
            while sample not in self._items and not self._closed:
                self._changed.wait()
            if self._closed:
                raise ClosedError
            item = self._items.pop(sample)
            self._taken.add(sample)
            while self._first in self._taken:
                self._taken.remove(self._first)
                self._first += 1
            self._changed.notify_all()
            return item

    def close(self) -> None:
        """Wake all waiting threads; contents are lost."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()


class Terminals:
    """Source and sink of a pipeline, without a thread of its own.

    Threads of stages take samples and leave outputs themselves. A thread that only brings and
    collects would take its turn on the processors of the stages.
    """

    def __init__(
        self,
        source: Source,
        sink: Sink,
        *,
        window: int | None = None,
        through: Sequence[str] = (),
    ) -> None:
        """`window` samples may be in the pipeline at once (None: all); inputs in `through` are
        outputs as they are."""
        self.source, self.sink = source, sink
        self.parts = 1
        """In how many parts the outputs of a sample come."""
        self._window, self._through = window, through
        self._missing: dict[int, int] = {}
        """Parts that are still to come, of samples of which some have."""
        self._values: dict[int, Values] = {}
        """Outputs so far of samples that the sink wants."""
        self._failed: set[int] = set()
        """Samples in the pipeline on which a stage failed."""
        self._ahead: dict[int, int] = {}
        """Completion times of samples behind an unfinished one."""
        self._closed = False
        self._changed, self._over = Condition(), Event()
        self.done = 0
        """All samples before this one are done."""
        self.done_ns = Log(1, source.count, window)
        """[0, sample], time of the last output of the sample and all before it, by
        `time.perf_counter_ns`."""
        if source.count == 0:
            self._over.set()

    @property
    def whole(self) -> bool:
        """True if all samples are done, and there will be no more."""
        return self.done == self.source.count

    def get(self, sample: int, names: Sequence[str]) -> Values:
        """Inputs of a sample, as soon as it may set out; raises `ClosedError`."""
        with self._changed:
            while not self._closed:
                full = self._window is not None and sample >= self.done + self._window
                late_s = self.source.wait_s(sample)
                if not full and late_s <= 0:
                    break
                self._changed.wait(None if full else late_s)
            if self._closed:
                raise ClosedError
        inputs = self.source.sample(sample)
        if inputs is None:
            with self._changed:
                if self.whole:
                    self._over.set()
            raise ClosedError
        return {name: inputs[name] for name in names}

    def put(self, sample: int, values: Values) -> None:
        """Leave a part of the outputs of a sample; raises `ClosedError`."""
        now_ns = time.perf_counter_ns()
        wanted = self.sink.wants(sample)
        with self._changed:
            if self._closed:
                raise ClosedError
            if wanted:
                self._values.setdefault(sample, {}).update(values)
            left = self._missing.pop(sample, self.parts) - 1
            if left:
                self._missing[sample] = left
                return
            outputs = self._values.pop(sample, None)
        if outputs is not None and sample not in self._failed:
            if self._through:
                inputs = self.source.sample(sample) or {}
                outputs = {**{name: inputs[name] for name in self._through}, **outputs}
            self.sink.put(sample, outputs)
        self.source.done(sample)
        with self._changed:
            self._failed.discard(sample)
            self._ahead[sample] = now_ns
            before_ns = self.done_ns[0, self.done - 1] if self.done else 0
            while self.done in self._ahead:
                before_ns = max(before_ns, self._ahead.pop(self.done))
                self.done_ns[0, self.done] = before_ns
                self.done += 1
            self._changed.notify_all()
            if self.whole:
                self._over.set()

    def note_failure(self, sample: int, error: DnnpError) -> bool:
        """Note that a stage fails on a sample; returns whether it goes on through the others."""
        if self._closed or not self.sink.failed(sample, error):
            return False  # what is ended from outside fails, too
        with self._changed:
            self._failed.add(sample)
        return True

    def has_failed(self, sample: int) -> bool:
        """True if a stage has failed on a sample; others skip it."""
        return sample in self._failed

    def wait(self, seconds: float) -> bool:
        """Wait so long until all samples are done, or this is closed; whether that is so."""
        return self._over.wait(seconds)

    def close(self) -> None:
        """Wake all waiting threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._over.set()
        self.source.close()


MOST = 1 << 16
"""Number of last samples with kept times, if their total is unknown."""


class Log:
    """Whole numbers by (row, sample), from 0; each is written by one thread.

    It holds all samples where their number is known, else the last `MOST` that are done, and
    `window` that are in the pipeline.
    """

    def __init__(self, rows: int, count: int | None, window: int | None = None) -> None:
        self._most = count
        self._size = max(MOST + (window or 0) if count is None else count, 1)
        self._values = np.zeros((rows, self._size), dtype=np.int64)

    def __setitem__(self, at: tuple[int, int], value: int) -> None:
        self._values[at[0], at[1] % self._size] = value

    def __getitem__(self, at: tuple[int, int]) -> int:
        return int(self._values[at[0], at[1] % self._size])

    def first(self, done: int) -> int:
        """Return the first sample that is kept once so many are done."""
        return max(done - MOST, 0) if self._most is None else 0

    def array(self, first: int, done: int) -> NDArray[np.int64]:
        """i64[rows, done - first], of the samples from `first` on."""
        return self._values[:, np.arange(first, done) % self._size]


_Put = Callable[[int, Values], None]
_POLL_S = 0.1
"""Interval of checks for interruption in the main thread, seconds."""


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
        """`send` waits for the inputs of a job, submits it and returns a function that waits for
        the answer; `take` calls that and hands the answer on. A local job is done when sent, while
        no other is running."""
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
        self, steps: Sequence[Step], edges: Sequence[Edge], terminals: Terminals, window: int | None
    ) -> None:
        self.steps, self.terminals, self.count = steps, terminals, terminals.source.count
        self.channels: list[Channel] = []
        self.inboxes: list[list[Callable[[int], Values]]] = [[] for _ in steps]
        """Sources of each step's tensors of a sample."""
        self.outboxes: list[list[tuple[_Put, tuple[str, ...]]]] = [[] for _ in steps]
        """Targets of each step's tensors of a sample."""
        for edge in edges:
            if edge.tail == SOURCE and edge.head < len(steps):
                self.inboxes[edge.head].append(partial(terminals.get, names=edge.names))
            elif edge.head < len(steps):
                channel = Channel(edge.capacity)
                self.channels.append(channel)
                self.inboxes[edge.head].append(channel.get)
                self.outboxes[edge.tail].append((channel.put, edge.names))
            elif edge.tail != SOURCE:
                self.outboxes[edge.tail].append((terminals.put, edge.names))
        before = {i: [e.tail for e in edges if e.head == i] for i in range(len(steps))}
        self.turn = [i for i in TopologicalSorter(before).static_order() if i != SOURCE]
        """The steps, each after those that it waits for."""
        self.relays: list[Relay[Job]] = []
        self.start_ns, self.end_ns, self.waited_ns = (
            Log(len(steps), self.count, window) for _ in range(3)
        )

    def stop(self) -> None:
        self.terminals.close()
        for channel in self.channels:
            channel.close()
        for relay in self.relays:
            relay.close()

    def hand_through(self) -> None:
        """Pass samples through a pipeline without steps."""
        with suppress(ClosedError):
            for s in itertools.count():
                self.terminals.get(s, ())
                self.terminals.put(s, {})

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
        """Wait for the inputs of a job, run it, and pass its outputs on; returns its end time."""
        i, s = job.step, job.sample
        values = self._inputs(job)
        failed = self.terminals.has_failed(s)
        self.start_ns[i, s] = time.perf_counter_ns()
        try:
            values = self.nothing(i) if failed else worker.run(values)
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
        error = blamed(error, self.terminals.source.sample(s) or {})
        if not self.terminals.note_failure(s, error):
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
            if self.terminals.has_failed(job.sample):
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
        terminals = self.terminals
        return Trace(
            self.start_ns.array(first, done),
            self.end_ns.array(first, done),
            terminals.done_ns.array(first, done)[0],
            np.array([len(step.workers) for step in self.steps], dtype=np.int64),
            {},
            not terminals.whole,
            self.waited_ns.array(first, done) if waits_are_known() else None,
            own_share,
            first,
            terminals.source.arrived_ns(first, done),
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
        Samples that may be in the pipeline at once; None: as many as its channels hold.
    orders
        What each device runs; None: every replica runs its samples in turn.
    interrupted, progress
        Callbacks every 0.1 s: true to stop; and the number of samples done, also at the end.

    Raises
    ------
    DnnpError, or any error of a step, the source or the sink
        The first failure; all other steps have been stopped.
    LimitError
        The system does not give as many threads as there are replicas.
    """
    edges = route(steps, outputs, queue, () if orders is None else orders.waits)
    if orders is not None:
        most = source.count or 0
        edges = [replace(e, capacity=orders.capacities.get((e.tail, e.head), most)) for e in edges]
    elif window is None:
        window = capacity_of(edges, steps)
    last = [e for e in edges if e.head == len(steps)]
    through = [name for e in last if e.tail == SOURCE for name in e.names]
    terminals = Terminals(source, sink, window=window, through=through)
    terminals.parts = max(len(last) - bool(through), 1)
    run = _PipelineRun(steps, edges, terminals, window)
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
                while not terminals.wait(_POLL_S) and not interrupted():
                    progress(terminals.done)
        finally:
            run.stop()
            if not terminals.whole:
                stop_workers(worker for step in steps for worker in step.workers)
    done, first = terminals.done, terminals.done_ns.first(terminals.done)
    if failed and not terminals.whole and not interrupted():
        failed[0].result()
    progress(done)
    own_ns = own_time_ns() - began_own_ns
    run.relays.clear()  # they refer to the run: without them all values go with it
    own_share = own_ns / max(time.perf_counter_ns() - began_ns, 1)
    return run.trace(first, done, own_share)


def capacity_of(edges: Sequence[Edge], steps: Sequence[Step]) -> int:
    """Samples that a pipeline can hold.

    A stage without waits gets no further ahead than that.
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
