"""K141: nginx holds event streams back by default, which its maintainers call right.

https://github.com/nginx/nginx/issues/1505
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.support import builders
from tests.support.builders import chat
from tests.support.client import RawClient
from tests.support.gateway import CHAT, config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.real import free_port, nginx
from tests.support.scripts import ok_json, ok_stream

DELAY = 0.3

DEFAULTS = """
    server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{relayd}; }} }}
"""


@pytest.mark.real_time
async def test_events_arrive_one_by_one_through_an_nginx_with_its_defaults(tmp_path: Path) -> None:
    script = ok_stream("1", "2", "3", delay=DELAY)
    async with ScriptedProvider(script, name="a") as a, gateway(config_for(a)) as g:
        port = free_port()
        text = DEFAULTS.format(port=port, relayd=g.address[1])
        async with nginx(tmp_path, text, ("127.0.0.1", port)), RawClient(("127.0.0.1", port)) as c:
            answer = await c.open_stream(CHAT, chat(stream=True))
            events = await answer.events()
    assert answer.body == b"".join(builders.stream("1", "2", "3"))
    # The first content brings the role with it; each of the others comes by itself.
    gaps = [later.at - earlier.at for earlier, later in pairwise(events[1:])]
    assert len(gaps) == 4
    assert min(gaps) > DELAY / 2


async def test_the_field_that_turns_buffering_off_is_on_streams_alone() -> None:
    script = ok_stream()
    async with ScriptedProvider(script, ok_json(), name="a") as a, gateway(config_for(a)) as g:
        streamed = await g.chat(stream=True)
        assert streamed.field("X-Accel-Buffering") == "no"
        assert streamed.field("Cache-Control") == "no-cache"
        whole = await g.chat()
        assert whole.field("X-Accel-Buffering") is None
        assert whole.field("Cache-Control") is None
