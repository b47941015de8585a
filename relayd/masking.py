"""Takes keys out of text that is about to be logged or shown.

Two nets: the values that the configuration knows, and whatever has the look of a key, since a
provider may echo a key that was never ours. Mask first and cut afterwards: half a key at the end of
a cut text has no look any more. Does not know the configuration, the log or HTTP.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable
from functools import lru_cache

MASK = "[masked]"

SHORT = 8
"""A configured secret with fewer characters is masked only as a word of its own: a test key `a`
must not turn every `a` of a message into a mask."""

COMMON = 512
REMEMBERED = 128
"""Characters and number of texts that are remembered, as they came, with what became of them: a
provider in trouble says the same thing again and again."""

_KEY_WORDS = "key|token|secret|password|signature|sig"
"""How the name of a parameter ends whose value is nobody's business."""

_KEY_NAME = re.compile(rf"(?:{_KEY_WORDS})\Z", re.IGNORECASE)

_LOOKS = tuple(
    (re.compile(pattern, re.IGNORECASE if fold else 0), substitute)
    for pattern, substitute, fold in (
        # scheme://user:password@host. Anchored at `://`, so a long word costs no second look.
        (r"://[^/\s@\"'<>]{1,512}@", f"://{MASK}@", False),
        # Authorization: Basic KEY; the word alone is too common.
        (r"(authorization\W{1,8}basic)\s+[^\s\"',;<>]+", rf"\1 {MASK}", True),
        # Authorization: Bearer KEY, and the same without the field's name; not "bearer token".
        (
            r"\b(bearer)\s+(?!(?:tokens?|auth|authentication|authorization)(?:\s|$))"
            r"[^\s\"',;<>]+",
            rf"\1 {MASK}",
            True,
        ),
        # x-api-key: KEY, api-key: KEY; also as a JSON member. Not what is said of such a name.
        (r"(api[-_ ]?key\"?\s*:\s*\"?)(?!unknown key;)[^\s\"',;<>]+", rf"\1{MASK}", True),
        # ?key=KEY, &api_key=KEY, password=KEY. The look-behind starts a match only at the
        # start of a word, so a long word is scanned once.
        (
            rf"(?<![\w-])([\w-]{{0,64}}(?:{_KEY_WORDS})=)[^\s&\"'#;<>]+",
            rf"\1{MASK}",
            True,
        ),
        # The prefixes that providers give their keys; `*` since they echo them half starred.
        (r"(?<![A-Za-z0-9])(?:c?sk|pk|rk|xai|hf|fw|r8|pplx)[-_][\w.*-]{6,}", MASK, False),
        (r"(?<![A-Za-z0-9])(?:gsk|tgp|nvapi|ghp|glpat|github_pat)[-_][\w.*-]{6,}", MASK, False),
        (r"(?<![A-Za-z0-9])(?:AIza|AKIA)[\w.*-]{8,}", MASK, False),
        # A JSON web token.
        (r"(?<![A-Za-z0-9])eyJ[\w-]{8,}(?:\.[\w-]+)*", MASK, False),
    )
)

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
"""Octets that percent-encoding leaves alone (RFC 3986 2.3)."""


def names_key(name: str) -> bool:
    """Whether a parameter or field of this name holds a key: `key`, `X-Auth-Token`."""
    return _KEY_NAME.search(name) is not None


def mask(text: str) -> str:
    """`text` without anything that has the look of a key, or of user info in a URL."""
    for pattern, substitute in _LOOKS:
        text = pattern.sub(substitute, text)
    return text


class Masker:
    """`masker(text)`: `text` without the given secrets and without what `mask` finds.

    Finds a secret as it is, as a JSON string spells it, percent-encoded in part or in full, in
    base64 (alone or within something longer), and in other letter cases.
    """

    __slots__ = ("_known", "_remembered")

    def __init__(self, secrets: Iterable[str]) -> None:
        spellings = {spelling for secret in secrets for spelling in _spellings(secret)}
        # The longest first: a secret that holds another one must not leave its rest behind.
        ordered = sorted(spellings, key=lambda spelling: (-len(spelling), spelling))
        self._known = re.compile("|".join(map(_exact, ordered))) if ordered else None
        self._remembered = lru_cache(REMEMBERED)(self._masked)

    def __call__(self, text: str) -> str:
        return self._masked(text) if len(text) > COMMON else self._remembered(text)

    def _masked(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(MASK, text)
        return mask(text)


def _spellings(secret: str) -> set[str]:
    octets = secret.encode("utf-8", "surrogatepass")
    encoded = "".join(chr(octet) if octet in _PLAIN else f"%{octet:02X}" for octet in octets)
    throughout = "".join(f"%{octet:02X}" for octet in octets)
    spelled = {secret, json.dumps(secret)[1:-1], encoded, throughout} - {""}
    return spelled if len(secret) < SHORT else spelled | _base64(octets)


def _base64(octets: bytes) -> set[str]:
    """What the octets alone decide of their base64 form, wherever in something longer they stand.

    `Basic` credentials are `base64(user:key)`.
    """
    found = set()
    for before, shared in ((0, 0), (1, 2), (2, 3)):  # octets before them, characters not theirs
        text = b64encode(bytes(before) + octets).decode("ascii")
        core = text[shared : (before + len(octets)) * 8 // 6]
        found |= {core, core.replace("+", "-").replace("/", "_")}
    return found


def _exact(secret: str) -> str:
    pattern = re.escape(secret)
    if len(secret) >= SHORT:
        return f"(?i:{pattern})"
    return rf"(?<![A-Za-z0-9]){pattern}(?![A-Za-z0-9])"
