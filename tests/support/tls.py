"""A server inside TLS, and the authority whose certificates it and its clients show."""

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trustme

from tests.support.process import ServerProcess


class TlsServer:
    """An authority, and a server with a certificate from it; not started yet.

    Args:
        folder: for data and certificates.
        option: of the command line, for the port inside TLS.
        others: of the command line.
    """

    def __init__(self, folder: Path, option: str, *others: str) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.certificate = folder / "server.pem"
        self.issue(self.certificate)
        files = (f"--tls-certificate={self.certificate}", f"--tls-ca={self.ca}")
        self.server = ServerProcess(
            folder / "data", f"{option}=0", *files, *others, module="tests.support.impatient"
        )

    def issue(
        self, file: Path, name: str = "localhost", authority: trustme.CA | None = None
    ) -> None:
        """Write a certificate with its key."""
        made = (authority or self.authority).issue_cert(name, common_name=name)
        made.private_key_and_cert_chain_pem.write_to_path(str(file))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Started; nothing in it may fail."""
        with self.server:
            yield
        assert "Traceback" not in self.server.log.read_text()

    def context(self) -> ssl.SSLContext:
        """For clients that believe the authority."""
        return ssl.create_default_context(cafile=str(self.ca))
