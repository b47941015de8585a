"""Any cutting of a body gives the same payload; a broken one nothing past its first fault."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relayd.framing import BadChunk, Body, Chunked, Length

PAYLOADS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
AFTER = st.binary(max_size=20)
EXTENSIONS = st.sampled_from([b"", b"", b" ", b"\t ", b";a", b' ; a="b"'])
TRAILERS = st.lists(st.sampled_from([b"A: 1", b"B:", b"x-y:\t2"]), max_size=3)


@st.composite
def coded(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A valid chunked body and its payload."""
    payloads = draw(PAYLOADS)
    parts = []
    for payload in payloads:
        size = draw(st.sampled_from([b"%x", b"%X", b"%04x"])) % len(payload)
        parts += [size, draw(EXTENSIONS), b"\r\n", payload, b"\r\n"]
    parts += [draw(st.sampled_from([b"0", b"000"])), draw(EXTENSIONS), b"\r\n"]
    parts += [line + b"\r\n" for line in draw(TRAILERS)]
    return b"".join([*parts, b"\r\n"]), b"".join(payloads)


def cuts(draw: st.DrawFn, data: bytes) -> list[bytes]:
    places = sorted(draw(st.sets(st.integers(0, len(data)), max_size=12)))
    ends = [*places, len(data)]
    return [data[a:b] for a, b in zip([0, *places], ends, strict=True)]


def read(body: Body, pieces: list[bytes]) -> tuple[bytes, bool]:
    """What a body yields, and whether it stayed unbroken."""
    payload = b""
    for piece in pieces:
        try:
            payload += body.feed(piece)
        except BadChunk:
            return payload, False
    return payload, True


@given(coded(), AFTER, st.data())
def test_any_cutting_of_chunks_gives_the_same_payload(
    body: tuple[bytes, bytes], after: bytes, data: st.DataObject
) -> None:
    text, payload = body
    reader = Chunked()
    pieces = data.draw(st.composite(cuts)(text + after))
    assert read(reader, pieces) == (payload, True)
    assert (reader.done, reader.close(), reader.rest) == (True, True, after)


@given(coded(), st.data())
def test_a_part_of_a_body_is_never_taken_for_the_whole(
    body: tuple[bytes, bytes], data: st.DataObject
) -> None:
    text, payload = body
    part = text[: data.draw(st.integers(0, len(text) - 1))]
    reader = Chunked()
    found, sound = read(reader, data.draw(st.composite(cuts)(part)))
    assert sound
    assert not reader.close()
    assert payload.startswith(found)


@given(st.binary(max_size=60), AFTER, st.data())
def test_any_cutting_by_length_gives_the_same_payload(
    payload: bytes, after: bytes, data: st.DataObject
) -> None:
    reader = Length(len(payload))
    pieces = data.draw(st.composite(cuts)(payload + after))
    assert read(reader, pieces) == (payload, True)
    assert (reader.done, reader.rest) == (True, after)


# ---- faults


@st.composite
def faulty(draw: st.DrawFn) -> bytes:
    """A chunked body with one to three bytes changed, put in or taken out."""
    text = bytearray(draw(coded())[0])
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(text) - 1)))
        byte = draw(st.sampled_from(b"\r\n0159aFx;: \t\x00\xff"))
        kind = draw(st.sampled_from(["change", "insert", "delete"]))
        if kind == "insert":
            text.insert(at, byte)
        elif kind == "delete":
            del text[at : at + 1]
        else:
            text[at : at + 1] = bytes([byte])
    return bytes(text)


def simple(text: bytes) -> tuple[bytes, bool]:
    """A slow and simple reader: the payload up to the first fault, and whether there was none."""
    payload, at = b"", 0
    while True:
        end = text.find(b"\r\n", at)
        if end < 0:
            return payload, _may_go_on(text[at:])
        size = text[at:end].split(b";")[0].rstrip(b" \t")
        if {*text[at:end]} & {*b"\r\n"} or not _is_hex(size):
            return payload, False
        at = end + 2
        if not int(size, 16):
            return payload, _trailers(text[at:])
        payload += text[at : at + int(size, 16)]
        at += int(size, 16)
        tail = text[at : at + 2]
        if not b"\r\n".startswith(tail):
            return payload, False
        if len(tail) < 2:
            return payload, True
        at += 2


def _is_hex(size: bytes) -> bool:
    return 0 < len(size) <= 16 and all(chr(byte) in "0123456789abcdefABCDEF" for byte in size)


def _may_go_on(line: bytes) -> bool:
    return b"\n" not in line


def _trailers(text: bytes) -> bool:
    while text:
        line, end, text = text.partition(b"\r\n")
        if not end:
            return _may_go_on(line)
        if not line:
            return True
        if {*line} & {*b"\r\n"} or b":" not in line or line[:1] in (b" ", b"\t", b":"):
            return False
    return True


@given(st.one_of(faulty(), st.binary(max_size=60)), st.data())
def test_nothing_is_yielded_past_the_first_fault(text: bytes, data: st.DataObject) -> None:
    expected, sound = simple(text)
    payload, unbroken = read(Chunked(), data.draw(st.composite(cuts)(text)))
    assert unbroken is sound
    assert expected.startswith(payload)
    assert payload == expected or not sound
