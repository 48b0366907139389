"""A decode loop over stages: sequences in groups of rows, one pass of each group under way.

A thread runs each stage; passes go from one to the next by queues. The last stage chooses the
tokens, hands them to the loop and begins the next pass of their group. States stay with their
stage. Those that are one buffer hold all rows of a group and are bound once: a pass over tokens
changes the numbers in place. Others grow and are bound anew in each pass; the rows of a pass lie
side by side, padded at the left, where a mask can hide it, and else there is one.
A prompt goes in chunks, between which the other rows of its group go on. Neighbouring rows that
begin with as many tokens share a pass, which is never padded; on top of a cache,
`GroupQueryAttention` takes several tokens of one row alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dnnp.core.model.errors import InputFileError
from dnnp.core.model.processes import keep_on
from dnnp.core.runtime.generate.decoder import Decoder
from dnnp.core.runtime.generate.sampling import Sampling
from dnnp.core.runtime.limits import watched
from dnnp.core.runtime.model.providers import first_line, ort_errors
from dnnp.core.runtime.model.session import is_added, to_numpy, to_ort_value

Array = NDArray[Any]

SHARED = 256
"""Tokens of a pass over several prompts: with more, a pass for each takes about as long."""

WHOLE = "the whole model"
"""Its name in messages."""


@dataclass(frozen=True)
class Prompt:
    """A sequence to generate."""

    number: int
    ids: tuple[int, ...]
    most: int
    """Tokens to generate, at most."""
    stop: frozenset[int] = frozenset()
    """Tokens after which it ends."""


@dataclass
class Generated:
    """A sequence under way, or done."""

    prompt: Prompt
    draw: np.random.Generator
    began: float = 0.0
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """Seconds on the clock of `time.perf_counter` at which each token was there."""
    done: int = 0
    """Tokens of the prompt that passes have read."""

    @property
    def length(self) -> int:
        """Tokens that the states hold."""
        return self.done + max(0, len(self.tokens) - 1)

    @property
    def ended(self) -> bool:
        """True if no more tokens are wanted."""
        tokens = self.tokens
        return len(tokens) >= self.prompt.most or bool(tokens and tokens[-1] in self.prompt.stop)


@dataclass
class Pass:
    """Rows of a group on their way through the stages."""

    group: int
    rows: tuple[int, ...]
    """Rows whose logits count: all that are active, or the neighbours whose prompts it reads."""
    feeds: dict[str, Array]
    past: int
    """Tokens before the pass, of the longest row."""
    whole: bool
    """True for a pass over tokens, of all active rows; in place, of free ones too."""
    values: dict[str, Any] = field(default_factory=dict)
    """Tensors between stages."""


class Stage(Protocol):
    """A stage with the states of its own, here or in a worker."""

    rows: int
    """Rows of a group."""
    tokens: int
    """Tokens that each row has room for."""

    def run(self, item: Pass) -> Mapping[str, Any]:
        """Run one pass: its outputs that are no states."""


@dataclass(frozen=True, eq=False)
class Grown:
    """States that grow, of some rows of a group, by input; `padding`: tokens before each row."""

    rows: tuple[int, ...]
    padding: Sequence[int]
    values: Mapping[str, Any]


class StageRunner:
    """A stage with the states that are its own, of all groups."""

    def __init__(
        self, session: Any, outputs: Sequence[str], decoder: Decoder, rows: int, tokens: int,
        name: str = "a stage",
    ) -> None:  # fmt: skip
        self.session, self.name = session, name
        self.inputs = {value.name for value in session.get_inputs()}
        self.states = [state for state in decoder.states if state.input in self.inputs]
        after = {state.output for state in self.states}
        self.made = [name for name in outputs if name not in after]
        """Outputs that are no states."""
        self._order = [*(state.output for state in self.states), *self.made]
        self.rows, self.tokens, self.in_place = rows, tokens, decoder.in_place
        self._buffers: dict[int, dict[str, Array]] = {}
        self._grown: dict[int, dict[int, Grown]] = {}
        """Group -> row -> its states, with those of rows of the same pass."""
        self._bound: dict[int, tuple[Any, dict[str, Array], dict[str, Any]]] = {}

    def _shared(self, item: Pass) -> dict[str, Array]:
        """The part of shared buffers that a pass is for, by the input that reads it."""
        if item.group not in self._buffers:
            shared = [state for state in self.states if state.shared]
            self._buffers[item.group] = {s.input: s.buffer(self.rows, self.tokens) for s in shared}
        rows = slice(None) if item.whole else slice(item.rows[0], item.rows[-1] + 1)
        return {name: whole[rows] for name, whole in self._buffers[item.group].items()}

    def run(self, item: Pass) -> dict[str, Any]:
        """Run one pass: its outputs that are no states; the first one of a sequence begins them."""
        with watched(self.name):
            return self._again(item) if item.whole and self.in_place else self._anew(item)

    def _anew(self, item: Pass) -> dict[str, Any]:
        """A pass by a binding of its own."""
        before = self._before(item)
        binding = self._bind(item, before.values)
        self.session.run_with_iobinding(binding)
        found = dict(zip(self._order, binding.get_outputs(), strict=True))
        after = {s.input: found[s.output] for s in self.states if not s.shared}
        held = dict.fromkeys(item.rows, replace(before, values=after))
        self._grown.setdefault(item.group, {}).update(held)
        return {name: found[name] for name in self.made}

    def _before(self, item: Pass) -> Grown:
        """States that grow, of the rows of a pass alone, which are laid side by side."""
        rows, grown = item.rows, [state for state in self.states if not state.shared]
        if not item.past:
            new = {state.input: state.buffer(len(rows), 0) for state in grown}
            return Grown(rows, [0] * len(rows), new)
        held = self._grown[item.group]
        found = [held[row] for row in rows]
        if found[0].rows == rows and len({*found}) == 1:
            return found[0]
        self._grown[item.group] = {row: each for row, each in held.items() if each not in found}
        at = [(each, each.rows.index(row)) for row, each in zip(rows, found, strict=True)]
        values, padding = dict[str, Any](), found[0].padding
        for state in grown:
            parts = [(to_numpy(each.values[state.input]), i, each.padding[i]) for each, i in at]
            values[state.input], padding = state.side_by_side(parts)
        return Grown(rows, padding, values)

    def _bind(self, item: Pass, grown: Mapping[str, Any]) -> Any:
        """A binding of one pass; `grown`: states that grow, by input."""
        binding, held = self.session.io_binding(), {**self._shared(item), **grown}
        for name in self.inputs - held.keys():
            _bind_input(binding, name, item.values.get(name, item.feeds.get(name)))
        for state in self.states:
            _bind_input(binding, state.input, held[state.input])
            if state.shared:
                binding.bind_ortvalue_output(state.output, to_ort_value(held[state.input]))
            else:
                binding.bind_output(state.output, "cpu")
        for name in self.made:
            binding.bind_output(name, "cpu")
        return binding

    def _again(self, item: Pass) -> dict[str, Any]:
        """A pass over tokens by the binding of its group, whose arrays are changed in place."""
        if item.group not in self._bound:
            binding = self._bind(item, {})
            self.session.run_with_iobinding(binding)
            found = dict(zip(self._order, binding.get_outputs(), strict=True))
            made = {name: found[name] for name in self.made}
            self._bound[item.group] = binding, item.feeds, made
        else:
            binding, feeds, made = self._bound[item.group]
            if feeds is not item.feeds:
                for name, array in feeds.items():
                    array[...] = item.feeds[name]
            self.session.run_with_iobinding(binding)
        return made


class ShardedStage:
    """Parts of a stage, each with its share of the states.

    Parameters
    ----------
    parts
        In topological order. Those that read nothing of each other run at once.
    """

    def __init__(self, parts: Sequence[StageRunner]) -> None:
        self.rows, self.tokens = parts[0].rows, parts[0].tokens
        self.levels: list[list[StageRunner]] = []
        made: set[str] = set()
        for part in parts:
            if not self.levels or not made.isdisjoint(part.inputs):
                self.levels.append([])
                made.clear()
            self.levels[-1].append(part)
            made.update(part.made)
        self._pool = ThreadPoolExecutor(max(map(len, self.levels)))

    def run(self, item: Pass) -> dict[str, Any]:
        """Run one pass; what its parts hand to each other stays among the values of the pass."""
        for level in self.levels:
            for found in list(self._pool.map(lambda part: part.run(item), level)):
                item.values |= found
        return {}


Event = tuple[Generated, int, bool]
"""A sequence, which may have gone on since, a token of it, and whether that is its last."""

Result = list[Event] | BaseException | None
"""Tokens of a pass, why there are no more, or None: all are there."""


def _waited(results: SimpleQueue[Result]) -> Result:
    """The next result; a signal is heeded while it is waited for."""
    while True:
        with suppress(Empty):
            return results.get(timeout=0.2)


def _bind_input(binding: Any, name: str, value: Any) -> None:
    if isinstance(value, np.ndarray) and not is_added(value.dtype):
        binding.bind_cpu_input(name, value)
    else:
        binding.bind_ortvalue_input(name, to_ort_value(value))


class Generation:
    """Sequences that go through the stages."""

    def __init__(
        self,
        stages: Sequence[Stage],
        decoder: Decoder,
        groups: int,
        chunk: int,
        sampling: Sampling,
        interrupted: Callable[[], bool] = lambda: False,
        cores: Sequence[int] = (),
    ) -> None:
        self.stages, self.decoder, self.sampling = list(stages), decoder, sampling
        self.rows, self.tokens = stages[0].rows, stages[0].tokens
        self.chunk, self.interrupted = chunk, interrupted
        self.cores = cores
        """A core for each stage; empty: the system chooses."""
        self.seats: list[list[Generated | None]] = [[None] * self.rows for _ in range(groups)]
        self.turn = [False] * groups
        """True if the last pass of a group was over a prompt."""
        self._fed: dict[int, dict[str, Array]] = {}
        """Inputs of passes over tokens of a group in place, whose stages may be bound to them."""

    def run(self, prompts: Iterable[Prompt]) -> Iterator[Event]:
        """Yield what comes, in the order of time."""
        waiting = iter(prompts)
        queues: list[SimpleQueue[Pass | None]] = [SimpleQueue() for _ in self.stages]
        results: SimpleQueue[Result] = SimpleQueue()
        seats = range(0 if self.interrupted() else len(self.seats))
        begun = [item for group in seats if (item := self._next(group, waiting)) is not None]
        threads = [
            threading.Thread(
                target=self._serve, args=(i, queues, results, waiting, len(begun)), daemon=True
            )
            for i in range(len(self.stages))
        ]
        for item in begun:
            queues[0].put(item)
        for thread in threads:
            thread.start()
        try:
            while begun and (found := _waited(results)) is not None:
                if isinstance(found, BaseException):
                    raise found
                yield from found
        finally:
            for each in queues:
                each.put(None)
            for thread in threads:
                thread.join()

    def _serve(
        self,
        number: int,
        queues: Sequence[SimpleQueue[Pass | None]],
        results: SimpleQueue[Result],
        waiting: Iterator[Prompt],
        under_way: int,
    ) -> None:
        """Run passes of one stage until there are no more; the last one begins the next of each."""
        last = number == len(self.stages) - 1
        if self.cores:
            keep_on([self.cores[number]])
        while (item := queues[number].get()) is not None:
            try:
                item.values |= self.stages[number].run(item)
                if not last:
                    queues[number + 1].put(item)
                    continue
                results.put(list(self._take(item)))
                follows = None if self.interrupted() else self._next(item.group, waiting)
            except ort_errors() as error:
                results.put(InputFileError(f"stage {number} fails: {first_line(error)}"))
                return
            except BaseException as error:  # a thread must not end in silence
                results.put(error)
                return
            if follows is not None:
                queues[0].put(follows)
            else:
                under_way -= 1
                if not under_way:
                    results.put(None)

    def _next(self, group: int, waiting: Iterator[Prompt]) -> Pass | None:
        """The next pass of a group, if there is one."""
        seats = self.seats[group]
        for row, sequence in enumerate(seats):
            if sequence is None and (prompt := next(waiting, None)) is not None:
                seats[row] = Generated(
                    prompt, self.sampling.generator(prompt.number), time.perf_counter()
                )
        reading = [r for r, s in enumerate(seats) if s and s.done < len(s.prompt.ids)]
        going = [r for r, s in enumerate(seats) if s and s.done == len(s.prompt.ids)]
        if reading and not (going and self.turn[group]):
            self.turn[group] = True
            reading.sort(key=lambda row: self._seat(group, row).prompt.number)
            return self._prompt(group, reading)
        self.turn[group] = False
        return self._tokens(group, going) if going else None

    def _seat(self, group: int, row: int) -> Generated:
        """The sequence of a row that is taken."""
        sequence = self.seats[group][row]
        if sequence is None:
            raise AssertionError(f"row {row} of group {group} is free")
        return sequence

    def _chunk(self, group: int, row: int) -> tuple[int, ...]:
        """The ids of a prompt for its next pass."""
        sequence = self._seat(group, row)
        return sequence.prompt.ids[sequence.done : sequence.done + self.chunk]

    def _prompt(self, group: int, reading: Sequence[int]) -> Pass:
        """A pass over the next chunk of a prompt, and over the prompts that begin beside it."""
        start = reading[0]
        done, chunks = self._seat(group, start).done, [self._chunk(group, start)]
        most = 1 if done else self.chunk // len(chunks[0])
        for row in reading[1:most]:
            ids = self._chunk(group, row)
            beside = row == start + len(chunks) and not self._seat(group, row).done
            if not beside or len(ids) != len(chunks[0]):
                break
            chunks.append(ids)
        feeds = self.decoder.feeds(np.array(chunks), np.full(len(chunks), done))
        return Pass(group, tuple(reading[: len(chunks)]), feeds, done, whole=False)

    def _tokens(self, group: int, going: Sequence[int]) -> Pass:
        """A pass over the last token of each row; in place also of others, which is not kept."""
        seats = self.seats[group]
        seats = seats if self.decoder.in_place else [seats[row] for row in going]
        ids = np.array([[s.tokens[-1]] if s and s.tokens else [0] for s in seats])
        past = [0 if s is None else s.length for s in seats]
        feeds = self._fed.get(group)
        if feeds is not None:
            self.decoder.refresh(feeds, ids, np.array(past))
        elif self.decoder.in_place:
            feeds = self._fed[group] = self.decoder.feeds(ids, np.array(past), self.tokens)
        else:
            feeds = self.decoder.feeds(ids, np.array(past))
        return Pass(group, tuple(going), feeds, max(past), whole=True)

    def _take(self, item: Pass) -> Iterator[Event]:
        """Choose the tokens that a pass leads to."""
        logits = to_numpy(item.values[self.decoder.logits])
        now = time.perf_counter()
        for at, row in enumerate(item.rows):
            sequence = self._seat(item.group, row)
            if not item.whole:
                sequence.done = min(sequence.done + self.chunk, len(sequence.prompt.ids))
                if sequence.done < len(sequence.prompt.ids):
                    continue
            own = logits[row if item.whole and self.decoder.in_place else at]
            where = f"sequence {sequence.prompt.number}, token {len(sequence.tokens)}"
            token = self.sampling.choose(own if own.ndim == 1 else own[-1], sequence.draw, where)
            sequence.tokens.append(token)
            sequence.times.append(now)
            if sequence.ended:
                self.seats[item.group][row] = None
            yield sequence, token, sequence.ended


def parted(
    session: Any, decoder: Decoder, given: Generated, chunk: int, sampling: Sampling
) -> dict[int, float]:
    """Tokens of a sequence that are others than one session chooses after those before them.

    By position, how far apart the logits of the two are, relative to the largest magnitude. States
    are carried from call to call.
    """
    names, prompt = [value.name for value in session.get_outputs()], given.prompt
    held = {state.input: state.buffer(1, 0) for state in decoder.states}
    sequence = Generated(prompt, sampling.generator(prompt.number))
    found: dict[int, float] = {}
    while len(sequence.tokens) < len(given.tokens):
        ids = [*prompt.ids[sequence.done : sequence.done + chunk]] or sequence.tokens[-1:]
        feeds = decoder.feeds(np.array([ids]), np.array([sequence.length]))
        with watched(WHOLE):
            made = dict(zip(names, session.run(None, {**feeds, **held}), strict=True))
        held = {state.input: made[state.output] for state in decoder.states}
        if sequence.done < len(prompt.ids):
            sequence.done += len(ids)
            if sequence.done < len(prompt.ids):
                continue
        logits = made[decoder.logits][0]
        logits = logits if logits.ndim == 1 else logits[-1]
        at = len(sequence.tokens)
        where, token = f"whole model, sequence {prompt.number}, token {at}", given.tokens[at]
        chosen = sampling.choose(logits, sequence.draw, where)
        if chosen != token:
            apart = abs(float(logits[chosen]) - float(logits[token]))
            found[at] = apart / (float(np.abs(logits).max()) or 1.0)
        sequence.tokens.append(token)
    return found
