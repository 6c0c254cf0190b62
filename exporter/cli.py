"""The command line: argv, exit codes, nothing else."""

import argparse
import asyncio
import contextlib
import errno
import importlib
import logging
import math
import os
import platform
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from exporter import __version__, log
from exporter.schema import Config, TargetConfig
from exporter.schema_types import split_address
from exporter.settings import ENV_PREFIX, BadSettingsError, load

OK, BAD = 0, 2

ENDING = {"record", "replay", "check", "demo", "--config.check"}
"""Arguments that make a run which ends by itself, whether or not the sidecar is never to exit."""
KEPT = ("--web.listen-address", "--web.page-address", "--web.config.file")
"""What holds of arguments of which another is wrong: who is told of it reads it where, and as, they are used to."""
LAB = {
    "simulate": "serve a simulated vLLM engine",
    "load": "put open-loop load on an OpenAI-compatible server",
    "plan": "what a model can do on given hardware, on paper",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # Until a server takes over; as PID 1 a process without a handler would not be ended at all.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return _run(arguments)
    except BadSettingsError as error:
        print(f"vllm-sidecar: {error}", file=sys.stderr)
        return BAD
    except KeyboardInterrupt:
        return OK
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # where what is buffered can go
        if error.errno == errno.EPIPE:
            return OK
        print(f"vllm-sidecar: cannot write: {error.strerror}", file=sys.stderr)
        return BAD


def _run(arguments: list[str]) -> int:
    if arguments and arguments[0] in LAB:
        code = _lab(arguments[0], arguments[1:])
    else:
        options = _parsed(arguments)
        code = int(options.run(options))
    print(end="", flush=True)  # at the exit nobody could be told that what is buffered cannot be written
    return code


class _Parser(argparse.ArgumentParser):
    """argparse, but what is wrong is one line, raised."""

    def error(self, message: str) -> NoReturn:
        raise BadSettingsError(message)


def _parsed(arguments: list[str]) -> argparse.Namespace:
    """The options; where nothing may end the process, wrong ones are kept as ``wrong`` to be served as such."""
    parser = _parser()
    try:
        if arguments and arguments[0].startswith(("http://", "https://")):
            parser.error(f"{arguments[0]} is no command; to watch it: {ENV_PREFIX}URL={arguments[0]} vllm-sidecar")
        return parser.parse_args(arguments)
    except BadSettingsError as error:
        if not _never_exit("--never-exit" in arguments) or ENDING & set(arguments):
            raise
        options = parser.parse_args(list(_kept(arguments)))
        options.wrong = str(error)
        options.never_exit = True
        return options


def _kept(arguments: list[str]) -> Iterator[str]:
    """Arguments that hold though another is wrong, each in one piece: a value may stand behind its name or after it."""
    for one, following in zip(arguments, [*arguments[1:], "--"], strict=True):
        name, equals, _ = one.partition("=")
        if name in KEPT and (equals or not following.startswith("-")):
            yield one if equals else f"{one}={following}"


def _never_exit(flag: bool) -> bool:
    return flag or os.environ.get(f"{ENV_PREFIX}NEVER_EXIT", "").lower() in ("1", "true", "yes", "on")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")
    return seconds


def _parser() -> _Parser:
    parser = _Parser(
        prog="vllm-sidecar",
        description="Scrape vLLM engines, derive what their raw series hide, export it to Prometheus.",
        epilog=f"Without a command it serves. Every setting is also {ENV_PREFIX}<SETTING> in the environment. "
        f"With the extra lab: {', '.join(f'{name} ({text})' for name, text in LAB.items())}.",
        allow_abbrev=False,
    )
    version = f"vllm-sidecar {__version__} (Python {platform.python_version()})"
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument("--config.file", dest="config_file", type=Path, metavar="FILE", help="settings in YAML")
    parser.add_argument("--config.check", dest="config_check", action="store_true", help="check settings and exit")
    parser.add_argument("--never-exit", action="store_true", help="serve config_valid 0 instead of exiting")
    parser.add_argument("--web.listen-address", dest="listen_address", metavar="[HOST]:PORT", help="where to serve")
    parser.add_argument(
        "--web.page-address", dest="page_address", metavar="[HOST]:PORT", help="where to serve the page and the API"
    )
    parser.add_argument(
        "--web.config.file", dest="web_config_file", type=Path, metavar="FILE", help="TLS and users of our port"
    )
    parser.add_argument("--log.level", dest="log_level", metavar="LEVEL", help="debug, info, warning or error")
    parser.add_argument("--log.format", dest="log_format", metavar="FORMAT", help="logfmt or json")
    parser.set_defaults(run=_serve, wrong=None)
    commands = parser.add_subparsers(metavar="COMMAND")

    record = commands.add_parser("record", help="write an engine's scrapes to a log", allow_abbrev=False)
    record.add_argument("file", type=Path, help="log to write; .gz and .xz compress")
    record.add_argument("--url", help="the engine; otherwise as set")
    record.add_argument("--seconds", type=_seconds, help="stop after so long; otherwise on Ctrl-C")
    record.add_argument("--interval", type=_seconds, default=1.0, metavar="SECONDS", help="between scrapes (default 1)")
    record.set_defaults(run=_record)

    replay = commands.add_parser("replay", help="print what a log would have exported", allow_abbrev=False)
    replay.add_argument("file", type=Path, help="log that record wrote")
    replay.add_argument("--format", choices=("csv", "openmetrics"), default="csv")
    replay.add_argument("--loop", type=int, default=1, metavar="N", help="play it so often, totals going on")
    replay.add_argument("--serve", metavar="[HOST]:PORT", help="play it back over HTTP as an engine instead")
    replay.set_defaults(run=_replay)

    check = commands.add_parser("check", help="look an engine over and say what to change", allow_abbrev=False)
    check.add_argument("url", nargs="?", metavar="URL", help="the engine; otherwise as set")
    check.add_argument("--seconds", type=_seconds, default=25.0, help="look for so long (default 25)")
    check.add_argument("--interval", type=_seconds, default=1.0, metavar="SECONDS", help="between scrapes (default 1)")
    check.add_argument("--json", action="store_true", help="for a program")
    check.set_defaults(run=_check)

    demo = commands.add_parser("demo", help="watch an engine nobody needs to have", allow_abbrev=False)
    demo.add_argument("--recorded", action="store_true", help="a real engine's recording instead of a simulated one")
    demo.add_argument("--seconds", type=_seconds, help="stop after so long; otherwise on Ctrl-C")
    demo.set_defaults(run=_demo)
    return parser


def _settings(options: argparse.Namespace, **more: Any) -> Config:
    if options.wrong:
        raise BadSettingsError(options.wrong)
    names = ("listen_address", "page_address", "web_config_file", "log_level", "log_format")
    flags = {name: getattr(options, name) for name in names}
    return load(options.config_file, never_exit=options.never_exit or None, **flags, **more)


def _only_target(options: argparse.Namespace) -> TargetConfig:
    """The engine that a command was given, whatever targets are set; else the first that is."""
    given = {} if options.url is None else {"url": options.url, "targets": ()}
    return _settings(options, **given).all_targets()[0]


def _serve(options: argparse.Namespace) -> int:
    from exporter import serve
    from exporter.webconfig import BadWebConfigError, Web

    never_exit = _never_exit(options.never_exit)
    try:
        config = _settings(options)
        web = Web(config.web_config_file)
    except BadSettingsError:
        if options.config_check or not never_exit:
            raise
        config = _fallback(options)
        web_config_file = options.web_config_file or os.environ.get(f"{ENV_PREFIX}WEB_CONFIG_FILE")
        web = Web(Path(web_config_file) if web_config_file else None)
    never_exit = never_exit or config.never_exit
    if not never_exit or options.config_check:
        _check_start(config)
    try:
        web.load()
    except BadWebConfigError as error:
        if options.config_check or not never_exit:
            raise BadSettingsError(str(error)) from None
    if options.config_check:
        print("settings are valid")
        return OK
    log.set_up(config.log_level, config.log_format)
    reloader = serve.Reloader(lambda: _settings(options), BadSettingsError, options.config_file)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server reads its files again for it
    with contextlib.ExitStack() as opened, contextlib.suppress(KeyboardInterrupt):
        sockets = {}
        for address in dict.fromkeys((config.listen_address, config.served_page_address)):
            try:
                sockets[address] = opened.enter_context(_listen(address))
            except BadSettingsError:
                if not never_exit:
                    raise
        asyncio.Runner().run(serve.serve(config, reloader, web, sockets))
    # All is stopped but threads that wait for a name server, and those cannot be: Python would wait for them.
    logging.shutdown()
    os._exit(OK)


def _check_start(config: Config) -> None:
    """What is refused at the start only: later an invalid file leaves the last good one in force."""
    from exporter.discovery import Discovery
    from exporter.file_sd import BadSourceError
    from exporter.tls import client_context, problem

    discovery = Discovery()
    discovery.use(config)
    try:
        asyncio.run(discovery.check())
    except BadSourceError as error:
        raise BadSettingsError(str(error)) from None
    for target in config.all_targets():
        if target.scrape.ca_file or target.scrape.cert_file:
            try:
                client_context(target.scrape)
            except OSError as error:
                names = [str(path) for path in (target.scrape.ca_file, target.scrape.cert_file) if path]
                raise BadSettingsError(f"cannot use {' or '.join(names)}: {problem(error)}") from None


def _listen(address: str) -> socket.socket:
    from exporter.http_server import bind

    try:
        return bind(address)
    except OSError as error:
        raise BadSettingsError(f"cannot listen on {address}: {error.strerror}") from None


def _fallback(options: argparse.Namespace) -> Config:
    """What to serve with while no settings are valid: the addresses asked for, if they are such."""
    addresses = {name: _address(name, options) for name in ("listen_address", "page_address")}
    return Config.model_validate({name: address for name, address in addresses.items() if address is not None})


def _address(name: str, options: argparse.Namespace) -> str | None:
    for address in (getattr(options, name), os.environ.get(f"{ENV_PREFIX}{name.upper()}")):
        with contextlib.suppress(ValueError):
            split_address(address or "")
            return str(address)
    return None


def _record(options: argparse.Namespace) -> int:
    from exporter import recorder

    target = _only_target(options)
    log.set_up("info", "logfmt")
    try:
        written = asyncio.run(recorder.record(target, options.file, options.interval, options.seconds))
    except OSError as error:
        raise BadSettingsError(f"cannot write {options.file}: {error.strerror}") from None
    print(f"{written} scrapes in {options.file}", file=sys.stderr)
    return OK


def _replay(options: argparse.Namespace) -> int:
    from exporter import playback, replay
    from exporter.recording import NotALogError, read_log

    if options.loop < 1:
        raise BadSettingsError("--loop must be 1 or more")
    config = _settings(options)
    try:
        entries = list(read_log(options.file))
    except OSError as error:
        raise BadSettingsError(f"cannot read {options.file}: {error.strerror or error}") from None
    except NotALogError as error:
        raise BadSettingsError(str(error)) from None
    if options.serve is not None:
        log.set_up("info", "logfmt")
        try:
            listening = _listen(options.serve)
        except ValueError as error:
            raise BadSettingsError(f"--serve: {error}") from None
        asyncio.run(playback.serve(entries, listening))
        return OK
    entries = replay.looped(entries, options.loop)
    write = replay.write_csv if options.format == "csv" else replay.write_openmetrics
    write(replay.replay(entries, config.all_targets()[0], config.options()), sys.stdout)
    return OK


def _check(options: argparse.Namespace) -> int:
    from exporter import check

    return check.run(_only_target(options), options.seconds, options.interval, json_wanted=options.json)


def _demo(options: argparse.Namespace) -> int:
    from exporter import demo

    config = _settings(options)
    engine = demo.recorded() if options.recorded else _lab_module("demo").simulated()
    asyncio.run(demo.run(config, _listen(config.listen_address), engine, options.seconds))
    return OK


def _lab(command: str, arguments: list[str]) -> int:
    return int(_lab_module(command).main(arguments))


def _lab_module(name: str) -> Any:
    try:
        return importlib.import_module(f"exporter.lab.{name}")
    except ModuleNotFoundError as error:
        missing = f"{name} needs {error.name}, which comes with: pip install 'vllm-sidecar[lab]'"
        raise BadSettingsError(missing) from None


if __name__ == "__main__":
    sys.exit(main())
