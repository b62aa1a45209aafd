"""The secret by which the nodes of a cluster know each other: `v1/~secret` in the store.

It is random, and written once, if absent: whoever has rights on the store is a node. It is never
sent: a node proves that it knows it, for one connection (`proof`).
"""

import hmac
import secrets
from contextlib import suppress

from segments.store.bad_object import BadObjectError
from segments.store.object_names import SECRET
from segments.store.object_store import ConflictError, MissingError, ObjectStore

_DIGITS = 64


def read_secret(store: ObjectStore) -> str:
    """The secret of a cluster; a new one where there is none yet. Blocks.

    Raises:
        BadObjectError: it is damaged.
        TierError: the store is away.
    """
    with suppress(MissingError):
        return _read(store)
    with suppress(ConflictError):  # another node was faster
        store.create(SECRET, secrets.token_hex(_DIGITS // 2).encode())
    return _read(store)


def _read(store: ObjectStore) -> str:
    found = store.get(SECRET).content.decode("ascii", "replace")
    if len(found) != _DIGITS:
        raise BadObjectError(SECRET, f"it has {len(found)} characters, expected {_DIGITS}")
    return found


def proof(secret: str, nonce: str, user: str) -> str:
    """What shows that a node knows the secret, which acts for a user.

    Args:
        secret: see `read_secret`.
        nonce: random, from the node that is to be convinced, for one connection.
        user: its name.
    """
    return hmac.new(secret.encode(), f"{nonce}\0{user}".encode(), "sha256").hexdigest()
