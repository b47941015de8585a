"""Readers of single values: each takes what TOML gave and returns what the program uses.

A reader raises `Wrong` with `expected X, got Y`; it never sees its key path, the environment or
another key. `key(reader)` is the metadata by which a dataclass field names its reader.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from ..quota import zone
from ..surfaces import Surface
from .problems import Wrong, suggest

A = TypeVar("A")
T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)
Reader = Callable[[object], T]

KIB = 1024
MIB = 1024 * KIB
HUGE = 10**18
SHOWN = 60
"""So many characters of a wrong value are repeated in a message."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names of providers and clients: they become header values, metric labels and store keys."""
ROUTE = re.compile(r"[!-~]{1,128}")
"""Names of routes are model names, so `/` and `:` are in use; they stand in a URL path."""
VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]{0,127}")
"""Upper case only: a key pasted in place of its variable's name must not be taken for one."""
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}")
"""RFC 9110 5.6.2."""
FIELD_VALUE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
TEXT = re.compile(r"[^\x00-\x1f\x7f]+")

HINTS = ("fast", "capable", "cheap")
UNNAMED_STATUSES = frozenset({401, 403})
CLASSES = {f"{hundred}xx": range(hundred * 100, hundred * 100 + 100) for hundred in (3, 4, 5)}

_OWN_FIELDS = "host content-length content-type accept accept-encoding user-agent via traceparent"
_CREDENTIALS = "authorization api-key x-api-key cookie proxy-authorization"
_HOP_BY_HOP = "connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect"
RESERVED_FIELDS = frozenset(f"{_OWN_FIELDS} x-request-id {_CREDENTIALS} {_HOP_BY_HOP}".split())
"""Fields that no configuration may set; the last group is the connection's (RFC 9110 7.6.1)."""
OWN_MEMBERS = {
    "model": "set the provider's `model`",
    "stream": "set `routing.stream`",
    "messages": "it is the client's",
}
"""Members of a request that `extra_body` may not replace, and why."""


class Price(NamedTuple):
    """USD per million LLM tokens."""

    input: float
    output: float


def key(reader: Reader[Any], *, required: bool = False) -> Mapping[str, Any]:
    """Metadata of a field that is read from the file."""
    return {"read": reader, "required": required}


def describe(value: object) -> str:
    """A TOML value in a message: short, and in TOML's own words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value[:SHOWN] + ("…" if len(value) > SHOWN else ""), ensure_ascii=False)
    if isinstance(value, float):
        return str(value)
    if isinstance(value, int):  # str() refuses very long ones
        return str(value) if abs(value) < HUGE else "a huge number"
    if isinstance(value, list):
        return "a list"
    return "a table" if isinstance(value, dict) else "a date"


def boolean(value: object) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise Wrong(f"expected true or false, got {describe(value)}")
    return value


def string(value: object) -> str:
    """Any string without control characters; may be empty."""
    if not isinstance(value, str):
        raise Wrong(f"expected a string, got {describe(value)}")
    if value and not TEXT.fullmatch(value):
        raise Wrong("expected a string without control characters")
    return value


def text(value: object) -> str:
    """A string that is not empty."""
    if not string(value):
        raise Wrong("expected a string that is not empty")
    return string(value)


def matching(pattern: re.Pattern[str], what: str, *, shown: bool = True) -> Reader[str]:
    """A string that `pattern` matches as a whole; `what` describes it.

    `shown` False keeps a wrong value out of the message: it may be a secret in the wrong place.
    """

    def read(value: object) -> str:
        if not pattern.fullmatch(string(value)):
            raise Wrong(f"expected {what}" + (f", got {describe(value)}" if shown else ""))
        return string(value)

    return read


def or_empty(reader: Reader[str]) -> Reader[str]:
    """What `reader` takes, or "" for "not given"."""
    return lambda value: "" if value == "" else reader(value)


def integer(low: int, high: int) -> Reader[int]:
    """A whole number in low … high; a bool is none."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Wrong(f"expected a whole number from {low} to {high}, got {describe(value)}")
        return value

    return read


def number(low: float, high: float, unit: str = "a number") -> Reader[float]:
    """A finite number in low … high, whole or not; a bool is none."""

    def read(value: object) -> float:
        usable = isinstance(value, int | float) and not isinstance(value, bool)
        if not usable or not low <= value <= high:  # type: ignore[operator]  # NaN fails too
            raise Wrong(f"expected {unit} from {low:g} to {high:g}, got {describe(value)}")
        return float(value)  # type: ignore[arg-type]

    return read


def seconds(low: float = 0.05, high: float = 86_400) -> Reader[float]:
    """A duration; the bounds of every clock by default."""
    return number(low, high, "seconds")


def each(reader: Callable[[A], T], items: Iterable[A]) -> list[T]:
    """What `reader` makes of every item; raises `Wrong` with what is wrong with all of them."""
    done: list[T] = []
    texts: list[str] = []
    for item in items:
        try:
            done.append(reader(item))
        except Wrong as wrong:
            texts += wrong.texts
    if texts:
        raise Wrong(*texts)
    return done


def choice(kind: type[E]) -> Reader[E]:
    """A member of `kind` by its value."""
    values = [member.value for member in kind]

    def read(value: object) -> E:
        if not isinstance(value, str) or value not in values:
            shown = " | ".join(f'"{name}"' for name in values)
            raise Wrong(f"expected {shown}, got {describe(value)}")
        return kind(value)

    return read


