"""Command line: what was asked for, from which configuration, and the exit code.

Errors are one line on stderr that names the file, the key path and the remedy. Does not know how a
command does its work.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from . import __version__
from .config import Config, ConfigError, Unseen, from_environment, load
from .standard import Unwritable, open_missing, write
from .surfaces import Surface

EX_OK = 0
EX_FAILED = 1
EX_CONFIG = 78

DEFAULT_FILE = "/etc/relayd/config.toml"

MISSING = "name the file with -c or RELAYD_CONFIG"

SIGNALS = (
    "SIGTERM and SIGINT drain (a second one ends at once), SIGHUP reads the file again, SIGUSR2 "
    "hands over to a new generation."
)

Run = Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    open_missing()
    try:
        code = _run(argv)
        write("")  # what argparse has left in the buffer
    except Unwritable as error:
        print(f"relayd: {error}", file=sys.stderr)
        return EX_FAILED
    except KeyboardInterrupt:
        return EX_FAILED
    return code


def _run(argv: Sequence[str] | None) -> int:
    try:
        args = parser().parse_args(argv)
    except SystemExit as done:  # --help, --version, wrong usage
        return int(done.code or EX_OK)
    try:
        code: int = args.run(args)
    except ConfigError as error:
        _complain(error)
        return EX_CONFIG
    return code


def _complain(error: ConfigError) -> None:
    for problem in error.problems:
        print(problem, file=sys.stderr)


def parser() -> argparse.ArgumentParser:
    """Every command with its options."""
    top = argparse.ArgumentParser(
        prog="relayd",
        description="An OpenAI-compatible gateway that replaces a failing provider before the "
        "first byte.",
        epilog="Exit codes: 0 fine, 1 failed, 2 usage, 78 configuration.",
    )
    top.add_argument("--version", action="version", version=f"relayd {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Run, words: str, more: str = "") -> argparse.ArgumentParser:
        text = f"{words[:1].upper()}{words[1:]}. {more}"
        added: argparse.ArgumentParser = commands.add_parser(name, help=words, description=text)
        added.set_defaults(run=run)
        return added

    serve = command("serve", _serve, "run the daemon", SIGNALS)
    configured(serve)
    serve.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="ADDR",
        help='"host:port" or "unix:/path" instead of server.listen; may be repeated',
    )

    check = command("check", _check, "validate the configuration, every problem at once")
    configured(check)
    check.add_argument(
        "--online", action="store_true", help="also ask each provider for its models with its key"
    )

    trace = "The answer goes to stdout as it arrives, the route trace and log lines to stderr."
    send = command("send", _send, "send one request through the chain, without a server", trace)
    configured(send)
    send.add_argument("request", metavar="REQUEST.json", help="the body; - reads stdin")
    known = ", ".join(surface.value for surface in Surface)
    send.add_argument("--surface", default="chat", help=f"one of {known}; chat by default")
    send.add_argument("--user", help="the user's id")
    send.add_argument("--trace", metavar="FILE", help="the route trace here instead of on stderr")

    command("demo", _demo, "a failing primary, a working backup and relayd, on loopback")

    health = command("healthcheck", _healthcheck, "ask the running daemon; exit 0 or 1")
    configured(health)
    at_url(health)

    more = "It asks the admin listener: at admin.listen, or at --url."
    live = command("top", _top, "the live picture of a running daemon", more)
    from_file(live)
    live.set_defaults(env=False)  # variables name no admin listener
    at_url(live)
    live.add_argument("--once", action="store_true", help="one snapshot instead of a live picture")
    return top


def configured(command: argparse.ArgumentParser) -> None:
    """The options that say where the configuration is."""
    source = command.add_mutually_exclusive_group()
    from_file(source)
    source.add_argument(
        "--env",
        action="store_true",
        help="build it from variables: PROVIDER, FALLBACK, <NAME>_API_KEY, <NAME>_MODEL ...",
    )


def from_file(options: argparse._ActionsContainer) -> None:
    """The option that names the file."""
    options.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="the configuration; by default $RELAYD_CONFIG, then config.toml in "
        f"$CONFIGURATION_DIRECTORY, then {DEFAULT_FILE}",
    )


def at_url(command: argparse.ArgumentParser) -> None:
    """The option that names a running daemon."""
    command.add_argument(
        "--url", help="http://host:port, https://host or unix:/path, instead of a configuration"
    )


def read_config(args: argparse.Namespace, unseen: Unseen = Unseen.NOTHING) -> Config:
    """The configuration that the options name; raises `ConfigError`."""
    listen = getattr(args, "listen", [])
    if args.env:
        return from_environment(os.environ, read_file, listen, unseen)
    path = config_path(args.config)
    return load(path, os.environ, read_file, listen, unseen, MISSING)


def config_path(given: str | None) -> str:
    """`-c`, `$RELAYD_CONFIG`, systemd's `$CONFIGURATION_DIRECTORY`, the default: in this order."""
    if given is not None:
        return given
    if os.environ.get("RELAYD_CONFIG"):
        return os.environ["RELAYD_CONFIG"]
    for folder in os.environ.get("CONFIGURATION_DIRECTORY", "").split(":"):
        if folder and Path(folder, "config.toml").exists():
            return str(Path(folder, "config.toml"))
    return DEFAULT_FILE


def read_file(path: str) -> bytes:
    """A file's bytes; raises OSError."""
    return Path(path).read_bytes()


def credentials_hidden() -> bool:
    """Whether systemd's credentials are out of sight: by hand, or in ExecReload= (systemd 252)."""
    try:
        return not os.listdir(os.environ["CREDENTIALS_DIRECTORY"])
    except (KeyError, OSError):
        return True


def _serve(args: argparse.Namespace) -> int:
    from .daemon import serve

    config = read_config(args)
    return serve(config, None if args.env else lambda: read_config(args))


def _check(args: argparse.Namespace) -> int:
    from .resources import installed, raise_file_limit

    hidden = not args.online and credentials_hidden()
    config = read_config(args, Unseen.CREDENTIALS if hidden else Unseen.NOTHING)
    installed(config)  # raises what the service would
    scarce = raise_file_limit(config)  # the service may be granted more
    for warning in (*config.warnings, *([scarce] if scarce else ())):
        print(f"warning: {warning}", file=sys.stderr)
    if args.online:
        from .online import check_online

        return check_online(config)
    providers = ", ".join(provider.name for provider in config.providers)
    routes = ", ".join(route.name for route in config.routes)
    write(f"{config.source}: ok; providers: {providers}; routes: {routes}\n")
    return EX_OK


def _send(args: argparse.Namespace) -> int:
    from .send import send

    return send(read_config(args), args.request, args.surface, args.user, args.trace)


def _demo(args: argparse.Namespace) -> int:
    from .demo import demo

    return demo()


def _healthcheck(args: argparse.Namespace) -> int:
    from .healthcheck import healthcheck

    try:
        place = read_config(args, Unseen.SECRETS) if args.url is None else args.url
    except ConfigError as error:
        _complain(error)
        return EX_FAILED  # a supervisor is promised 0 or 1
    return healthcheck(place)


def _top(args: argparse.Namespace) -> int:
    from .top import top

    return top(read_config(args, Unseen.SECRETS) if args.url is None else args.url, args.once)
