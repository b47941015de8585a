"""The facts of a request body and the splicing of values into it."""

from __future__ import annotations

import json

import pytest

from relayd.jsonbody import MAX_DEPTH, MAX_MEMBERS, BodyFault, read, splice, with_member
from relayd.surfaces import Surface

CHAT = Surface.CHAT
ASK = b'"messages":[{"role":"user","content":"hi"}]'


def fault(body: bytes, surface: Surface = CHAT) -> BodyFault:
    with pytest.raises(BodyFault) as caught:
        read(body, surface)
    return caught.value


def chat(*messages: object) -> bytes:
    return json.dumps({"model": "m", "messages": messages}).encode()


# ---- what is refused


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b"[]",
        b'"hi"',
        b"null",
        b"5",
        b'{"messages":[1],}',
        b"{,}",
        b'{"messages" [1]}',
        b'{"messages":}',
        b'{"messages":[1]',
        b'{"messages":[1] "model":"m"}',
        b'{"messages":[1]}}',
        b'{"messages":[1]} x',
        b"{messages:[1]}",
        b"{'messages':[1]}",
        b'{"a":NaN,"messages":[1]}',
        b'{"a":-Infinity,"messages":[1]}',
        b'{"a":[Infinity],"messages":[1]}',
        b'{"a":01,"messages":[1]}',
        b'{"a":+1,"messages":[1]}',
        b'{"a":1.,"messages":[1]}',
        b'{"a":"\x01","messages":[1]}',
        b'{"\\x":1,"messages":[1]}',
        b'{"a\n":1,"messages":[1]}',
        b'{"a":"\\q","messages":[1]}',
        b'\xef\xbb\xbf{"messages":[1]}',
        '{"messages":[1]}'.encode("utf-16"),
        b'{"a":"\xff","messages":[1]}',
        b'{"a":"\xed\xa0\x80","messages":[1]}',
        b'{"a":\xc2\xa01,"messages":[1]}',
        b'{"messages":[1}',
    ],
)
def test_a_body_that_is_no_json_object_is_a_fault(body: bytes) -> None:
    assert fault(body).message.startswith("the body ")


def test_a_fault_in_the_encoding_names_the_byte() -> None:
    assert fault(b'{"a":"\xff"}').message == "the body is not UTF-8: byte 6 is wrong"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model":"cheap","model":"forbidden",%b}', "model"),
        (b'{"mod\\u0065l":"forbidden","model":"cheap",%b}', "model"),
        (b'{"stream":true,"stream":false,%b}', "stream"),
        (b'{"stream":null,"stream":true,%b}', "stream"),
        (b'{"messages":[1],%b}', "messages"),
    ],
)
def test_a_member_that_readers_could_disagree_on_may_stand_only_once(
    body: bytes, param: str
) -> None:
    problem = fault(body % ASK)
    assert (problem.param, problem.message) == (param, f"`{param}` is given more than once")


@pytest.mark.parametrize("model", [b"5", b'""', b"null", b"true", b"[]", b'{"a":"b"}'])
def test_a_model_must_be_a_string_with_something_in_it(model: bytes) -> None:
    assert fault(b'{"model":%b,%b}' % (model, ASK)).param == "model"


@pytest.mark.parametrize("model", [b'"\\ud800"', b'"a\\udc00b"', '"ä\\ud800"'.encode()])
def test_half_a_surrogate_pair_in_the_model_is_a_fault(model: bytes) -> None:
    assert "surrogate" in fault(b'{"model":%b,%b}' % (model, ASK)).message


@pytest.mark.parametrize("stream", [b"1", b"0", b'"true"', b"[]"])
def test_stream_must_be_a_boolean(stream: bytes) -> None:
    assert fault(b'{"stream":%b,%b}' % (stream, ASK)).param == "stream"


