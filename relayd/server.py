"""Listening sockets, and the connections accepted on them.

`asyncio.start_server` accepts; each connection becomes a `Session` in a task of its own. Unix
sockets get their mode before anybody can connect, and a stale socket file is replaced, a live one
or another kind of file never. Does not know what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import stat
import sys
from collections.abc import Callable
from typing import Any

from .config import Listen, Tcp, Unix
from .errors import Draining, Overloaded, RelayError
from .httpsink import DateLine
from .knownlines import KnownLines
from .net import Conn, plain, reason
from .record import Record
from .session import Rules, Serve, Session
from .wake import Clock, Wake, Why

BACKLOG = 4096
"""Connections that the kernel completes before they are accepted (it caps this itself)."""

ACCEPTS = 128
"""Connections accepted in one turn: asyncio takes its backlog for this too, and fails so many times
a second where no file is left. So it is told less, and the kernel's queue is lengthened again."""

MAX_TURNED_AWAY = 32
"""Refused connections that may finish sending before they are closed, two seconds at most; they are
not among `server.max_connections`, so their files are of the reserve. More are closed at once."""

OWN = "relayd-own"
"""The name of a socket that relayd bound itself, in whichever generation."""

# From 3.13 on asyncio removes the file of a unix socket when it stops to accept, whosever it is.
KEEP_FILE: dict[str, Any] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}


REMEDIES = {
    errno.EADDRINUSE: "stop what listens there, or choose another",
    errno.EADDRNOTAVAIL: "choose an address of this machine",
    errno.EACCES: "choose another, or grant the right to it",
    errno.ENOENT: "create its folder first",
    errno.ENOTDIR: "name a path in a folder",
}
"""What to do where an address or a path cannot be listened on."""


class ListenError(Exception):
    """A socket cannot be listened on; the text names its key, the address and the remedy."""


