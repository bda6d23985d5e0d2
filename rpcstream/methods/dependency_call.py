"""Runs calls whose handler has dependencies, and their clean-up after the reply.

Owns the task in which dependencies, handler and clean-up of one call run, so that what a dependency holds is opened and
closed in the same task; and the number of clean-ups that may be under way. Which functions are called is up to
`dependencies`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from ..observe.limited_log import LimitedLog
from ..peer.deadline import forget
from .dependencies import CallScope, Dependencies, Plan
from .registry import Method
from .stream_call import CallRunner


class CleanUps:
    """The calls with clean-up of a dispatcher, from their beginning until they have cleaned up.

    Args:
        log: gets what clean-up raises.
        limit: replies go out before their clean-up as long as fewer calls clean up; over it they wait for it.
    """

    def __init__(self, log: LimitedLog, limit: int) -> None:
        self.log = log
        self._limit = limit
        self._tasks: set[asyncio.Task[None]] = set()
        self._after_reply = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, task: asyncio.Task[None]) -> None:
        """Keep a task until it ends."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def may_come_later(self) -> bool:
        """True if a reply may go out before its clean-up. To be followed by `came` when that is done."""
        if self._after_reply >= self._limit:
            return False
        self._after_reply += 1
        return True

    def came(self, _: object = None) -> None:
        """Note that the clean-up after a reply is done."""
        self._after_reply -= 1

    async def wait(self) -> None:
        """Wait until all have cleaned up."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def abandon(self, seconds: float) -> None:
        """Cancel those that have not cleaned up yet, and give them so many seconds to end."""
        if self._tasks:
            kind = "the clean-up of dependencies did not end in time, and is cancelled: %d calls"
            self.log.warning(None, kind, len(self._tasks))
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(set(self._tasks), timeout=seconds)


class DependencyRunner(CallRunner):
    """Runs one call whose handler has dependencies.

    Args:
        dependencies: of the handler; None where it has none after all.
        clean_ups: of the dispatcher.
        args, options: as for a `CallRunner`.
    """

    def __init__(self, dependencies: Dependencies | None, clean_ups: CleanUps, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._dependencies = dependencies
        self._clean_ups = clean_ups
        self._plan: Plan | None = None
        self._scope: CallScope | None = None

    async def start(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Gives the handler's result, or raises its exception or that of a dependency."""
        if self._dependencies is None:
            return await super().start(method, args, kwargs)
        try:
            self._plan = self._dependencies.plan()
        except BaseException:
            self._has_begun = True
            self._end()
            raise
        submit = self._invoker.submit if method.offload == "thread" else None
        self._scope = CallScope(submit, self._clean_ups.log)
        if not self._plan.has_clean_up:
            return await super().start(method, args, kwargs)
        return await self._start_apart(method, args, kwargs, self._scope)

    async def _start_apart(
        self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], scope: CallScope
    ) -> Any:
        """Run the call in a task that outlives the reply; gives the result as soon as the handler has ended."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Any] = loop.create_future()
        replied: asyncio.Future[None] = loop.create_future()
        run = super().start(method, args, kwargs)
        task = loop.create_task(_run_and_clean_up(run, outcome, replied, scope))
        self._clean_ups.start(task)
        try:
            while not outcome.done():
                try:
                    await asyncio.wait({outcome})
                except asyncio.CancelledError:
                    # One that comes when the handler has ended must not reach the clean-up.
                    if not outcome.done() and not self.session.running.is_undisturbed(task):
                        task.cancel()
            return outcome.result()
        finally:
            if self._clean_ups.may_come_later():
                task.add_done_callback(self._clean_ups.came)
                current = asyncio.current_task()
                assert current is not None
                # Behind the session's own callback, which takes the reply; it writes it within that turn of the loop.
                current.add_done_callback(lambda _: loop.call_soon(_release, replied))
            else:
                _release(replied)
                await _wait_through_one_cancel(task)

    def _begin(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._scope is None:
            return super()._begin(method, args, kwargs)
        return self._begin_provided(method, args, kwargs, self._scope)

    async def _begin_provided(
        self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any], scope: CallScope
    ) -> Any:
        """Provide the parameters, then begin the handler."""
        assert self._plan is not None
        assert method.injection is not None
        values = await scope.provide(self._plan, self.context)
        args, kwargs = method.injection.with_provided(args, kwargs, values)
        del values
        if method.offload == "thread" and self._plan.has_clean_up:
            if method.generator is None:
                return await scope.run_in_thread(partial(method.function, *args, **kwargs))
            tracked = partial(_tracked, scope, method.generator)
            method = replace(method, generator=tracked, function=tracked)
        result = super()._begin(method, args, kwargs)
        return await result if inspect.isawaitable(result) else result


async def _run_and_clean_up(
    run: Any, outcome: asyncio.Future[Any], replied: asyncio.Future[None], scope: CallScope
) -> None:
    error: BaseException | None = None
    try:
        result = await run
    except asyncio.CancelledError as cancelled:
        error = cancelled
        outcome.cancel()
    except BaseException as raised:
        error = raised
        outcome.set_exception(raised)
    else:
        outcome.set_result(result)
        del result
    try:
        await replied
        forget()
        await scope.close(error)
    finally:
        del error, outcome, scope  # the exception has this frame in its traceback


def _release(replied: asyncio.Future[None]) -> None:
    if not replied.done():
        replied.set_result(None)


async def _wait_through_one_cancel(task: asyncio.Task[None]) -> None:
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _tracked(scope: CallScope, generator: Any, *args: Any, **kwargs: Any) -> Generator[Any, None, Any]:
    """The items of a generator that runs in threads, whose end clean-up waits for."""
    items: Generator[Any, None, Any] = generator(*args, **kwargs)
    over: Future[None] = Future()
    scope.in_thread = over
    try:
        return (yield from items)
    finally:
        over.set_result(None)
