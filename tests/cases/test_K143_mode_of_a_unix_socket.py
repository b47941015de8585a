"""K143: the mode of a unix socket came from the umask: too closed for nginx, later open to all.

https://github.com/Kludex/uvicorn/issues/337
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.gateway import config_for, gateway
from tests.support.provider import ScriptedProvider
from tests.support.scripts import ok

GROUP = 54321
STRANGER = 54322
"""A user and a group that nobody has."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that everybody may enter, unlike pytest's own."""
    with TemporaryDirectory() as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture(params=[0o022, 0o077, 0o000], ids=["022", "077", "000"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize(
    ("configured", "mode"), [({}, 0o660), ({"unix_mode": "0600"}, 0o600)], ids=["default", "0600"]
)
async def test_the_mode_is_the_configured_one_whatever_the_umask(
    folder: Path, umask: int, configured: dict[str, str], mode: int
) -> None:
    path = folder / "relayd.sock"
    server = {"listen": f"unix:{path}", **configured}
    async with ScriptedProvider(ok()) as a, gateway(config_for(a, server=server)):
        assert stat.S_IMODE(os.stat(path).st_mode) == mode
        assert os.umask(umask) == umask  # and that of the process is as it was


def may_connect(path: Path, user: int, group: int) -> bool:
    """Whether a process of that user and group can; asked by one that is it."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(group)
            os.setuid(user)
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(path))
            os._exit(0)
        except PermissionError:
            os._exit(1)
        finally:
            os._exit(2)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 1)
    return code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
async def test_the_group_may_connect_and_a_stranger_may_not(folder: Path) -> None:
    path = folder / "relayd.sock"
    server = {"listen": f"unix:{path}"}
    own = os.getegid()
    async with ScriptedProvider(ok()) as a:
        os.setegid(GROUP)
        try:
            async with gateway(config_for(a, server=server)):
                os.setegid(own)
                assert may_connect(path, STRANGER, GROUP)
                assert not may_connect(path, STRANGER, STRANGER)
        finally:
            os.setegid(own)
