"""Connected sockets for a test that drives both ends."""

from __future__ import annotations

import socket


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection on loopback: who connected, who accepted."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    return ours, theirs