class Server:
    """The sockets of one table of endpoints, and everybody connected to them."""

    def __init__(
        self,
        serve: Serve,
        rules: Callable[[], Rules],
        max_connections: Callable[[], int],
        report: Callable[[BaseException], None],
        refused: Callable[[Record], None],
    ) -> None:
        self._serve = serve
        self._rules = rules
        self._max_connections = max_connections
        self._report = report
        self._refused = refused
        self._servers: list[tuple[str, asyncio.Server]] = []  # with the name of the socket
        self._paths: list[tuple[str, int]] = []  # unix sockets made here: path and inode
        self._sessions: dict[asyncio.Task[None], Session] = {}
        self._turned_away: set[asyncio.Task[None]] = set()
        self._date = DateLine()
        self._known = KnownLines()
        self._bequeathed = False
        self.draining = False

    @property
    def connections(self) -> int:
        """Client connections that are open."""
        return len(self._sessions)

    @property
    def busy(self) -> int:
        """Connections with a request under way, from its first byte to the end of its answer."""
        return sum(session.busy for session in self._sessions.values())

    @property
    def sockets(self) -> list[tuple[str, socket.socket]]:
        """The listening sockets with their names, to be handed to a next generation."""
        return [(name, sock) for name, server in self._servers for sock in server.sockets]

    @property
    def places(self) -> list[Listen]:
        """Where it listens, with the ports that were taken for a configured 0."""
        return [_place(sock.getsockname()) for _, sock in self.sockets]

    async def listen(
        self, address: Listen, key: str, *, unix_mode: int, reuse_port: bool = False
    ) -> None:
        """Listen on an address, which comes from `key`; raises `ListenError`."""
        try:
            if isinstance(address, Unix):
                await self.adopt(OWN, _unix_socket(address.path, unix_mode))
                return
            server = await asyncio.start_server(
                self._accept,
                address.host,
                address.port,
                backlog=ACCEPTS,
                reuse_port=reuse_port or None,
            )
        except OSError as exc:
            fault = exc
            if exc.errno is None and not isinstance(address, Unix):  # all that Python 3.13 leaves
                fault = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
            raise ListenError(f"{key}: cannot listen on {address}: {_reason(fault)}") from exc
        self._keep(OWN, server)

    async def adopt(self, name: str, sock: socket.socket) -> None:
        """Accept on a socket that listens already: systemd's, or (`OWN`) an older generation's."""
        if sock.family != socket.AF_UNIX:
            server = await asyncio.start_server(self._accept, sock=sock, backlog=ACCEPTS)
        else:
            server = await asyncio.start_unix_server(
                self._accept, sock=sock, backlog=ACCEPTS, **KEEP_FILE
            )
            path = sock.getsockname()
            if name == OWN:
                with contextlib.suppress(OSError):  # removed by somebody else meanwhile
                    self._paths.append((path, os.stat(path).st_ino))
        self._keep(name, server)

    def _keep(self, name: str, server: asyncio.Server) -> None:
        self._servers.append((name, server))
        for sock in server.sockets:
            with socket.socket(fileno=os.dup(sock.fileno())) as same:
                same.listen(BACKLOG)

    def bequeath(self) -> None:
        """Accept no more; files and connections stay, since a next generation has the sockets.

        A connection that was accepted a moment ago is served: nobody else has it.
        """
        self._bequeathed = True
        self._paths.clear()
        for session in self._sessions.values():
            session.last()
        for _, server in self._servers:
            server.close()

    def close_listeners(self, *, shared: bool = True) -> None:
        """Accept no more. Whoever is connected may ask once more, and is told that it ends then.

        An idle connection is not cut: nginx may have a POST on its way on it, and would answer 502.
        Without `shared` the sockets of others stay open, for their clients to be told. Unix socket
        files made here are removed, unless they were replaced meanwhile.
        """
        for name, server in self._servers:
            if shared or name == OWN:
                server.close()
        for session in self._sessions.values():
            session.last()
        for path, inode in self._paths:
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == inode:
                    os.unlink(path)
        self._paths.clear()

    def interrupt(self) -> None:
        """End the exchanges that still run, honestly: the drain's time is up."""
        for session in self._sessions.values():
            session.wake.interrupt(Why.DRAINING)

    async def close(self, grace: float) -> None:
        """Close every connection; a task that does not end within `grace` seconds is cancelled."""
        self.close_listeners()
        self.interrupt()
        tasks = [*self._sessions, *self._turned_away]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    # Accepting.

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = _peer_name(writer)
        if name is None:
            writer.transport.abort()
            return
        loop = asyncio.get_running_loop()
        clock = Clock(loop, Wake(loop))
        session = Session(
            Conn(plain(writer), clock.wake, loop.time()),
            name,
            clock,
            self._rules,
            self._serve,
            lambda: self.draining,
            self._date,
            self._known,
            self._refused,
        )
        refuses = self.draining and not self._bequeathed
        if refuses or len(self._sessions) >= self._max_connections():
            self._turn_away(session, Draining() if refuses else Overloaded())
            return
        task = loop.create_task(session.run())
        self._sessions[task] = session
        task.add_done_callback(self._gone)

    def _turn_away(self, session: Session, refusal: RelayError) -> None:
        patient = len(self._turned_away) < MAX_TURNED_AWAY
        task = asyncio.get_running_loop().create_task(session.run(refusal, patient=patient))
        self._turned_away.add(task)
        task.add_done_callback(self._gone)

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._sessions.pop(task, None)
        self._turned_away.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._report(fault)


def _peer_name(writer: asyncio.StreamWriter) -> str | None:
    """Who has connected, "" at a unix socket; None for one that has reset already."""
    name = writer.get_extra_info("peername")
    if isinstance(name, tuple):
        return str(name[0])
    return "" if writer.get_extra_info("socket").family == socket.AF_UNIX else None


def _place(name: tuple[str, int] | str | bytes) -> Listen:
    """A socket's name; one in Linux's abstract namespace is bytes and begins with a zero."""
    if isinstance(name, bytes):
        return Unix("@" + name[1:].decode(errors="replace"))
    return Unix(name) if isinstance(name, str) else Tcp(name[0], name[1])


def _unix_socket(path: str, mode: int) -> socket.socket:
    """A bound, listening unix socket that never had another mode than `mode`; raises OSError."""
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(0o777 & ~mode)
    try:
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    return sock


def _remove_stale(path: str) -> None:
    """Remove a socket file that nobody listens on; raises OSError for all else in the way."""
    try:
        kind = os.stat(path, follow_symlinks=False).st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(kind):
        raise OSError("a file that is no socket is in the way; remove it, or choose another")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise OSError("another process listens there; stop it first, or choose another")


def _reason(exc: OSError) -> str:
    """The system's words for it, and the remedy."""
    remedy = REMEDIES.get(exc.errno or 0)
    if isinstance(exc, socket.gaierror):  # a name: its errno is none of the system's
        remedy = REMEDIES[errno.EADDRNOTAVAIL]
    return reason(exc) + (f"; {remedy}" if remedy else "")
