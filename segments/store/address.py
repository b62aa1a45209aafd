"""The address of a tier: where a store is, without anything that lets one in."""

import os
import re
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from segments.store.object_store import DeniedError

SCHEMES = ("s3", "gs", "az", "file")
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_ADDRESSES = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX or file:///FOLDER"
# A colon may stand before a password, so a bucket has none.
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
# A folder; or a host and a port behind a scheme, without a user, a query and whatever else.
_PLAIN = re.compile(
    r"file:///[^?#]*"
    r"|[^:@?#]*(://(\[[0-9A-Fa-f:.]*\]|[^:@?#/]*)(:[0-9]{1,5})?(/[^:@?#]*)?)?"
)


class Address(NamedTuple):
    """Where a store is.

    Attributes:
        bucket: or the container; empty of a folder.
        prefix: of all keys, without slashes around it; of a folder its absolute path.
        endpoint: URL of a server other than the provider's; empty for that one.
    """

    scheme: str
    bucket: str
    prefix: str
    endpoint: str

    def __str__(self) -> str:
        """For people; it has nothing secret in it."""
        if self.scheme == "file":
            return f"file://{self.prefix}"
        url = f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")
        return f"{url} at {self.endpoint}" if self.endpoint else url


def parse_address(url: str, endpoint: str = "") -> Address:
    """The parts of a tier's address.

    Raises:
        DeniedError: it is none, or there is a user or a password in it, which is not repeated.
    """
    parts = _split("the tier's address", url)
    if parts.scheme not in SCHEMES or "://" not in url or parts.query or parts.fragment:
        raise _no_address(url)
    if parts.scheme == "file":
        return _folder(url, parts, endpoint)
    prefix = parts.path.strip("/")
    if not _BUCKET.fullmatch(parts.netloc) or any(
        part in ("", ".", "..") for part in prefix.split("/") if prefix
    ):
        raise _no_address(url)
    return Address(parts.scheme, parts.netloc, prefix, _endpoint(parts.scheme, endpoint))


def _folder(url: str, parts: SplitResult, endpoint: str) -> Address:
    if parts.netloc or not parts.path.startswith("/"):
        raise _no_address(url)
    if endpoint:
        raise DeniedError("an endpoint is for s3://, not for file://; leave it out")
    return Address("file", "", os.path.normpath(unquote(parts.path)), "")


def _endpoint(scheme: str, given: str) -> str:
    """The URL of the server, as it is given or as the environment has it."""
    if scheme != "s3":
        if given:
            raise DeniedError(f"an endpoint is for s3://, not for {scheme}://; leave it out")
        return ""
    named = [os.environ[name] for name in _ENDPOINTS if os.environ.get(name)]
    endpoint = given or next(iter(named), "")
    if not endpoint:
        return ""
    parts = _split("the tier's endpoint", endpoint)
    if parts.scheme not in ("http", "https") or not parts.netloc or not _PLAIN.fullmatch(endpoint):
        raise DeniedError(
            f"{_shown(endpoint)} is no endpoint; expected http://HOST:PORT or https://…"
        )
    return endpoint.rstrip("/")


def _split(what: str, url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise DeniedError(f"{what} is no URL; expected {_ADDRESSES}") from None
    # A secret key may have a slash in it, and then its @ stands in the path.
    if ("@" in url and parts.scheme != "file") or "@" in parts.netloc:
        raise DeniedError(
            f"{what} has a user or a password in it; take it out, and put credentials into the"
            " environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )
    return parts


def _no_address(url: str) -> DeniedError:
    return DeniedError(f"{_shown(url)} is no address of a tier; expected {_ADDRESSES}")


def _shown(url: str) -> str:
    """A URL that is wrong, unless there may be something secret in it."""
    return repr(url) if _PLAIN.fullmatch(url) else "this"
