"""Work too long for the event loop, on threads of its own: names that do not resolve hold the others for seconds."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_threads = ThreadPoolExecutor(2, thread_name_prefix="aside")


async def aside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What work returns or raises, while the event loop goes on."""
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: work(*args, **kwargs))
