"""The rules of the house that a program can check: who may import whom, sizes, words.

A new module has to be entered in `TIERS`: this is red until somebody has decided where it lives.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "relayd"

TIERS = {
    0: "errors headers sse answers peek jsonbody quota breaker surfaces record masking framing "
    "outcomes refusal knownlines events usage repeat stall whole wholeevents",
    1: "providers failover http1 response pool config config.* adapters adapters.* families "
    "figures tally picture",
    2: "net transport tlstransport poller gather wake dial stores stores.* turns breakers sdnotify "
    "accesslog logsink metrics",
    3: "reach job upstream pump outbound admission engine exchange replies sink "
    "httpsink fetch queuesink asgisink runtime visit smallapi embed",
    4: "endpoints session server asgi app status statuspage gauges admin",
    5: "daemon activation resources handover launcher cli demo send online healthcheck "
    "__main__ top standard",
}
"""Facts, decisions, parts that do I/O, work, service, process. Imports go down or stay level."""

TIER = {name: tier for tier, names in TIERS.items() for name in names.split()}

DECIDES = 1
"""Modules up to this tier know no socket and no clock."""

WORLDLY = {"asyncio", "socket", "ssl", "time", "random", "redis", "select", "threading", "uvloop"}

FOREIGN = {
    "h11": {"http1"},
    "redis": {"stores.redis"},
    "prometheus_client": {"metrics"},
    "uvloop": {"resources"},
}
"""What is not Python's own, and who alone may import it."""

FILE_LINES = 350
FUNCTION_LINES = 60
MEDIAN_LINES = 10

BANNED = re.compile(
    r"(^|_)(backend|manager|handler|helper|utils?)s?(_|$)|^_*(process|handle)_", re.IGNORECASE
)
"""Words that say nothing here. Names are compared in snake_case."""

FILES = sorted(PACKAGE.rglob("*.py"))
IDS = [str(path.relative_to(PACKAGE)) for path in FILES]
every_file = pytest.mark.parametrize("path", FILES, ids=IDS)


def module(path: Path) -> str:
    """`stores.redis` for relayd/stores/redis.py, `stores` for its __init__, "" for relayd's own."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module(path) for path in FILES}


def tier(name: str) -> int:
    """The tier of a module; KeyError where nobody has decided. The bare package knows nothing."""
    if not name:
        return 0
    return TIER[name] if name in TIER else TIER[f"{name.partition('.')[0]}.*"]


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when the module is imported: everything but the insides of functions."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child
            yield from at_import(child)


def targets(path: Path, *, lazy: bool = True) -> Iterator[str]:
    """What `path` imports, as absolute names; `lazy`: inside of functions too."""
    own = module(path).split(".") if module(path) else []
    package = own if path.name == "__init__.py" else own[:-1]
    for node in ast.walk(tree(path)) if lazy else at_import(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            name = [*(["relayd", *base] if node.level else []), *(node.module or "").split(".")]
            dotted = ".".join(part for part in name if part)
            yield from (f"{dotted}.{alias.name}" for alias in node.names)


def inside(path: Path, *, lazy: bool = True) -> set[str]:
    """The modules of relayd that `path` imports, by their name in `TIERS`."""
    found = set()
    for target in targets(path, lazy=lazy):
        first, _, rest = target.partition(".")
        if first == "relayd":
            found.add(rest if rest in MODULES else rest.rpartition(".")[0])
    return found - {module(path)}


def outside(path: Path) -> set[str]:
    """The top-level packages that `path` imports, relayd's own not."""
    return {target.partition(".")[0] for target in targets(path)} - {"relayd"}


@every_file
def test_every_module_has_a_tier(path: Path) -> None:
    name = module(path)
    known = not name or name in TIER or f"{name.partition('.')[0]}.*" in TIER
    assert known, f"{name} has no tier: enter it in TIERS"


def test_every_tier_names_modules_that_there_are() -> None:
    names = {name for name in TIER if not name.endswith(".*")}
    assert names <= MODULES, f"no such modules: {names - MODULES}"


