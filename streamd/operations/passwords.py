"""Password hashes: scrypt for our own, and RabbitMQ's, which come with imported definitions.

A hash is one string, `scheme$...`. RabbitMQ's are one round of SHA-2 over four bytes of salt and
the password, quickly guessed by anyone who gets hold of them: users.py replaces one with scrypt as
soon as its password has been seen.

Source: rabbitmq/rabbitmq-website, docs/passwords.md, section "Computing Password Hashes".
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets

SCRYPT = "scrypt"
_COST, _BLOCK, _PARALLEL, _SALT_BYTES = 1 << 14, 8, 1, 16
_MEMORY_BYTES = 1 << 26  # scrypt takes 128 * cost * block
_MAX_PARALLEL, _KEY_BYTES = 4, 64
_SCRYPT_FORM = re.compile(
    r"scrypt\$([0-9]{1,7})\$([0-9]{1,3})\$([0-9]{1,2})\$([\w+/=]+)\$([\w+/=]+)", re.ASCII
)
_RABBITMQ = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
}
RABBITMQ_DEFAULT = "rabbit_password_hashing_sha256"
_RABBITMQ_SALT_BYTES = 4


def hash_password(password: bytes) -> str:
    """The hash of a password. Takes a while: call it in a thread."""
    salt = secrets.token_bytes(_SALT_BYTES)
    parts = [_scrypt(password, salt, _COST, _BLOCK, _PARALLEL), salt]
    digest, salted = (base64.b64encode(part).decode() for part in parts)
    return f"{SCRYPT}${_COST}${_BLOCK}${_PARALLEL}${salted}${digest}"


def check_password(password: bytes, kept: str) -> bool:
    """Whether a password has this hash. Takes equally long for any hash, also for an empty one."""
    match = _SCRYPT_FORM.fullmatch(kept)
    if match is None:
        _scrypt(password, bytes(_SALT_BYTES), _COST, _BLOCK, _PARALLEL)
        return _check_rabbitmq(password, kept)
    cost, block, parallel, salt, digest = match.groups()
    found = _scrypt(password, base64.b64decode(salt), int(cost), int(block), int(parallel))
    return hmac.compare_digest(found, base64.b64decode(digest))


def is_own(kept: str) -> bool:
    """Whether a hash is one of ours, or empty: no reason to replace it."""
    return not kept or kept.startswith(SCRYPT)


def algorithm_of(kept: str) -> tuple[str, str]:
    """A hash as definitions hold it: the algorithm, and the rest."""
    scheme, _, rest = kept.partition("$")
    return (scheme, rest) if scheme in _RABBITMQ else (SCRYPT, kept)


def read_hash(algorithm: str, text: str) -> str:
    """A hash from definitions as it is kept.

    Raises:
        ValueError: it is not a hash, or one that takes too much to check.
    """
    if not text:
        return ""  # no password is accepted
    if algorithm in _RABBITMQ:
        try:
            size = len(base64.b64decode(text, validate=True))
        except binascii.Error:
            size = 0
        if size != _RABBITMQ_SALT_BYTES + hashlib.new(_RABBITMQ[algorithm]).digest_size:
            raise ValueError(f"the password hash is not {algorithm} in base64")
        return f"{algorithm}${text}"
    if algorithm != SCRYPT:
        known = ", ".join((SCRYPT, *_RABBITMQ))
        raise ValueError(f"hashing algorithm is {algorithm[:40]!r}, expected one of {known}")
    if not _is_scrypt(text):
        raise ValueError("the password hash is not scrypt$COST$BLOCK$PARALLEL$SALT$KEY")
    return text


def _is_scrypt(text: str) -> bool:
    """Whether this is a scrypt hash that can be checked within our limits."""
    match = _SCRYPT_FORM.fullmatch(text)
    if match is None:
        return False
    cost, block, parallel = map(int, match.groups()[:3])
    try:
        key = base64.b64decode(match[5], validate=True)
        base64.b64decode(match[4], validate=True)
    except binascii.Error:
        return False
    is_power = cost > 1 and cost & (cost - 1) == 0
    fits = 0 < 128 * cost * block <= _MEMORY_BYTES // 2 and 0 < parallel <= _MAX_PARALLEL
    return is_power and fits and len(key) == _KEY_BYTES


def _check_rabbitmq(password: bytes, kept: str) -> bool:
    algorithm, text = algorithm_of(kept)
    if algorithm == SCRYPT:
        return False
    data = base64.b64decode(text)
    salt, digest = data[:_RABBITMQ_SALT_BYTES], data[_RABBITMQ_SALT_BYTES:]
    found = hashlib.new(_RABBITMQ[algorithm], salt + password).digest()
    return hmac.compare_digest(found, digest)


def _scrypt(password: bytes, salt: bytes, cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=cost, r=block, p=parallel, maxmem=_MEMORY_BYTES)
