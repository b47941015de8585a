"""K144: the socket file that a killed process left behind kept the next one from starting.

https://github.com/nginx/nginx/issues/851
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.client import RawClient
from tests.support.provider import ScriptedProvider
from tests.support.real import relayd
from tests.support.service import Place, config, exists, generations

pytestmark = pytest.mark.real_time


async def test_a_file_that_nobody_listens_on_is_replaced(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with ScriptedProvider(name="a") as a:
        text = config([place.unix], a)
        async with generations(tmp_path, text) as daemon:
            daemon.signal(signal.SIGKILL)
            await daemon.running.ended()
        assert exists(place.unix)
        async with generations(tmp_path, text), RawClient(place.unix) as client:
            assert (await client.get("/healthz")).status == 200


async def test_a_file_that_somebody_listens_on_is_refused_and_stays(tmp_path: Path) -> None:
    place = Place.free(tmp_path)
    async with (
        ScriptedProvider(name="a") as a,
        generations(tmp_path, config([place.unix], a)),
        relayd("serve", "-c", str(tmp_path / "config.toml")) as second,
    ):
        assert await second.ended() == 1
        assert second.err == [
            f"relayd: {tmp_path}/config.toml: server.listen: cannot listen on unix:{place.unix}: "
            "another process listens there; stop it first, or choose another"
        ]
        async with RawClient(place.unix) as client:
            assert (await client.get("/healthz")).status == 200


def put(kind: str, path: Path) -> None:
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path.with_name("nothing"))


def is_still(kind: str, path: Path) -> bool:
    if kind == "file":
        return path.read_text() == "precious"
    return path.is_dir() if kind == "folder" else path.is_symlink()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
async def test_anything_else_is_refused_and_never_removed(tmp_path: Path, kind: str) -> None:
    place = Place.free(tmp_path)
    path, text = Path(place.unix), tmp_path / "config.toml"
    put(kind, path)
    async with ScriptedProvider(name="a") as a:
        text.write_text(config([place.unix], a))
        async with relayd("serve", "-c", str(text)) as daemon:
            assert await daemon.ended() == 1
            assert "a file that is no socket is in the way" in daemon.err[0]
    assert is_still(kind, path)