@every_file
def test_imports_go_down_or_stay_level(path: Path) -> None:
    if path.parent == PACKAGE and path.name == "__init__.py":
        return  # the front door shows what callers may use, whatever its tier
    up = {name for name in inside(path) if tier(name) > tier(module(path))}
    assert not up, f"{module(path)} (tier {tier(module(path))}) imports upwards: {up}"


def test_no_module_imports_itself_through_others() -> None:
    # A package may choose among its own modules when it is asked, so those imports do not count.
    graph = {module(path): inside(path, lazy=False) - {""} for path in FILES}
    graph.pop("", None)
    while leaves := {name for name, tos in graph.items() if not tos & graph.keys()}:
        graph = {name: tos for name, tos in graph.items() if name not in leaves}
    assert not graph, f"expected no circle of imports, got one among {sorted(graph)}"


@every_file
def test_what_decides_knows_no_socket_and_no_clock(path: Path) -> None:
    if tier(module(path)) <= DECIDES:
        assert not outside(path) & WORLDLY


@every_file
def test_only_named_modules_import_what_is_not_pythons_own(path: Path) -> None:
    foreign = outside(path) - sys.stdlib_module_names - {"_typeshed"}
    stray = {name for name in foreign if module(path) not in FOREIGN.get(name, ())}
    assert not stray, f"{module(path)} may not import {stray}"


@every_file
def test_a_file_fits_into_one_reading(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= FILE_LINES, f"expected at most {FILE_LINES} lines, got {lines}"


@every_file
def test_a_module_says_what_it_does(path: Path) -> None:
    assert ast.get_docstring(tree(path))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree(path)) if isinstance(node, kinds)]


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end."""
    return (node.end_lineno or 0) - node.lineno + 1


@every_file
def test_a_function_fits_on_one_screen(path: Path) -> None:
    long = {node.name: length(node) for node in functions(path) if length(node) > FUNCTION_LINES}
    assert not long, f"expected at most {FUNCTION_LINES} lines, got {long}"


def test_most_functions_are_short() -> None:
    lengths = [length(node) for path in FILES for node in functions(path)]
    assert statistics.median(lengths) <= MEDIAN_LINES


def names(path: Path) -> Iterator[str]:
    """Every name that `path` gives: modules, classes, functions, arguments, variables."""
    yield path.stem
    for node in ast.walk(tree(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@every_file
def test_names_say_what_they_name(path: Path) -> None:
    empty = {name for name in names(path) if BANNED.search(snake(name))}
    assert not empty, f"expected names that say something, got {empty}"


def calls(path: Path) -> Iterator[str]:
    """The dotted names of what is called or used as a decorator."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)


@every_file
def test_a_deadline_is_made_with_asyncio_timeout(path: Path) -> None:
    # wait_for can lose a cancellation on Python 3.11.
    assert "asyncio.wait_for" not in set(calls(path))


@every_file
def test_dataclasses_have_slots(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef):
            for decorator in map(ast.unparse, node.decorator_list):
                if decorator.startswith("dataclass"):
                    assert "slots=True" in decorator, f"{node.name} has no slots"


@pytest.mark.parametrize(
    ("name", "banned"),
    [
        ("RequestHandler", True),
        ("utils", True),
        ("process_event", True),
        ("_handle_error", True),
        ("backend_urls", True),
        ("handle", False),
        ("process", False),
        ("unprocessed_handles", False),
        ("futility", False),
    ],
)
def test_the_banned_words_are_found(name: str, banned: bool) -> None:
    assert bool(BANNED.search(snake(name))) is banned


def test_a_relative_import_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (tmp_path / "stores").mkdir()
    file = tmp_path / "stores" / "new.py"
    lines = ["from ..quota import Day", "from . import memory", "import relayd.net", "import time"]
    file.write_text("\n".join(lines))
    assert inside(file) == {"quota", "stores.memory", "net"}
    assert outside(file) == {"time"}
