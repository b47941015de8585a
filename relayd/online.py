"""`relayd check --online`: asks every provider for its model list, with each of its keys.

One line each: can it be reached, is its TLS good, is the credential good. Does not know routes,
breakers or the relay.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from dataclasses import dataclass

from . import __version__
from .adapters import COMMON, Adapter, adapter_for
from .config import Config, Provider, Secret
from .dial import EYEBALLS_DELAY, tls_context
from .fetch import Fetched, NoAnswer, fetch
from .net import reason
from .standard import write
from .surfaces import Surface

ANSWER_LIMIT = 15.0
"""Seconds for the model list, from the connection on: some providers assemble it slowly."""

MISMATCHES = frozenset({62, 64})
"""Of OpenSSL's verification results: the certificate names another host, another address."""

MAX_BODY = 8 * 1024 * 1024
"""Bytes of a model list; OpenRouter's has about one million."""


WRONG_URL = "check base_url"
"""The remedy where something answers that is no API."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, in words."""

    good: bool
    words: str


def check_online(config: Config) -> int:
    """Check all providers at once; prints one line each, in their order. 0 if all are good."""
    findings = asyncio.run(_check_all(config))
    for provider, finding in zip(config.providers, findings, strict=True):
        write(f"{provider.name}: {finding.words}\n")
    return 0 if all(finding.good for finding in findings) else 1


async def _check_all(config: Config) -> list[Finding]:
    return await asyncio.gather(*(_check(provider) for provider in config.providers))


async def _check(provider: Provider) -> Finding:
    """One line for all keys of a provider: the first bad one decides."""
    keys: tuple[Secret | None, ...] = provider.keys or (None,)
    findings = [await _check_key(provider, key) for key in keys]
    bad = [finding for finding in findings if not finding.good]
    return bad[0] if bad else findings[0]


async def _check_key(provider: Provider, key: Secret | None) -> Finding:
    adapter = adapter_for(provider) or COMMON
    try:
        streams = await _connect(provider)
        async with asyncio.timeout(ANSWER_LIMIT):
            answer = await fetch(*streams, _request(provider, adapter, key), MAX_BODY)
    except _Unreachable as exc:
        return Finding(False, str(exc))
    except TimeoutError:
        words = f"connected, but no answer within {ANSWER_LIMIT:g} s; {WRONG_URL}"
        return Finding(False, words)
    except (OSError, NoAnswer) as exc:
        words = reason(exc) if isinstance(exc, OSError) else str(exc)
        return Finding(False, f"connected, but no answer: {words}; {_url_remedy(provider)}")
    return _judged(provider, key, answer)


class _Unreachable(Exception):
    """No connection; the text says why and what to check."""


async def _connect(provider: Provider) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    secure = provider.scheme == "https"
    try:
        async with asyncio.timeout(provider.connect):
            return await asyncio.open_connection(
                provider.host,
                provider.port,
                ssl=tls_context(provider.ca_file) if secure else None,
                server_hostname=provider.tls_server_name if secure else None,
                happy_eyeballs_delay=EYEBALLS_DELAY,
            )
    except TimeoutError:
        words = f"no connection within {provider.connect:g} s: check base_url and the network"
    except ssl.SSLCertVerificationError as exc:
        misnamed = exc.verify_code in MISMATCHES
        remedy = "check base_url and tls_server_name" if misnamed else "check ca_file"
        words = f"reachable, but {reason(exc)}; {remedy}"
    except ssl.SSLError as exc:
        words = f"reachable, but {reason(exc)}; check base_url and ca_file"
    except OSError as exc:
        words = f"not reachable: {reason(exc)}; check base_url"
    raise _Unreachable(words)


def _request(provider: Provider, adapter: Adapter, key: Secret | None) -> bytes:
    lines = [
        f"GET {adapter.models(provider)} HTTP/1.1",
        f"Host: {provider.authority}",
        "Accept: application/json",
        "Accept-Encoding: identity",
        f"User-Agent: relayd/{__version__}",
        "Connection: close",
        *(f"{name}: {value}" for name, value in provider.headers),
    ]
    head = "\r\n".join(lines).encode("ascii") + b"\r\n" + adapter.fields(provider)
    if key is not None:
        only_messages = provider.surfaces == {Surface.MESSAGES}
        surface = Surface.MESSAGES if only_messages else Surface.CHAT
        head += b"%b: %b\r\n" % provider.credential(surface, key)
    return head + b"\r\n"


def _judged(provider: Provider, key: Secret | None, answer: Fetched) -> Finding:
    reached = "reachable, TLS good" if provider.scheme == "https" else "reachable without TLS"
    status = answer.status
    if status in (401, 403):
        remedy = f"check {key.label}" if key else "it wants one: see key_env"
        return Finding(False, f"{reached}, credential refused (status {status}): {remedy}")
    if status in (404, 405, 501):
        return Finding(True, f"{reached}; no model list here, so the credential was not tried")
    if not 200 <= status < 300:
        words = f"{reached}, but its model list answers with status {status}"
        return Finding(False, f"{words}; {_status_remedy(provider, status)}")
    credential = "credential good" if key else "no credential sent"
    return Finding(True, f"{reached}, {credential}{_count(answer.body)}")


def _url_remedy(provider: Provider) -> str:
    """What to do where no HTTP is spoken, or another one: most often TLS to a plain request."""
    return WRONG_URL if provider.scheme == "https" else f"{WRONG_URL}, such as https for http"


def _status_remedy(provider: Provider, status: int) -> str:
    if status == 402:
        return "add credit to the account"
    if status == 429 or status >= 500:
        return "the provider is at its limit or in trouble: ask again later"
    if status < 400:
        return f"{WRONG_URL}: redirects are never followed"
    return _url_remedy(provider)


def _count(body: bytes) -> str:
    try:
        listed = json.loads(body)["data"]
    except (ValueError, RecursionError, LookupError, TypeError):
        return ""
    if not isinstance(listed, list):
        return ""
    return f", {len(listed)} model{'' if len(listed) == 1 else 's'}"
