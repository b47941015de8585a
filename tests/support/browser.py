"""A real headless Chromium, driven by chromedriver over its WebDriver protocol.

    async with browser(tmp_path) as page:
        await page.open("http://127.0.0.1:9090/status")
        assert "groq" in await page.text("#providers")

Knows the protocol as far as a page is opened and looked at.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from .client import RawClient
from .real import POLL, free_port, need, program

SEEN_CAP = 10.0
"""Real time (s) that something may take to appear on a page."""

FLAGS = [
    "--headless=new",
    "--no-sandbox",  # root may not have one
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--window-size=1280,1000",
]


class Page:
    """The one page of a browser."""

    def __init__(self, client: RawClient, host: str) -> None:
        self._client = client
        self._fields = {"Host": host, "Content-Type": "application/json"}
        self._session = ""

    async def begin(self, binary: str, folder: Path) -> None:
        options = {"binary": binary, "args": [*FLAGS, f"--user-data-dir={folder}/chromium"]}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        made = await self._post("/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    async def end(self) -> None:
        await self._client.request("DELETE", self._session, fields=self._fields)
        await self._client.response()

    async def open(self, url: str) -> None:
        """Returns when the page has loaded."""
        await self._post(f"{self._session}/url", {"url": url})

    async def run(self, script: str) -> Any:
        """The value that a script in the page returns."""
        return await self._post(f"{self._session}/execute/sync", {"script": script, "args": []})

    async def text(self, selector: str) -> str:
        """What the first such element shows."""
        return str(await self.run(f"return document.querySelector({selector!r}).innerText"))

    async def shows(self, selector: str, words: str) -> str:
        """Wait until the element shows these words; all that it shows."""
        until = time.monotonic() + SEEN_CAP
        while words not in (shown := await self.text(selector)):
            assert time.monotonic() < until, f"expected {words!r} in {selector}, got {shown!r}"
            await asyncio.sleep(POLL)
        return shown

    async def devtools(self, command: str, **parameters: Any) -> Any:
        """The result of a command of the DevTools protocol."""
        asked = {"cmd": command, "params": parameters}
        return await self._post(f"{self._session}/goog/cdp/execute", asked)

    async def html(self) -> str:
        """The whole document as the browser understood it; needs no script."""
        root = (await self.devtools("DOM.getDocument"))["root"]["nodeId"]
        found = await self.devtools("DOM.getOuterHTML", nodeId=root)
        return str(found["outerHTML"])

    async def console(self) -> list[str]:
        """Complaints since the last look: errors of scripts, refusals by a policy."""
        entries = await self._post(f"{self._session}/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries]

    async def screenshot(self) -> bytes:
        """As PNG."""
        await self._client.request("GET", f"{self._session}/screenshot", fields=self._fields)
        answer = await self._client.response()
        return base64.b64decode(answer.json()["value"])

    async def _post(self, path: str, value: Any) -> Any:
        answer = await self._client.post_json(path, value, self._fields)
        assert answer.status == 200, answer.text
        return answer.json()["value"]


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Page]:
    """A Chromium with a profile of its own below `folder`."""
    binary = need("chromium")
    driver = need("chromedriver")
    port = free_port()
    async with program(driver, f"--port={port}") as running:
        await running.answers(("127.0.0.1", port))
        async with RawClient(("127.0.0.1", port)) as client:
            page = Page(client, f"127.0.0.1:{port}")
            await page.begin(binary, folder)
            try:
                yield page
            finally:
                await page.end()
