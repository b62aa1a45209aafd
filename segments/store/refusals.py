"""What a store's refusals mean, in sentences for an operator.

The library's errors are text: the URL, the status, the store's answer, and "Debug source:" with the
fault below. Of all this only the status, the store's code for the error and the name of a region
are repeated, so nothing secret can come with them.
"""

import re

from segments.store.object_store import (
    ConflictError,
    CutError,
    DeniedError,
    MissingError,
    TierError,
    UnsupportedError,
)

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"(?:<Code>|\(code: )([A-Za-z0-9]{1,60})(?:</Code>|\))")
_REGION = re.compile(r"<Region>([a-z0-9-]{1,40})</Region>")
# Where the library asks for credentials when the environment has none, and what it should have.
_METADATA = (
    (re.compile("://[^/ ]+/computeMetadata/"), "GOOGLE_SERVICE_ACCOUNT"),
    (re.compile("://[^/ ]+/metadata/identity/"), "AZURE_STORAGE_ACCOUNT_KEY"),
    (
        re.compile("://[^/ ]+/latest/(api|meta-data)/"),
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    ),
)
_NO_OBJECT = ("NoSuchKey", "BlobNotFound")
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _FAILED = 401, 403, 404, 500
_ELSEWHERE = "redirect without LOCATION"  # as S3 answers where the region is another

# Codes that an operator has to do something about, and what.
_DENIED = {
    "NoSuchBucket": "there is no such bucket: create it, or correct the tier's address",
    "ContainerNotFound": "there is no such container: create it, or correct the tier's address",
    "SignatureDoesNotMatch": "the secret key is wrong: correct AWS_SECRET_ACCESS_KEY",
    "AuthenticationFailed": "the account or its key is wrong",
    "InvalidAccessKeyId": "the access key id is not known there: correct AWS_ACCESS_KEY_ID",
    # As versitygw has it.
    "XAdminUserNotFound": "the access key id is not known there: correct AWS_ACCESS_KEY_ID",
    "RequestTimeTooSkewed": "this machine's clock is off by more than the store accepts: set it",
    "ExpiredToken": "the session token has expired: start with a new one",
    "InvalidToken": "the session token is not valid",
    "AccessDenied": "the credentials do not allow it: give them the right to read, write, list and"
    " delete below the tier's address",
    "AuthorizationPermissionMismatch": "the credentials do not allow it: give them the right to"
    " read, write, list and delete",
    "AllAccessDisabled": "all access to the bucket is disabled",
    "AccountProblem": "there is a problem with the account",
    "InvalidBucketName": "the store does not take the bucket's name",
    "PermanentRedirect": "the bucket is in another region: set AWS_REGION",
    "TemporaryRedirect": "the bucket is in another region: set AWS_REGION",
    "IllegalLocationConstraintException": "the bucket is in another region: set AWS_REGION",
    "AuthorizationHeaderMalformed": "the region is wrong: set AWS_REGION",
}
# Codes that may go away by themselves.
_PASSING = {
    "InvalidRange": "the object ends before these bytes",
    "BadDigest": "the bytes were changed on the way",
    "XAmzContentSHA256Mismatch": "the bytes were changed on the way",
    "XAmzContentChecksumMismatch": "the bytes were changed on the way",
    "SlowDown": "the store asks for fewer requests",
    "ServiceUnavailable": "the store is not available at the moment",
    "ServerBusy": "the store is not available at the moment",
    "InternalError": "the store failed",
    "QuotaExceeded": "the store is full",
    "XMinioStorageFull": "the store is full",
    "InsufficientStorage": "the store is full",
}
# Words in the fault below, where there was no answer; none of them can be in a URL.
_CONNECTION = (
    ('"dns error"', "the name of its host is not known"),
    ("kind: ConnectionRefused", "nothing listens there"),
    ("InvalidCertificate(", "its certificate is not trusted"),
    ("InvalidContentType,", "it does not speak TLS: write http://, not https://"),
    ("source: TimedOut", "there was no answer in time"),
    ("kind: Timeout,", "there was no answer in time"),
    ("kind: NetworkUnreachable", "there is no way to it in the network"),
    ("kind: HostUnreachable", "there is no way to it in the network"),
    ("HTTP error: ", "the connection broke off"),
)


def refusal(operation: str, where: str, error: Exception) -> TierError:
    """What an error of the library is, with one sentence.

    Args:
        operation: what was to be done, as "read v1/cluster".
        where: the store, as "s3://bucket/prefix at http://host:9000".
        error: as the library raised it.

    Returns:
        DeniedError, MissingError, ConflictError, UnsupportedError, or TierError for all else; it is
        to be raised `from None`, for the library's text may tell too much.
    """
    kind, reason = _meaning(operation, error)
    return kind(f"cannot {operation} in {where}: {reason}")


def _meaning(operation: str, error: Exception) -> tuple[type[TierError], str]:
    text, kind = str(error), type(error).__name__
    code, status = _found(_CODE, text), int(_found(_STATUS, text) or 0)
    denied = _denied(code, text)
    if denied:
        return DeniedError, denied
    if status == _NOT_FOUND and code not in _NO_OBJECT and not operation.startswith("delete "):
        return TierError, f"the store answered {_told(status, code)}: is this a store's address?"
    if kind in _BY_TYPE:
        return _BY_TYPE[kind]
    if code in _PASSING:
        is_cut = code == "InvalidRange"
        return CutError if is_cut else TierError, f"{_PASSING[code]} ({code})"
    return _by_status(status, code) if status else (TierError, _connection(text))


_BY_TYPE: dict[str, tuple[type[TierError], str]] = {
    "FileNotFoundError": (MissingError, "it is not there"),
    "AlreadyExistsError": (ConflictError, "somebody else has written it"),
    "PreconditionError": (ConflictError, "somebody else has written it"),
    "NotSupportedError": (UnsupportedError, "the store does not know this request"),
}


def _denied(code: str, text: str) -> str:
    """What an operator has to do; empty if it is nothing that an operator can change."""
    for path, names in _METADATA:
        if path.search(text):
            return f"there are no credentials in the environment: set {names}"
    if _ELSEWHERE in text:
        return _DENIED["PermanentRedirect"]
    region = _found(_REGION, text)
    return f"{_DENIED[code]}{f' to {region}' if region else ''} ({code})" if code in _DENIED else ""


def _by_status(status: int, code: str) -> tuple[type[TierError], str]:
    told = _told(status, code)
    if status in (_UNAUTHORIZED, _FORBIDDEN):
        return DeniedError, f"the store refuses the credentials ({told})"
    if status in (405, 501):
        return UnsupportedError, f"the store does not know this request ({told})"
    if status == 429 or status >= _FAILED:  # noqa: PLR2004 - too many requests
        return TierError, f"the store failed ({told})"
    return TierError, f"the store answered {told}"


def _told(status: int, code: str) -> str:
    return f"{status} {code}".rstrip()


def _connection(text: str) -> str:
    for word, meaning in _CONNECTION:
        if word in text:
            return meaning
    return "the request failed"


def _found(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.search(text)
    return match[1] if match else ""