@pytest.mark.parametrize("surface", [Surface.CHAT, Surface.MESSAGES])
@pytest.mark.parametrize(
    "body", [b"{}", b'{"messages":[]}', b'{"messages":"hi"}', b'{"messages":null}']
)
def test_chat_and_messages_need_messages(surface: Surface, body: bytes) -> None:
    assert fault(body, surface).param == "messages"


@pytest.mark.parametrize("surface", [Surface.COMPLETIONS, Surface.EMBEDDINGS, Surface.RESPONSES])
def test_other_surfaces_need_no_messages(surface: Surface) -> None:
    assert read(b"{}", surface).model is None


@pytest.mark.parametrize("key", ["Model", "STREAM", "me\u017f\u017fages", "\\u004dodel"])
def test_what_some_would_read_as_another_member_is_a_fault(key: str) -> None:
    """Go's `encoding/json` compares names without their case, and takes the last."""
    found = fault(f'{{"model":"m","messages":[1],"{key}":"x"}}'.encode())
    assert "in other letters" in found.message
    assert found.param in ("model", "stream", "messages")


def test_other_members_are_spelled_as_one_likes() -> None:
    assert read(b'{"Temperature":1,"MODELS":[],%b}' % ASK, CHAT).members["Temperature"]


def members(count: int) -> bytes:
    return b"{%b%b}" % (ASK, b"".join(b',"m%d":1' % number for number in range(count - 1)))


def test_members_beyond_the_limit_are_a_fault() -> None:
    assert fault(members(MAX_MEMBERS + 1)).message == "more than 1024 members"
    again = b"{%b%b}" % (ASK, b',"m":1' * MAX_MEMBERS)
    assert fault(again).message == "more than 1024 members"


def test_members_up_to_the_limit_pass() -> None:
    assert len(read(members(MAX_MEMBERS), CHAT).members) == MAX_MEMBERS


def test_a_value_within_may_have_more() -> None:
    many = b"{%b}" % b",".join(b'"m%d":1' % number for number in range(MAX_MEMBERS + 1))
    assert with_member(many, "x", b"2") == b'{"x":2,' + many[1:]


# ---- depth


def nested(levels: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    """A body of that depth, its own braces included."""
    return b'{%b,"x":%b1%b}' % (ASK, opening * (levels - 1), closing * (levels - 1))


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 900, 5000, 20_000])
def test_nesting_beyond_the_limit_is_a_fault(levels: int) -> None:
    assert "deeper than 100" in fault(nested(levels)).message
    assert "deeper than 100" in fault(nested(levels, b'{"a":', b"}")).message


def test_nesting_up_to_the_limit_passes() -> None:
    assert read(nested(MAX_DEPTH), CHAT).model is None
    assert read(nested(MAX_DEPTH, b'{"a":', b"}"), CHAT).model is None


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert read(b'{%b,"x":[%b0]}' % (ASK, b"[],{}," * 5000), CHAT).stream is False


def test_brackets_inside_strings_do_not_count() -> None:
    assert read(b'{%b,"x":"%b\\"%b\\\\"}' % (ASK, b"[" * 500, b"{" * 500), CHAT).stream is False


def test_a_string_without_an_end_is_no_more_than_a_fault() -> None:
    # Quadratic time would show here: each of these quotes could begin a string.
    body = b'{"x":' + b"[" * 200 + b'"' + b'\\"' * 200_000 + b"\\"
    assert fault(body).message.startswith("the body ")


# ---- facts


def test_the_facts_of_an_ordinary_body() -> None:
    body = b' { "model" : "m" ,\n"stream":true, "messages":[{"model":"n"}], "x" : {"model":1} } '
    facts = read(body, CHAT)
    assert (facts.model, facts.stream, facts.continuation, facts.empty) == ("m", True, False, False)
    assert facts.value(body, "model") == b'"m"'
    assert facts.value(body, "x") == b'{"model":1}'
    assert facts.value(body, "y") is None
    assert body[: facts.insert_at] == b" {"


