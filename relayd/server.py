"""Listening sockets, and the connections accepted on them.

`asyncio.start_server` accepts; each connection becomes a `Session` in a task of its own. Unix
sockets get their mode before anybody can connect, and a stale socket file is replaced, a live one
or another kind of file never. Does not know what is served.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from collections.abc import Callable

from .config import Listen, Trusted, Unix
from .errors import Draining, Overloaded, RelayError
from .httpsink import DateLine
from .knownlines import KnownLines
from .net import Conn
from .session import Rules, Serve, Session
from .visit import Peer
from .wake import Clock, Wake, Why

BACKLOG = 4096
"""Connections that the kernel completes before they are accepted (it caps this itself)."""

MAX_TURNED_AWAY = 32
"""Refused connections that may finish sending before they are closed, two seconds at most; they are
not among `server.max_connections`, so their files are of the reserve. More are closed at once."""


class ListenError(Exception):
    """A socket cannot be listened on; the text names it and the remedy."""


class Server:
    """The sockets of one table of endpoints, and everybody connected to them."""

    def __init__(
        self,
        serve: Serve,
        rules: Callable[[], Rules],
        trusted: Callable[[], Trusted],
        max_connections: Callable[[], int],
        report: Callable[[BaseException], None],
    ) -> None:
        self._serve = serve
        self._rules = rules
        self._trusted = trusted
        self._max_connections = max_connections
        self._report = report
        self._servers: list[asyncio.Server] = []
        self._paths: list[tuple[str, int]] = []  # unix sockets made here: path and inode
        self._sessions: dict[asyncio.Task[None], Session] = {}
        self._turned_away: set[asyncio.Task[None]] = set()
        self._date = DateLine()
        self._known = KnownLines()
        self.draining = False

    @property
    def connections(self) -> int:
        """Client connections that are open."""
        return len(self._sessions)

    @property
    def sockets(self) -> list[socket.socket]:
        """The listening sockets, to be handed to a next generation."""
        return [sock for server in self._servers for sock in server.sockets]

    async def listen(self, address: Listen, *, unix_mode: int, reuse_port: bool) -> None:
        """Listen on an address; raises `ListenError`."""
        if isinstance(address, Unix):
            sock = _unix_socket(address.path, unix_mode)
            self._paths.append((address.path, os.stat(address.path).st_ino))
            await self.adopt(sock)
            return
        try:
            server = await asyncio.start_server(
                self._accept,
                address.host,
                address.port,
                backlog=BACKLOG,
                reuse_port=reuse_port or None,
            )
        except OSError as exc:
            raise ListenError(f"cannot listen on {address}: {_reason(exc)}") from exc
        self._servers.append(server)

    async def adopt(self, sock: socket.socket) -> None:
        """Accept on a socket that listens already (systemd's, or an older generation's)."""
        start = asyncio.start_unix_server if sock.family == socket.AF_UNIX else asyncio.start_server
        self._servers.append(await start(self._accept, sock=sock, backlog=BACKLOG))

    def close_listeners(self) -> None:
        """Accept no more, and end the connections that are kept alive and idle.

        Unix socket files made here are removed, unless they were replaced meanwhile.
        """
        for server in self._servers:
            server.close()
        for session in self._sessions.values():
            session.dismiss()
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
        loop = asyncio.get_running_loop()
        clock = Clock(loop, Wake(loop))
        conn = Conn(writer, clock.wake, loop.time())
        session = Session(
            conn,
            self._peer(writer),
            clock,
            self._rules,
            self._serve,
            lambda: self.draining,
            self._date,
            self._known,
        )
        if self.draining or len(self._sessions) >= self._max_connections():
            self._turn_away(session, Draining() if self.draining else Overloaded())
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

    def _peer(self, writer: asyncio.StreamWriter) -> Peer:
        name = writer.get_extra_info("peername")
        if isinstance(name, tuple):
            return Peer(str(name[0]), self._trusted().covers(str(name[0])))
        return Peer("unix:", self._trusted().covers(""))


def _unix_socket(path: str, mode: int) -> socket.socket:
    """A bound, listening unix socket that never had another mode than `mode`."""
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    before = os.umask(0o777 & ~mode)
    try:
        sock.bind(path)
        sock.listen(BACKLOG)
    except OSError as exc:
        sock.close()
        raise ListenError(f"cannot listen on unix:{path}: {_reason(exc)}") from exc
    finally:
        os.umask(before)
    return sock


def _remove_stale(path: str) -> None:
    """Remove a socket file that nobody listens on; refuse everything else that is in the way."""
    try:
        kind = os.stat(path, follow_symlinks=False).st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(kind):
        raise ListenError(f"cannot listen on unix:{path}: a file that is no socket is in the way")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError as exc:
            raise ListenError(f"cannot listen on unix:{path}: {_reason(exc)}") from exc
    raise ListenError(f"cannot listen on unix:{path}: another process listens there: stop it first")


def _reason(exc: OSError) -> str:
    return exc.strerror or str(exc)
