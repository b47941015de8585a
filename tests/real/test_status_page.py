"""The status page in a real Chromium: live, quiet, readable without JavaScript, light and dark."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.browser import Page, browser
from tests.support.gateway import Gateway, config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.real import free_port
from tests.support.scripts import ok, status

# .ci/run installs the browser where a test says need("chromium"): `browser` does.

EVIL = "<img src=x onerror=alert(1)>"

NOTHING_ELSE = """
return performance.getEntriesByType("resource").map((entry) => new URL(entry.name).pathname)
"""
OVERFLOW = "return document.documentElement.scrollWidth - window.innerWidth"
BACKGROUND = "return getComputedStyle(document.body).backgroundColor"


@dataclass(slots=True)
class Watched:
    """A gateway whose first provider fails, and its status page."""

    gateway: Gateway
    url: str


@asynccontextmanager
async def watched(port: int) -> AsyncIterator[Watched]:
    config = {"admin": {"listen": f"127.0.0.1:{port}"}, "quota": {"daily_turns": 7}}
    async with (
        ScriptedProvider(status(503), name="alpha") as a,
        ScriptedProvider(ok(), name="beta") as b,
        gateway(config_for(a, b, **config)) as g,
    ):
        yield Watched(g, f"http://127.0.0.1:{port}/status")


async def opened(page: Page, url: str) -> None:
    await page.open(url)
    await page.shows("#link", "live")


async def test_an_open_page_shows_what_happens_without_a_reload(tmp_path: Path) -> None:
    async with watched(free_port()) as w, browser(tmp_path) as page:
        await opened(page, w.url)
        assert await page.text("#failed-over") == "No exchange needed a second provider."
        await page.run("window.stillTheSame = true")
        for _ in range(5):
            await w.gateway.chat(fields={"X-User-Id": "ann"})
        trail = await page.shows("#failed-over", "server error 503")
        assert "alpha" in trail
        assert "beta" in trail
        assert "open, retry in" in await page.shows("#providers", "open")
        assert "5 of 7" in await page.shows("#users", "ann")
        assert await page.run("return document.querySelectorAll('.spark rect').length") == 1
        assert await page.run("return window.stillTheSame")


async def test_the_browser_complains_of_nothing_and_fetches_nothing_else(tmp_path: Path) -> None:
    async with watched(free_port()) as w, browser(tmp_path) as page:
        await w.gateway.chat(fields={"X-User-Id": EVIL})
        await opened(page, w.url)
        await page.shows("#users", EVIL)
        assert await page.run("return document.images.length") == 0
        assert await page.run(NOTHING_ELSE) in ([], ["/status/events"])
        assert await page.console() == []


async def test_the_policy_lets_no_other_script_run(tmp_path: Path) -> None:
    async with watched(free_port()) as w, browser(tmp_path) as page:
        await opened(page, w.url)
        await page.run(
            "const s = document.createElement('script'); s.textContent = 'window.ran = true';"
            "document.body.append(s)"
        )
        assert await page.run("return window.ran") is None
        assert any("Content Security Policy" in message for message in await page.console())


async def test_a_lost_connection_is_told_and_found_again(tmp_path: Path) -> None:
    port = free_port()
    async with browser(tmp_path) as page:
        async with watched(port) as w:
            await opened(page, w.url)
        await page.shows("#link", "connection lost")
        async with watched(port):
            await page.shows("#link", "live")


async def test_light_and_dark_follow_the_reader(tmp_path: Path) -> None:
    async with watched(free_port()) as w, browser(tmp_path) as page:
        shades = []
        for scheme in ("light", "dark"):
            feature = {"name": "prefers-color-scheme", "value": scheme}
            await page.devtools("Emulation.setEmulatedMedia", features=[feature])
            await opened(page, w.url)
            shown = str(await page.run(BACKGROUND))
            shades.append(sum(map(int, shown.removeprefix("rgb(").rstrip(")").split(","))))
    light, dark = shades
    assert light > 600 > 150 > dark


async def test_a_phone_shows_it_without_scrolling_sideways(tmp_path: Path) -> None:
    async with watched(free_port()) as w, browser(tmp_path) as page:
        phone = {"width": 390, "height": 800, "deviceScaleFactor": 2, "mobile": True}
        await page.devtools("Emulation.setDeviceMetricsOverride", **phone)
        await w.gateway.chat(fields={"X-User-Id": "a" * 128})
        await opened(page, w.url)
        assert await page.run(OVERFLOW) <= 0
        assert len(await page.screenshot()) > 10_000


async def test_without_javascript_the_page_has_it_all_and_refreshes(tmp_path: Path) -> None:
    async with watched(free_port()) as w, browser(tmp_path) as page:
        await w.gateway.chat(fields={"X-User-Id": "ann"})
        await page.devtools("Emulation.setScriptExecutionDisabled", value=True)
        await page.open(w.url)
        shown = await page.html()
    assert "as of" in shown
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in shown
    for words in ("alpha", "beta", "server error 503", "ann", "1 of 7"):
        assert words in shown
