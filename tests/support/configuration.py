"""Configurations from TOML text, for tests: nothing is read from a disk."""

from __future__ import annotations

import tomllib
from collections.abc import Callable

import pytest

from relayd.config import Config, ConfigError, Unseen, build

ONE = '[[provider]]\nname = "one"\nbase_url = "http://127.0.0.1:9/v1"\n'
TWO = ONE + '[[provider]]\nname = "two"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m2"\n'


ROUTES = TWO + (
    '[[route]]\nname="a"\nproviders=["two"]\n'
    '[[route]]\nname="b"\nproviders=["one", "two"]\nmodels={one="m1"}\n'
)


def no_file(path: str) -> bytes:
    raise FileNotFoundError(2, "No such file or directory", path)


def files(**contents: bytes) -> Callable[[str], bytes]:
    """A reader of files: `files(a=b"...")` knows `/a`."""

    def read(path: str) -> bytes:
        return contents[path.removeprefix("/")] if path[1:] in contents else no_file(path)

    return read


def config(
    text: str,
    read_file: Callable[[str], bytes] = no_file,
    listen: tuple[str, ...] = (),
    unseen: Unseen = Unseen.NOTHING,
    **env: str,
) -> Config:
    return build(tomllib.loads(text), "config.toml", env, read_file, listen, unseen)


def problems(text: str, read_file: Callable[[str], bytes] = no_file, **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        config(text, read_file, (), Unseen.NOTHING, **env)
    return str(caught.value).splitlines()