def listed(reader: Reader[T], *, least: int = 0) -> Reader[tuple[T, ...]]:
    """A list without repetition, or one value that stands for a list of one."""

    def read(value: object) -> tuple[T, ...]:
        items = value if isinstance(value, list) else [value]
        if len(items) < least:
            raise Wrong("expected at least one entry, got an empty list")
        done = each(reader, items)
        for number, entry in enumerate(done):
            if entry in done[:number]:
                raise Wrong(f"expected each entry once, got {describe(items[number])} twice")
        return tuple(done)

    return read


def mapping(names: Reader[str], values: Reader[T]) -> Reader[tuple[tuple[str, T], ...]]:
    """A table of the operator's own names, as (name, value) pairs in file order."""

    def read(value: object) -> tuple[tuple[str, T], ...]:
        if not isinstance(value, dict):
            raise Wrong(f"expected a table, got {describe(value)}")
        return tuple(each(lambda pair: (names(pair[0]), _of(*pair, values)), value.items()))

    return read


def one_of(choices: tuple[str, ...]) -> Reader[str]:
    """A string of `choices`."""

    def read(value: object) -> str:
        if not isinstance(value, str):
            raise Wrong(f"expected one of: {', '.join(choices)}; got {describe(value)}")
        if value not in choices:
            raise Wrong(f"unknown name {describe(value)}; {suggest(value, choices)}")
        return value

    return read


def mode(value: object) -> int:
    """Permissions of a unix socket: an octal string, so that nobody wonders which base it is."""
    if not isinstance(value, str) or not re.fullmatch("0?[0-7]{3}", value):
        raise Wrong(f'expected an octal string such as "0660", got {describe(value)}')
    return int(value, 8)


def surface(value: object) -> Surface:
    """A surface by its name."""
    return Surface(one_of(tuple(member.value for member in Surface))(value))


def surfaces(value: object) -> frozenset[Surface]:
    """A list of surface names, at least one."""
    return frozenset(listed(surface, least=1)(value))


def statuses(value: object) -> frozenset[int]:
    """Statuses that move on: integers or classes, spelled out; 401 and 403 are never in it."""
    if not isinstance(value, list):
        raise Wrong(f"expected a list, got {describe(value)}")
    return frozenset(code for codes in each(_status, value) for code in codes) - UNNAMED_STATUSES


def _status(item: object) -> tuple[int, ...] | range:
    if isinstance(item, str) and item in CLASSES:
        return CLASSES[item]
    if isinstance(item, bool) or not isinstance(item, int) or not 300 <= item <= 599:
        raise Wrong(f'expected 300 to 599, "3xx", "4xx" or "5xx", got {describe(item)}')
    if item in UNNAMED_STATUSES:
        raise Wrong(f"{item} cannot be named here: set failover.credentials = true")
    return (item,)


def timezone(value: object) -> str:
    """The name of a time zone of the system's database, or UTC."""
    name = text(value)
    try:
        zone(name)
    except ValueError as error:
        raise Wrong(
            f'expected a time zone such as "Europe/Berlin", got {describe(name)}'
        ) from error
    return name


def field_name(value: object) -> str:
    """The name of a request field that relayd neither sets itself nor keeps from all texts."""
    name = matching(TOKEN, "a header name")(value)
    if name.lower() in RESERVED_FIELDS:
        raise Wrong(
            f'the header "{name}" cannot be used here: it is relayd\'s own, a credential or of the '
            "connection"
        )
    return name


field_value = matching(FIELD_VALUE, "printable ASCII without blanks around it", shown=False)
"""What a request field holds."""


def fields_table(value: object) -> tuple[tuple[str, str], ...]:
    """Extra request fields: a table of header name to value."""
    pairs = mapping(field_name, field_value)(value)
    names = [name.lower() for name, _ in pairs]
    if len(set(names)) < len(names):
        raise Wrong("expected each header once; names differ only in upper and lower case")
    return pairs


def query(value: object) -> str:
    """A table of query parameters, as the encoded query without `?`."""
    from urllib.parse import urlencode  # rarely used

    return urlencode(mapping(text, string)(value))


def members(value: object) -> tuple[tuple[str, bytes], ...]:
    """Top-level members of a request: a table, each value as compact JSON."""
    return mapping(_member, _json)(value)


def _member(value: object) -> str:
    name = text(value)
    if name in OWN_MEMBERS:
        raise Wrong(f'"{name}" cannot be set here: {OWN_MEMBERS[name]}')
    return name


def _json(value: object) -> bytes:
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")
    except TypeError as error:
        raise Wrong(
            "expected what JSON can say, got a date or time; write it as a string"
        ) from error
    except ValueError as error:
        raise Wrong("expected what JSON can say, got inf or nan") from error


def price(value: object) -> Price:
    """{ input = …, output = … } in USD per million LLM tokens."""
    amounts = dict(mapping(one_of(Price._fields), number(0, 1e6))(value))
    if len(amounts) < len(Price._fields):
        raise Wrong("expected both `input` and `output`")
    return Price(**amounts)


def _of(name: str, item: object, reader: Reader[T]) -> T:
    try:
        return reader(item)
    except Wrong as wrong:
        # No colon behind the name: with one, `api-key` would have the look of a key to the mask.
        raise Wrong(*(f"{describe(name)} is wrong: {words}" for words in wrong.texts)) from wrong
