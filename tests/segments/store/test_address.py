"""Addresses of tiers: which there are, and that nothing secret in one is ever repeated."""

import pytest

from segments.store.address import Address, parse_address
from segments.store.object_store import DeniedError


@pytest.fixture(autouse=True)
def no_endpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", Address("s3", "bucket", "", "")),
        ("s3://bucket/", Address("s3", "bucket", "", "")),
        ("s3://my.bucket-1/a/b_c/", Address("s3", "my.bucket-1", "a/b_c", "")),
        ("gs://bucket/p", Address("gs", "bucket", "p", "")),
        ("az://container/p", Address("az", "container", "p", "")),
        ("file:///mnt/tier", Address("file", "", "/mnt/tier", "")),
        ("file:///mnt/a b@c:d", Address("file", "", "/mnt/a b@c:d", "")),
        ("file:///mnt/%41/../b", Address("file", "", "/mnt/b", "")),
    ],
)
def test_addresses(url: str, expected: Address) -> None:
    assert parse_address(url) == expected


@pytest.mark.parametrize(
    "url",
    [
        *("", "bucket", "/mnt", "s3:", "s3:b", "s3://", "s3:///p", "s3://b/../p"),
        *("http://b", "file://mnt/x", "file:mnt", "s3://-b", "s3://b u", "s3://"),
    ],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(DeniedError, match=r"^('.*'|this) is no address of a tier; expected s3://"):
        parse_address(url)


@pytest.mark.parametrize("scheme", ["s3://", "gs://", "http://", "https://", "file://", ""])
@pytest.mark.parametrize(
    "rest",
    [
        *("me:hunter2@bucket/p", "hunter2@bucket", "me:hunter2", "me:hunter2/b", "b/p?sig=hunter2"),
        *("b#hunter2", "me:hun/ter2@b", "x://me:hunter2@b", "b:9000/me:hunter2@b", "b/p@hunter2"),
        *("me:hunter2@[", "[::1]:hunter2", "me:2hunter"),
    ],
)
def test_what_may_be_secret_is_not_repeated(scheme: str, rest: str) -> None:
    url = scheme + rest
    for address, endpoint in ((url, ""), ("s3://b", url)):
        with pytest.raises(DeniedError) as refused:
            parse_address(address, endpoint)
        assert "hun" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["minio:9000", "s3://b", "http://", "http://a:b", "http://a:123456"]
)
def test_what_is_no_endpoint(url: str) -> None:
    with pytest.raises(
        DeniedError, match=r"^('.*'|this) is no endpoint; expected http://HOST:PORT"
    ):
        parse_address("s3://b", url)


@pytest.mark.parametrize("url", ["gs://b", "az://c", "file:///mnt"])
def test_who_needs_no_endpoint(url: str) -> None:
    with pytest.raises(DeniedError, match=r"; leave it out$"):
        parse_address(url, "http://minio:9000")


def test_a_password_in_it() -> None:
    for told_of, url, endpoint in (
        ("the tier's address", "s3://me:swordfish@bucket", ""),
        ("the tier's endpoint", "s3://bucket", "http://me:swordfish@host:9000"),
    ):
        with pytest.raises(DeniedError) as told:
            parse_address(url, endpoint)
        assert str(told.value) == (
            f"{told_of} has a user or a password in it; take it out, and put credentials into the"
            " environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)"
        )


def test_which_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_address("s3://b", "http://h:9000/").endpoint == "http://h:9000"
    monkeypatch.setenv("AWS_ENDPOINT", "https://third")
    assert parse_address("s3://b").endpoint == "https://third"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://second")
    assert parse_address("s3://b").endpoint == "https://second"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://first")
    address = parse_address("s3://b/p")
    assert str(address) == "s3://b/p at https://first"
    assert parse_address("s3://b", "http://given").endpoint == "http://given"
    assert parse_address("gs://b").endpoint == ""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "https://me:swordfish@first")
    with pytest.raises(DeniedError, match="the tier's endpoint has a user or a password") as told:
        parse_address("s3://b")
    assert "swordfish" not in str(told.value)
