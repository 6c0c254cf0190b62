"""Targets that come and go: files as Prometheus's file_sd reads them, and names in DNS.

A source that turns invalid, or a name that does not resolve, leaves the last good answer in force.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from exporter.file_sd import Answer, BadSourceError, Files
from exporter.schema import Config, DnsSource, TargetConfig, merge, overlap, shared_settings
from exporter.schema_types import in_words
from exporter.signals.view import SourceView

log = logging.getLogger("exporter.discovery")

CHECKED_EVERY_SECONDS = 2.0
ASKING_SECONDS = 5.0

Ask = Callable[[Config], Awaitable[Answer]]


async def resolve(source: DnsSource, config: Config) -> list[TargetConfig]:
    """The targets behind a name.

    Raises:
        BadSourceError: it does not resolve, or a target cannot be as what is found and set for it says.
    """
    addresses = await (_srv(source.name) if source.type == "SRV" else _addresses(source))
    settings = merge(shared_settings(config), source.settings)
    if source.scheme == "https" and source.type != "SRV":
        # No certificate names a pod's address.
        settings = merge({"scrape": {"server_name": source.name}}, settings)
    urls = [f"{source.scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host, port in addresses]
    try:
        return [TargetConfig.model_validate({**settings, "url": url}) for url in urls]
    except ValidationError as error:
        raise BadSourceError(in_words(error)) from None


async def _addresses(source: DnsSource) -> list[tuple[str, int]]:
    family = socket.AF_INET6 if source.type == "AAAA" else socket.AF_INET
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(source.name, source.port, family=family, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise BadSourceError(str(getattr(error, "strerror", None) or error)) from None
    return sorted({(str(address[0]), int(address[1])) for *_, address in found})


async def _srv(name: str) -> list[tuple[str, int]]:
    from dns import asyncresolver, exception  # noqa: PLC0415 - only who asks for SRV pays for it

    try:
        answer = await asyncresolver.resolve(name, "SRV", lifetime=10.0)
    except (exception.DNSException, OSError) as error:
        raise BadSourceError(str(error).splitlines()[0] if str(error) else type(error).__name__) from None
    # A dot for a host says that there is none (RFC 2782).
    found = {(str(record.target).rstrip("."), int(record.port)) for record in answer}
    return sorted((host, port) for host, port in found if host)


@dataclass(slots=True)
class _Source:
    """One source: how to ask it, and its last good answer."""

    name: str
    every_seconds: float
    ask: Ask
    due_at: float = 0.0
    found: Sequence[TargetConfig] = ()
    problem: str | None = None
    asked: bool = False
    good_unix_seconds: float | None = None
    dropped: int = 0


class Discovery:
    """The sources of the settings in force, and the targets they last named."""

    def __init__(self) -> None:
        self._config = Config()
        self._sources: dict[str, _Source] = {}
        self._any = asyncio.Event()
        self._dropped: set[tuple[str, str]] = set()

    def use(self, config: Config) -> None:
        """Put settings in force. Sources that stay keep their last good answer until they are asked again."""
        before, self._config, self._sources = self._sources, config, {}
        for pattern in config.discovery.file_sd:
            self._add(_Source(f"file:{pattern}", 0.0, Files(pattern)), before)
        for source in config.discovery.dns:
            name = f"dns:{source.type}:{source.name}" + (f":{source.port}" if source.port else "")
            self._add(_Source(name, config.discovery.dns_refresh_seconds, _dns(source)), before)
        (self._any.set if self._sources else self._any.clear)()

    def _add(self, source: _Source, before: dict[str, _Source]) -> None:
        kept = before.get(source.name)
        if kept is not None:
            source.found, source.problem, source.asked = kept.found, kept.problem, kept.asked
            source.good_unix_seconds = kept.good_unix_seconds
            if isinstance(source.ask, Files) and isinstance(kept.ask, Files):
                source.ask.found = dict(kept.ask.found)
        self._sources[source.name] = source

    async def refresh(self, now: float) -> bool:
        """Ask the sources that are due, all at once; whether any names other targets than before."""
        due = [source for source in self._sources.values() if now >= source.due_at]
        return any(await asyncio.gather(*(self._ask(source, now) for source in due)))

    async def _ask(self, source: _Source, now: float) -> bool:
        source.due_at = now + source.every_seconds
        fields: dict[str, object] = {"source": source.name}
        try:
            async with asyncio.timeout(ASKING_SECONDS):
                answer = await source.ask(self._config)
        except TimeoutError:
            answer = Answer(None, f"no answer within {ASKING_SECONDS:g} s")
        except Exception as error:  # whatever it is, what the other sources say must come through
            answer = Answer(None, f"the sidecar failed: {error!r}")
            if source.problem != answer.problem:
                log.exception("a source failed inside the sidecar", extra={"fields": fields})
        if answer.problem is not None and source.problem != answer.problem:
            log.warning(
                "targets cannot be found, the last ones stay", extra={"fields": {**fields, "reason": answer.problem}}
            )
        source.problem = answer.problem
        changed = answer.found is not None and (not source.asked or answer.found != source.found)
        if answer.found is not None:
            source.found = answer.found
        if answer.problem is None:
            source.good_unix_seconds = time.time()
        source.asked = True
        if changed:
            log.info("targets found", extra={"fields": {**fields, "targets": len(source.found)}})
        return changed

    def targets(self) -> list[TargetConfig]:
        """The targets to watch: the settings' own, then those found. A log line for each dropped the first time."""
        return self._distinct(drop=self._log_drop)

    def _distinct(self, drop: Callable[[TargetConfig, str, str], None]) -> list[TargetConfig]:
        kept = list(self._config.fixed_targets())
        labels = {target.label for target in kept}
        by_address: dict[object, list[TargetConfig]] = {}
        for target in kept:
            by_address.setdefault(target.address, []).append(target)
        for source in self._sources.values():
            source.dropped = 0
            for target in source.found:
                why = ""
                if any(overlap(target, other) for other in by_address.get(target.address, ())):
                    why = "the same engine again"
                elif target.label in labels:
                    why = "another target has this name"
                elif len(kept) >= self._config.discovery.max_targets:
                    why = f"more than {self._config.discovery.max_targets} targets"
                if why:
                    source.dropped += 1
                    drop(target, source.name, why)
                    continue
                kept.append(target)
                labels.add(target.label)
                by_address.setdefault(target.address, []).append(target)
        return kept

    def _log_drop(self, target: TargetConfig, source: str, why: str) -> None:
        if (source, target.url) not in self._dropped and len(self._dropped) < 10_000:
            self._dropped.add((source, target.url))
            fields = {"target": target.label, "url": target.url, "source": source, "reason": why}
            log.warning("target dropped", extra={"fields": fields})

    def views(self) -> list[SourceView]:
        """How each source fares."""
        return [
            SourceView(each.name, each.problem is None, len(each.found), each.dropped, each.good_unix_seconds)
            for each in self._sources.values()
            if each.asked
        ]

    async def check(self) -> None:
        """Read the files once, as at the start.

        Raises:
            BadSourceError: a file that is there is invalid, or a target stands in them twice.
        """
        for source in self._sources.values():
            if isinstance(source.ask, Files):
                answer = await source.ask(self._config)
                if answer.problem is not None and not source.ask.missing:
                    raise BadSourceError(answer.problem)
                source.found = answer.found or ()
        self._distinct(drop=_refuse)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Ask for ever, and tell of changes. Without sources nobody is woken."""
        while True:
            await self._any.wait()
            try:
                if await self.refresh(time.monotonic()):
                    changed()
            except Exception:  # whatever it is, targets must go on being found
                log.exception("finding targets failed inside the sidecar")
            await asyncio.sleep(CHECKED_EVERY_SECONDS)


def _refuse(target: TargetConfig, source: str, why: str) -> None:
    raise BadSourceError(f"{source}: target {target.label}: {why}")


def _dns(source: DnsSource) -> Ask:
    async def ask(config: Config) -> Answer:
        try:
            return Answer(await resolve(source, config), None)
        except BadSourceError as error:
            return Answer(None, str(error))

    return ask