@pytest.mark.parametrize("stream", [b"null", b"false"])
def test_null_and_false_both_mean_no_stream(stream: bytes) -> None:
    assert read(b'{"stream":%b,%b}' % (stream, ASK), CHAT).stream is False


@pytest.mark.parametrize(
    ("quoted", "model"),
    [
        ('"gpt-4o"', "gpt-4o"),
        ('"\\u0067pt"', "gpt"),
        ('"modèle"', "modèle"),
        ('"mod\\u00e8le/ü"', "modèle/ü"),
        ('"\\ud83d\\ude00"', "😀"),
        ('"😀"', "😀"),
    ],
)
def test_the_model_is_read_exactly(quoted: str, model: str) -> None:
    assert read(b'{"model":%b,%b}' % (quoted.encode(), ASK), CHAT).model == model


def test_keys_are_read_exactly_and_spans_count_bytes() -> None:
    body = '{"ключ":"значение","k\\u00e9y":"日本","z":1,"messages":[1]}'.encode()
    facts = read(body, CHAT)
    assert facts.value(body, "ключ") == '"значение"'.encode()
    assert facts.value(body, "kéy") == '"日本"'.encode()
    assert facts.value(body, "z") == b"1"


def test_numbers_of_any_size_pass_unread() -> None:
    long = b"9" * 5000
    body = b'{"a":%b,"b":1e400,"c":-0,"d":%b.5,%b}' % (long, long, ASK)
    assert read(body, CHAT).value(body, "a") == long


def test_other_members_may_be_repeated() -> None:
    body = b'{"n":1,"n":2,%b}' % ASK
    facts = read(body, CHAT)
    assert len(facts.members["n"]) == 2
    assert facts.value(body, "n") == b"2"


# ---- continuations

CALL = {"role": "assistant", "tool_calls": [{"id": "c1"}, {"id": "c2"}]}
USER = {"role": "user", "content": "hi"}


def tool(call_id: object) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": call_id, "content": "5"}


@pytest.mark.parametrize(
    "messages",
    [
        [USER, CALL, tool("c1")],
        [CALL, tool("c1"), tool("c2")],
        [{"role": "assistant", "function_call": {}}, {"role": "function", "name": "f"}],
    ],
)
def test_a_tool_result_continues_a_chat_turn(messages: list[object]) -> None:
    assert read(chat(*messages), CHAT).continuation is True


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [CALL, tool("c1"), USER],
        [CALL, tool("c3")],
        [CALL, tool(None)],
        [CALL, USER, tool("c1")],
        [tool("c1")],
        [tool("c1"), tool("c1")],
        [5, tool("c1")],
        [{"role": "assistant"}, tool("c1")],
        [{"role": "assistant", "tool_calls": "c1"}, tool("c1")],
        [{"role": "assistant", "tool_calls": ["c1", 5, None, {}]}, tool("c1")],
        [{"role": "assistant", "tool_calls": [{"id": None}]}, tool(None)],
        # numbers are kept by their length only and must not be taken for one another
        [{"role": "assistant", "tool_calls": [{"id": 12}]}, tool(34)],
        [5],
        [None],
        ["tool"],
        [[tool("c1")]],
        [{"role": ["tool"]}],
    ],
)
def test_anything_else_begins_a_chat_turn(messages: list[object]) -> None:
    assert read(chat(*messages), CHAT).continuation is False


def message(role: object, content: object) -> bytes:
    return chat(USER, {"role": role, "content": content})


def test_only_tool_results_continue_a_messages_turn() -> None:
    result = {"type": "tool_result", "tool_use_id": "t"}
    text = {"type": "text", "text": "hi"}
    body = message("user", [result, result])
    assert read(body, Surface.MESSAGES).continuation is True
    for role, content in [
        ("user", [result, text]),
        ("user", []),
        ("user", "tool_result"),
        ("user", ["tool_result"]),
        ("assistant", [result]),
    ]:
        assert read(message(role, content), Surface.MESSAGES).continuation is False


