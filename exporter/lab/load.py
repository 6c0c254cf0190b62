"""`vllm-sidecar load`: arrivals that clump and never wait, against any OpenAI-compatible server."""

import argparse
import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from exporter.lab.arguments import refuse_infinite
from exporter.lab.arrivals import Arrival, Pattern, arrivals, read_trace
from exporter.lab.client import Outcome, Prompts, Target, send, tracing
from exporter.lab.load_picture import draw
from exporter.lab.load_report import Run, Slo, report, text

SPARE_FILES = 64


def connection_limit(planned: int) -> int:
    """Connections that the plan could need at once: all of it, or as many files as this process may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = planned + SPARE_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, min(planned, max(soft, allowed) - SPARE_FILES))


async def find_model(url: str) -> str:
    """The first model that the server has.

    Raises:
        ConnectionError: there is no server, or it is not one of the kind.
    """
    try:
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.get(f"{url}/v1/models") as response:
            response.raise_for_status()
            return str((await response.json())["data"][0]["id"])
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise ConnectionError(f"no server at {url}: {str(error) or type(error).__name__}") from None
    except (ValueError, KeyError, IndexError, TypeError):
        raise ConnectionError(f"{url}/v1/models does not answer as an OpenAI-compatible server does") from None


async def offer(
    target: Target,
    plan: Sequence[Arrival],
    *,
    seconds: float,
    max_connections: int,
    client_timeout: float | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _sent, _done: None,
) -> Run:
    """Send every arrival at its time, whatever the server does, and wait for all of them.

    Args:
        target: where to.
        plan: in order of time.
        seconds: length of the plan.
        max_connections: of the pool; a run that reaches it is not open loop, and its report says so.
        client_timeout: seconds after which a client leaves; None waits for ever.
        seed: of the prompts.
        progress: called with the requests sent and done so far.
    """
    prompts = Prompts(seed)
    connector = aiohttp.TCPConnector(limit=max_connections, force_close=False)
    timeout = aiohttp.ClientTimeout(total=client_timeout, sock_connect=None)
    outcomes: list[Outcome] = []
    tasks: list[asyncio.Task[None]] = []
    done = 0

    def ended(_task: asyncio.Task[None]) -> None:
        nonlocal done
        done += 1
        progress(len(tasks), done)

    async with aiohttp.ClientSession(connector=connector, timeout=timeout, trace_configs=[tracing()]) as session:
        started = time.monotonic()
        for arrival in plan:
            body = target.body(arrival, prompts)
            await asyncio.sleep(started + arrival.at - time.monotonic())
            outcome = Outcome(arrival, started + arrival.at)
            outcomes.append(outcome)
            task = asyncio.create_task(send(session, target, outcome, body))
            task.add_done_callback(ended)
            tasks.append(task)
            progress(len(tasks), done)
        await asyncio.gather(*tasks)
        return Run(outcomes, started, time.monotonic(), max_connections, seconds)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="vllm-sidecar load", description="Open-loop load that clumps like real use.")
    found.add_argument("--url", default="http://127.0.0.1:8000", help="of the server, without /v1")
    found.add_argument("--model", help="default: the first that the server lists")
    found.add_argument("--chat", action="store_true", help="use /v1/chat/completions")
    found.add_argument("--text", action="store_true", help="send prompts as text instead of token numbers")
    found.add_argument("--rate", type=float, default=4.0, help="requests a second outside bursts")
    found.add_argument("--burst-rate", type=float, default=0.0, help="requests a second inside bursts")
    found.add_argument("--base-dwell", type=float, default=60.0, metavar="S", help="mean seconds between bursts")
    found.add_argument("--burst-dwell", type=float, default=20.0, metavar="S", help="mean seconds of a burst")
    found.add_argument("--burst-window", type=float, nargs=2, metavar=("START", "END"), help="one burst instead")
    found.add_argument("--cv", type=float, default=1.8, help="coefficient of variation of the gaps in a state")
    found.add_argument("--seconds", type=float, default=60.0, help="length of the plan")
    found.add_argument("--seed", type=int, default=1)
    found.add_argument("--longest", type=int, default=32_000, help="most tokens of a request, in and out")
    found.add_argument("--trace", type=Path, help="CSV of seconds,prompt_tokens,output_tokens[,class] instead")
    found.add_argument("--client-timeout", type=float, metavar="S", help="clients leave after this; default never")
    found.add_argument("--max-connections", type=int, help="default: sized from the plan")
    found.add_argument("--slo-ttft", type=float, default=2.0, metavar="S")
    found.add_argument("--slo-tpot", type=float, default=0.1, metavar="S")
    found.add_argument("--slo-share", type=float, default=0.99, help="of each class, for --sweep")
    found.add_argument("--sweep", type=float, nargs=3, metavar=("FROM", "TO", "STEP"), help="raise --rate step by step")
    found.add_argument("--json", type=Path, help="write the report here")
    found.add_argument("--picture", type=Path, help="draw the run here (.png, .svg, .pdf)")
    return found


def check(arguments: argparse.Namespace) -> Pattern:
    """The arrival pattern of a command line that makes sense.

    Raises:
        ValueError: it does not.
    """
    refuse_infinite(arguments)
    window = tuple(arguments.burst_window) if arguments.burst_window else None
    pattern = Pattern(
        arguments.rate, arguments.burst_rate, arguments.base_dwell, arguments.burst_dwell, window, arguments.cv
    )
    for name in ("seconds", "slo_ttft", "slo_tpot", "client_timeout", "max_connections"):
        value = getattr(arguments, name)
        if value is not None and value <= 0:
            raise ValueError(f"--{name.replace('_', '-')} must be above 0, not {value:g}")
    if not 0 < arguments.slo_share <= 1:
        raise ValueError(f"--slo-share is a share from 0 to 1, not {arguments.slo_share:g}")
    if arguments.longest <= 1:
        raise ValueError("--longest must be at least 2")
    if arguments.sweep:
        low, high, step = arguments.sweep
        if not 0 < low <= high or step <= 0:
            raise ValueError("--sweep goes from a rate above 0 up to a higher one in steps above 0")
        if arguments.trace:
            raise ValueError("--sweep needs a rate to raise: it cannot go with --trace")
        if arguments.picture:
            raise ValueError("--picture draws one run: it cannot go with --sweep")
    if not arguments.url.startswith(("http://", "https://")):
        raise ValueError(f"--url must begin with http:// or https://: {arguments.url}")
    return pattern


def plan_of(arguments: argparse.Namespace, pattern: Pattern) -> tuple[list[Arrival], float]:
    """The arrivals, and the length of the plan in seconds.

    Raises:
        ValueError: a bad trace, or nothing to send.
        OSError: no such trace.
    """
    if arguments.trace:
        trace = read_trace(arguments.trace)
        return trace, max(1.0, trace[-1].at)
    plan = list(arrivals(pattern, arguments.seconds, seed=arguments.seed, longest=arguments.longest))
    if not plan:
        raise ValueError(f"nothing arrives in {arguments.seconds:g} s at {pattern.base_rate:g}/s")
    return plan, arguments.seconds


async def run_once(arguments: argparse.Namespace, pattern: Pattern, console: Console) -> tuple[Run, dict[str, Any]]:
    """One run and its report."""
    plan, seconds = plan_of(arguments, pattern)
    url = arguments.url.rstrip("/")
    model = await find_model(url)
    target = Target(url, arguments.model or model, arguments.chat, arguments.text)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, refresh_per_second=2, disable=not console.is_terminal
    ) as bar:
        sending, finishing = bar.add_task("sent", total=len(plan)), bar.add_task("done", total=len(plan))

        def progress(sent: int, done: int) -> None:
            bar.update(sending, completed=sent)
            bar.update(finishing, completed=done)

        run = await offer(
            target,
            plan,
            seconds=seconds,
            max_connections=arguments.max_connections or connection_limit(len(plan)),
            client_timeout=arguments.client_timeout,
            seed=arguments.seed,
            progress=progress,
        )
    if all(outcome.error == "connect" for outcome in run.outcomes):
        raise ConnectionError(f"the server at {url} went away: no request could connect")
    return run, report(run, Slo(arguments.slo_ttft, arguments.slo_tpot))


async def sweep(arguments: argparse.Namespace, pattern: Pattern, console: Console) -> tuple[list[dict[str, Any]], int]:
    """Raise the rate until the SLO is missed; print each step and the last rate that met it."""
    low, high, step = arguments.sweep
    found: list[dict[str, Any]] = []
    best: str | None = None
    rate = low
    while rate <= high + step / 1e6:
        scale = rate / pattern.base_rate
        _, result = await run_once(
            arguments, replace(pattern, base_rate=rate, burst_rate=pattern.burst_rate * scale), console
        )
        valid = result["verdict"]["valid"]
        share = min(part["goodput_ratio"] for part in result["classes"].values())
        met = valid and share >= arguments.slo_share
        found.append({"rate": rate, "worst_class_goodput_ratio": share, "met": met, "report": result})
        tokens = sum(part["output_tokens"] for part in result["classes"].values()) / result["duration_seconds"]
        shown = f"{rate:8.2f}/s  worst class {share:6.1%} in SLO  {tokens:8.0f} output tokens/s"
        console.print(f"{shown}  {'met' if met else 'missed'}", soft_wrap=True)
        if not valid:
            console.print("INVALID: " + "; ".join(result["verdict"]["reasons"]), soft_wrap=True)
            return found, 1
        if not met:
            break
        best = f"{rate:g}/s, {tokens:.0f} output tokens/s: the sustained throughput to price with"
        rate += step
    console.print("SLO frontier: " + (best or f"below {low:g}/s"))
    return found, 0


async def command(arguments: argparse.Namespace, pattern: Pattern) -> int:
    """Run, print, write; 1 for a run that cannot be believed."""
    console = Console(highlight=False)
    if arguments.sweep:
        steps, code = await sweep(arguments, pattern, console)
        found: Any = {"sweep": steps}
    else:
        run, found = await run_once(arguments, pattern, console)
        console.print(text(found), markup=False, soft_wrap=True)
        code = 0 if found["verdict"]["valid"] else 1
        if arguments.picture:
            draw(run, arguments.picture)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return code


def main(argv: list[str]) -> int:
    """Run the command: 1 when the run is invalid, 2 for bad arguments, a bad trace or no server."""
    arguments = parser().parse_args(argv)
    try:
        pattern = check(arguments)
        return uvloop.run(command(arguments, pattern))
    except (ValueError, OSError) as error:
        print(f"vllm-sidecar load: {error}", file=sys.stderr)  # noqa: T201
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
