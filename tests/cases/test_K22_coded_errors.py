"""K22: the coded bytes of an answer were passed on without the field that names their coding.

https://github.com/gadievron/raptor/pull/547
"""

from __future__ import annotations

import gzip

import pytest

from tests.support.builders import encode, error_object
from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import status

BODY = gzip.compress(encode(error_object("a secret of the provider")))


@pytest.mark.parametrize(("code", "shown"), [(200, 502), (400, 400), (404, 404), (500, 502)])
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
async def test_neither_the_coded_bytes_nor_the_field_reach_the_client(
    code: int, shown: int, stream: bool
) -> None:
    async with (
        ScriptedProvider(status(code, BODY, [("Content-Encoding", "gzip")])) as a,
        gateway(config_for(a)) as g,
    ):
        answer = await g.chat("hi", stream=stream)
    assert answer.status == shown
    assert answer.field("Content-Encoding") is None
    assert answer.field("Content-Type") == "application/json"
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert "secret" not in answer.text
