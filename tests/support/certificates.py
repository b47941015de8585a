"""A private authority for a test, and what both sides of a connection need of it.

Knows TLS contexts and files, and nothing of relayd.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme


class Authority:
    """Issues certificates; `ca_file` is where its own one lies, for a provider's `ca_file` key."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self.ca_file = str(folder / "ca.pem")
        self._authority.cert_pem.write_to_path(self.ca_file)

    def server(self, *names: str) -> ssl.SSLContext:
        """A server's context with a certificate for these host names or addresses."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert(*(names or ("127.0.0.1",))).configure_cert(context)
        return context

    def client(self) -> ssl.SSLContext:
        """A client's context that trusts this authority alone."""
        return ssl.create_default_context(cafile=self.ca_file)
