"""The queue of a server: bounded, without requests that were given up, in batches for one process that computes."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any, NamedTuple

from lit_transformers.serving.messages import (
    LOST,
    Abilities,
    Ability,
    Failure,
    LineAnswer,
    LineWork,
    Prompt,
    ServingOptions,
    TextPiece,
)
from lit_transformers.serving.metrics import Metrics
from lit_transformers.serving.worker import answer_messages

__all__ = ["Dispatcher", "QueueFullError", "QueueLimits", "StartError", "WorkerLostError"]

logger = logging.getLogger("uvicorn.error")


class QueueLimits(NamedTuple):
    """wait: milliseconds that a text waits for others, so that they are read together. queue: texts that wait, at most.
    together: texts that are sent to the process at once, at most. timeout: seconds until a request is given up."""

    wait: float = 2.0
    queue: int = 256
    together: int = 64
    timeout: float = 30.0


class StartError(Exception):
    """The process cannot serve. Its text is the reason, in one line."""


class QueueFullError(Exception):
    """The queue is full. ``seconds``: the time after which it should have room."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the queue is full; try again after {seconds} s")
        self.seconds = seconds


class WorkerLostError(Exception):
    """The process ended before it had answered. Its text is the reason, in one line."""


PAUSES = (0.5, 30.0)
"""Seconds between two attempts to start the process, at first and at most."""


@dataclass(eq=False)
class QueuedRequest:
    """A request in the queue. ``since``: when it came, by ``time.monotonic``."""

    ability: Ability
    lines: Sequence[bytes]
    since: float
    future: asyncio.Future[Any]
    prompt: Prompt | None = None
    pieces: asyncio.Queue[TextPiece] = field(default_factory=asyncio.Queue)
    answers: dict[int, LineAnswer] = field(default_factory=dict)


class Batch(NamedTuple):
    """Requests that are computed together. places: for each line that was sent, its request and its place there."""

    jobs: Sequence[QueuedRequest]
    places: Sequence[tuple[QueuedRequest, int]]


