"""Whose listening sockets a process was given, and what it leaves to the next one.

systemd hands over sockets by name (`admin` is for the admin listener); an older generation hands
over those, and its own under names that say so. Does not know how a socket is taken or accepted on.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from socket import AF_UNIX, socket

from .app import App
from .config import Config, Tcp
from .sdnotify import take_listeners
from .server import OWN

ADMIN = "admin"
"""The FileDescriptorName= of a socket for the admin listener."""

OWN_ADMIN = "relayd-admin"
"""The admin listener's socket on its way to a next generation, where relayd bound it itself."""

Named = tuple[str, socket]


@dataclass(frozen=True, slots=True)
class Given:
    """Sockets with their names (see `Server.adopt`), those for clients and those for the admin."""

    public: tuple[Named, ...]
    admin: tuple[Named, ...]


def given_sockets(environ: MutableMapping[str, str], pid: int) -> Given:
    """What was handed to `pid`; raises ActivationError. See `sdnotify.take_listeners`."""
    taken = take_listeners(environ, pid)
    return Given(
        tuple(pair for pair in taken if pair[0] not in (ADMIN, OWN_ADMIN)),
        tuple(
            (name if name == ADMIN else OWN, sock)
            for name, sock in taken
            if name in (ADMIN, OWN_ADMIN)
        ),
    )


def estate(app: App) -> list[tuple[str, int]]:
    """The listening sockets by name and descriptor, as `given_sockets` knows them again."""
    admin = app.admin.server.sockets if app.admin is not None else []
    return [
        *((name, sock.fileno()) for name, sock in app.server.sockets),
        *((OWN_ADMIN if name == OWN else ADMIN, sock.fileno()) for name, sock in admin),
    ]


def open_doors(config: Config, given: Given) -> list[str]:
    """Warnings about sockets that strangers reach: the configuration knows nothing of them."""
    public = [] if config.clients else _strange(given.public)
    return [
        *(f"{at}: without [[client]] whoever reaches it may use relayd" for at in public),
        *(f"{at}: whoever reaches it sees metrics and status" for at in _strange(given.admin)),
    ]


def _strange(given: tuple[Named, ...]) -> list[str]:
    places = [
        (name, Tcp(*sock.getsockname()[:2]))
        for name, sock in given
        if sock.family != AF_UNIX and name != OWN
    ]
    return [f"socket {name} at {place}" for name, place in places if not place.local]