def test_function_output_at_the_end_continues_a_responses_turn() -> None:
    output = {"type": "function_call_output", "call_id": "c"}
    ask = {"role": "user", "content": "hi"}
    for given, continues in [
        ([ask, output], True),
        ([output, ask], False),
        ([5], False),
        ([], False),
        ("hi", False),
        (None, False),
    ]:
        body = json.dumps({"input": given}).encode()
        assert read(body, Surface.RESPONSES).continuation is continues


@pytest.mark.parametrize("last", [tool("c1"), {"type": "function_call_output", "call_id": "c1"}])
def test_a_surface_without_tools_has_no_continuations(last: dict[str, object]) -> None:
    assert read(chat(CALL, last), Surface.COMPLETIONS).continuation is False


# ---- splicing


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (b"{}", b'{"model":"x"}'),
        (b" { } ", b' {"model":"x" } '),
        (b'{"a":1}', b'{"model":"x","a":1}'),
        (b'{ "a":1}', b'{"model":"x", "a":1}'),
        (b'{"a":1,"model":"old"}', b'{"a":1,"model":"x"}'),
        (b'{"mod\\u0065l" :  "old" }', b'{"mod\\u0065l" :  "x" }'),
        ('{"ä":"ö","model":"ü","é":1}'.encode(), '{"ä":"ö","model":"x","é":1}'.encode()),
    ],
)
def test_only_the_value_of_the_model_changes(body: bytes, result: bytes) -> None:
    facts = read(body, Surface.RESPONSES)
    assert splice(body, facts, {"model": b'"x"'}) == result


def test_numbers_escapes_and_white_space_stay_as_they_were() -> None:
    rest = (
        b' ,\t"seed":9007199254740993, "a":-0, "b":1E5, "c":0.10000000000000000555,\n"d":1e400,'
        b' "e":12345678901234567890.0, "f":"\\u00e9\\/\\u000b\\ud800\\u2028", "g":1000000000000000,'
        b'"messages":[{"x":1,"x":2}] }'
    )
    body = b'{ "model":"old"' + rest
    assert splice(body, read(body, CHAT), {"model": b'"new"'}) == b'{ "model":"new"' + rest


def test_every_occurrence_of_a_repeated_member_is_replaced() -> None:
    body = b'{"n":1,"a":0,"n":22}'
    assert splice(body, read(body, Surface.RESPONSES), {"n": b"7"}) == b'{"n":7,"a":0,"n":7}'


def test_several_members_are_replaced_and_added_at_once() -> None:
    body = b'{"z":1,"model":"m"}'
    facts = read(body, Surface.RESPONSES)
    replace = {"model": b'"x"', "new": b"2", 'q"': b"[]", "z": b"null"}
    assert splice(body, facts, replace) == b'{"new":2,"q\\"":[],"z":null,"model":"x"}'


def test_replacing_nothing_changes_nothing() -> None:
    body = b'{"z":1}'
    assert splice(body, read(body, Surface.RESPONSES), {}) == body


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (None, b'{"data_collection":"deny"}'),
        (b"{}", b'{"data_collection":"deny"}'),
        (b"null", b'{"data_collection":"deny"}'),
        (b'"fast"', b'{"data_collection":"deny"}'),
        (b'{"data_collection":"allow"}', b'{"data_collection":"deny"}'),
        (b'{ "sort":1E5 }', b'{"data_collection":"deny", "sort":1E5 }'),
        ('{"é":"ü","data_collection":0}'.encode(), '{"é":"ü","data_collection":"deny"}'.encode()),
    ],
)
def test_one_member_of_an_object_can_be_set(value: bytes | None, result: bytes) -> None:
    assert with_member(value, "data_collection", b'"deny"') == result