class Dispatcher:
    """Sends requests to the process in batches, and starts it again if it ends. All methods are for one event loop."""

    def __init__(
        self,
        options: ServingOptions,
        limits: QueueLimits,
        metrics: Metrics,
        target: Callable[[Connection, ServingOptions], None] = answer_messages,
    ) -> None:
        """target: the function that the process runs, given its connection and the options."""
        self.options, self.limits, self.metrics, self.target = options, limits, metrics, target
        self.abilities = Abilities({}, 0)
        self.waiting = deque[QueuedRequest]()
        self.queued, self.running = 0, Batch((), ())
        self.process: BaseProcess | None = None
        self.connection: Connection | None = None
        self.arrived, self.free = asyncio.Event(), asyncio.Event()
        self.tasks = set[asyncio.Task[None]]()
        self.seconds_per_line, self.last_message = 0.01, time.monotonic()
        self.stopping = False

    @property
    def is_ready(self) -> bool:
        return self.connection is not None

    async def start(self) -> None:
        """Starts the process and waits until its gate has passed. Raises StartError if it cannot serve."""
        self.abilities = await self.launch()
        self.add_task(self.dispatch())

    def add_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def launch(self) -> Abilities:
        """Starts the process, and returns its abilities. Raises StartError if it cannot serve, or lacks an ability that
        it had before."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self.process = context.Process(target=self.target, args=(theirs, self.options), daemon=True)
        loop = asyncio.get_running_loop()
        try:
            self.process.start()
            theirs.close()
            first: Abilities | Failure = await loop.run_in_executor(None, ours.recv)
        except (EOFError, OSError):
            raise StartError("the process that computes ended while it started") from None
        if isinstance(first, Failure):
            raise StartError(first.reason)
        if not self.abilities.examples.keys() <= first.examples.keys():
            self.process.kill()
            raise StartError("the checkpoint has changed, and lacks abilities that it had before")
        self.connection = ours
        self.free.set()
        Thread(target=self.listen, args=(ours, loop), daemon=True).start()
        return first

    def listen(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        """Passes the messages of the process to the event loop, in a thread."""
        while True:
            try:
                message = connection.recv()
            except (EOFError, OSError):
                message = None
            try:
                loop.call_soon_threadsafe(self.received, message)
            except RuntimeError:  # the loop is closed
                return
            if message is None:
                return

    def received(self, message: LineAnswer | TextPiece | None) -> None:
        """Handles a message of the process; None: it has ended."""
        self.last_message = time.monotonic()
        if message is None:
            self.lost()
        elif isinstance(message, TextPiece):
            (job,) = self.running.jobs
            job.pieces.put_nowait(message)
            if message.end:
                self.finished(job, None)
                self.free.set()
        else:
            job, place = self.running.places[message.place]
            job.answers[place] = message
            if len(job.answers) == len(job.lines):
                self.finished(job, [job.answers[number] for number in range(len(job.lines))])
            if all(len(one.answers) == len(one.lines) for one in self.running.jobs):
                self.free.set()

    def finished(self, job: QueuedRequest, result: Any) -> None:
        if not job.future.done():
            job.future.set_result(result)

    def fail(self, job: QueuedRequest, reason: str) -> None:
        """Ends a request without an answer."""
        if job.prompt is not None:
            job.pieces.put_nowait(TextPiece(reason, True, LOST))
            job.future.cancel()
        elif not job.future.done():
            job.future.set_exception(WorkerLostError(reason))

    def lost(self) -> None:
        """Fails the requests that the process was computing, and starts another process."""
        self.connection = None
        for job in self.running.jobs:
            self.fail(job, "the process that computes ended; try again")
        self.running = Batch((), ())
        if not self.stopping:
            self.metrics.restarts.inc()
            self.add_task(self.restart())

    async def restart(self) -> None:
        """Starts the process again, with longer and longer pauses while it cannot serve."""
        pause, longest = PAUSES
        while not self.stopping:
            try:
                await self.launch()
                return
            except StartError as error:
                logger.error("%s; the next attempt is in %g s", error, pause)
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)

    async def submit(self, ability: Ability, lines: Sequence[bytes]) -> list[LineAnswer]:
        """Returns the answers to lines. Raises QueueFullError, WorkerLostError if the process ended, and TimeoutError
        after ``timeout`` seconds. If the caller is cancelled, lines that wait are dropped."""
        job = self.enter(ability, lines)
        async with asyncio.timeout(self.limits.timeout):
            answers: list[LineAnswer] = await job.future
        return answers

    async def pieces(self, prompt: Prompt) -> AsyncGenerator[TextPiece, None]:
        """Yields a text in pieces, as they are computed. Raises QueueFullError. If the caller stops reading, the
        process stops writing."""
        job = self.enter("generate", [b""], prompt)
        try:
            while True:
                async with asyncio.timeout(self.limits.timeout):
                    piece = await job.pieces.get()
                yield piece
                if piece.end:
                    return
        finally:
            if job in self.running.jobs and self.connection is not None and not job.future.done():
                with suppress(OSError):  # ``listen`` tells that the process has ended
                    self.connection.send(None)
            job.future.cancel()

    def enter(self, ability: Ability, lines: Sequence[bytes], prompt: Prompt | None = None) -> QueuedRequest:
        """Puts a request into the queue. Raises QueueFullError if it is full."""
        self.drop_given_up()
        if self.queued + len(lines) > self.limits.queue:
            raise QueueFullError(max(1, round(self.queued * self.seconds_per_line)))
        job = QueuedRequest(ability, lines, time.monotonic(), asyncio.get_running_loop().create_future(), prompt)
        self.waiting.append(job)
        self.queued += len(lines)
        self.metrics.queued.set(self.queued)
        self.arrived.set()
        return job

    def drop_given_up(self) -> None:
        """Removes the requests that nobody waits for any more."""
        if any(job.future.done() for job in self.waiting):
            self.waiting = deque(job for job in self.waiting if not job.future.done())
            self.queued = sum(len(job.lines) for job in self.waiting)

    async def dispatch(self) -> None:
        """Sends batches to the process, one after another."""
        while True:
            await self.arrived.wait()
            await self.free.wait()
            self.drop_given_up()
            if not self.waiting or self.connection is None:
                self.arrived.clear() if not self.waiting else self.free.clear()
                continue
            rest = self.waiting[0].since + self.limits.wait / 1000 - time.monotonic()
            if rest > 0 and self.queued < self.limits.together and self.waiting[0].prompt is None:
                await asyncio.sleep(rest)
                continue
            batch = self.next_batch()
            self.running, started = batch, time.monotonic()
            self.free.clear()
            try:
                self.connection.send(batch.jobs[0].prompt or LineWork(batch.jobs[0].ability, lines_of(batch)))
            except OSError:  # ``listen`` tells that the process has ended
                continue
            self.metrics.together.observe(len(batch.places))
            await self.computed()
            if self.running is batch:  # otherwise the process has ended
                seconds = (time.monotonic() - started) / len(batch.places)
                self.seconds_per_line += 0.1 * (seconds - self.seconds_per_line)

    async def computed(self) -> None:
        """Waits until a batch is computed. A process that sends nothing for twice the time in which requests are given
        up is stuck, and is killed."""
        self.last_message = time.monotonic()
        while not self.free.is_set():
            rest = self.last_message + 2 * self.limits.timeout - time.monotonic()
            if rest <= 0:
                self.last_message, rest = time.monotonic(), 2 * self.limits.timeout
                if self.process is not None and self.is_ready:
                    self.process.kill()
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self.free.wait()

    def next_batch(self) -> Batch:
        """Takes the oldest request from the queue, and others that fit to it."""
        first, jobs, kept, count = self.waiting[0], list[QueuedRequest](), deque[QueuedRequest](), 0
        for job in self.waiting:
            is_alike = job.ability == first.ability and first.prompt is None
            if job is first or (is_alike and count + len(job.lines) <= self.limits.together):
                jobs.append(job)
                count += len(job.lines)
            else:
                kept.append(job)
        self.waiting, self.queued = kept, self.queued - count
        self.metrics.queued.set(self.queued)
        return Batch(jobs, [(job, place) for job in jobs for place in range(len(job.lines))])

    async def stop(self) -> None:
        """Ends the process. Requests that are not answered fail."""
        self.stopping = True
        for task in self.tasks:
            task.cancel()
        if self.process is not None and self.process.pid is not None:
            self.process.kill()
            await asyncio.get_running_loop().run_in_executor(None, self.process.join, 5)
        for job in [*self.running.jobs, *self.waiting]:
            self.fail(job, "the server stops")


def lines_of(batch: Batch) -> list[bytes]:
    """Returns the lines of a batch in the order of ``places``."""
    return [job.lines[place] for job, place in batch.places]
