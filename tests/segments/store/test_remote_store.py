"""Stores behind a network: what they refuse, in sentences, and answers that are lost."""

import json
import re
import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import trustme

from segments.store import remote_store
from segments.store.object_store import (
    MOST_IN_REQUEST,
    ConflictError,
    CutError,
    DeniedError,
    MissingError,
    ObjectStore,
    TierError,
    UnsupportedError,
)
from segments.store.stores import open_store, probe
from tests.support.store_proxy import (
    Answer,
    Request,
    Spoil,
    StoreProxy,
    first,
    proxy_before,
    refused,
    well,
)
from tests.support.stores import BUCKET, StoreServer, started, tier_in

SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    pause = timedelta(milliseconds=1)
    monkeypatch.setitem(remote_store._FEW, "backoff", {"init_backoff": pause, "max_backoff": pause})


@pytest.fixture
def alone() -> Iterator[StoreProxy]:
    """Answers without a store behind it."""
    with proxy_before() as proxy:
        yield proxy


@pytest.fixture(params=["gofakes3", "versitygw"])
def proxy(
    request: pytest.FixtureRequest,
    store_server: Callable[[str], StoreServer],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[StoreProxy]:
    """Stands before a real store; the tier is `PREFIX` there."""
    tier = tier_in(store_server(request.param), monkeypatch)
    with proxy_before(tier.endpoint) as running:
        yield running


@pytest.fixture
def store(proxy: StoreProxy, request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    name = f"{abs(hash(request.node.name)):x}"
    store = open_store(f"s3://{BUCKET}/{name}", proxy.endpoint)
    yield store
    proxy.decide = well
    store.delete([found.key for found in store.listing("v1")])


def at(proxy: StoreProxy) -> ObjectStore:
    return open_store("s3://tier/p", proxy.endpoint)


NO_BUCKET = "there is no such bucket: create it, or correct the tier's address (NoSuchBucket)"
NO_CONTAINER = (
    "there is no such container: create it, or correct the tier's address (ContainerNotFound)"
)
CLOCK = "this machine's clock is off by more than the store accepts: set it (RequestTimeTooSkewed)"
NO_RIGHT = (
    "the credentials do not allow it: give them the right to read, write, list and delete below the"
    " tier's address (AccessDenied)"
)
NO_RIGHT_AZURE = (
    "the credentials do not allow it: give them the right to read, write, list and delete"
    " (AuthorizationPermissionMismatch)"
)
NO_KEY = "the access key id is not known there: correct AWS_ACCESS_KEY_ID"
REFUSED = [
    (404, "NoSuchBucket", "", DeniedError, NO_BUCKET),
    (403, "SignatureDoesNotMatch", f"<StringToSign>{SECRET}</StringToSign>", DeniedError,
     "the secret key is wrong: correct AWS_SECRET_ACCESS_KEY (SignatureDoesNotMatch)"),
    (403, "InvalidAccessKeyId", "", DeniedError,
     f"{NO_KEY} (InvalidAccessKeyId)"),
    (404, "XAdminUserNotFound", "", DeniedError,
     f"{NO_KEY} (XAdminUserNotFound)"),
    (403, "RequestTimeTooSkewed", "", DeniedError,
     CLOCK),
    (400, "ExpiredToken", "", DeniedError,
     "the session token has expired: start with a new one (ExpiredToken)"),
    (400, "InvalidToken", "", DeniedError, "the session token is not valid (InvalidToken)"),
    (403, "AccessDenied", "", DeniedError,
     NO_RIGHT),
    (403, "AllAccessDisabled", "", DeniedError,
     "all access to the bucket is disabled (AllAccessDisabled)"),
    (403, "AccountProblem", "", DeniedError,
     "there is a problem with the account (AccountProblem)"),
    (400, "InvalidBucketName", "", DeniedError,
     "the store does not take the bucket's name (InvalidBucketName)"),
    (301, "PermanentRedirect", "", DeniedError,
     "the bucket is in another region: set AWS_REGION"),
    (400, "IllegalLocationConstraintException", "", DeniedError,
     "the bucket is in another region: set AWS_REGION (IllegalLocationConstraintException)"),
    (400, "AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>", DeniedError,
     "the region is wrong: set AWS_REGION to eu-west-1 (AuthorizationHeaderMalformed)"),
    (404, "ContainerNotFound", "", DeniedError, NO_CONTAINER),
    (403, "AuthenticationFailed", "", DeniedError,
     "the account or its key is wrong (AuthenticationFailed)"),
    (403, "AuthorizationPermissionMismatch", "", DeniedError,
     NO_RIGHT_AZURE),
    (403, "Strange", "", DeniedError, "the store refuses the credentials (403 Strange)"),
    (401, "", "", DeniedError, "the store refuses the credentials (401)"),
    (301, "", "", DeniedError, "the bucket is in another region: set AWS_REGION"),
    (404, "", "", TierError, "the store answered 404: is this a store's address?"),
    (404, "Strange", "", TierError, "the store answered 404 Strange: is this a store's address?"),
    (501, "NotImplemented", "", UnsupportedError,
     "the store does not know this request (501 NotImplemented)"),
    (405, "MethodNotAllowed", "", UnsupportedError,
     "the store does not know this request (405 MethodNotAllowed)"),
    (400, "BadDigest", "", TierError, "the bytes were changed on the way (BadDigest)"),
    (400, "XAmzContentSHA256Mismatch", "", TierError,
     "the bytes were changed on the way (XAmzContentSHA256Mismatch)"),
    (400, "XAmzContentChecksumMismatch", "", TierError,
     "the bytes were changed on the way (XAmzContentChecksumMismatch)"),
    (503, "SlowDown", "", TierError, "the store asks for fewer requests (SlowDown)"),
    (503, "ServiceUnavailable", "", TierError,
     "the store is not available at the moment (ServiceUnavailable)"),
    (503, "ServerBusy", "", TierError,
     "the store is not available at the moment (ServerBusy)"),
    (500, "InternalError", "", TierError, "the store failed (InternalError)"),
    (403, "QuotaExceeded", "", TierError, "the store is full (QuotaExceeded)"),
    (507, "XMinioStorageFull", "", TierError, "the store is full (XMinioStorageFull)"),
    (507, "InsufficientStorage", "", TierError, "the store is full (InsufficientStorage)"),
    (416, "InvalidRange", "", CutError,
     "the object ends before these bytes (InvalidRange)"),
    (416, "", "", TierError, "the store answered 416"),
    (429, "", "", TierError, "the store failed (429)"),
    (502, "", "", TierError, "the store failed (502)"),
    (418, "Teapot", "", TierError, "the store answered 418 Teapot"),
]  # fmt: skip
OPERATIONS: dict[str, tuple[str, Callable[[ObjectStore], object]]] = {
    "create": ("write v1/x", lambda store: store.create("v1/x", b"1")),
    "replace": ("write v1/x", lambda store: store.replace("v1/x", b"1", "e")),
    "put": ("write v1/x", lambda store: store.put("v1/x", b"1")),
    "get": ("read v1/x", lambda store: store.get("v1/x")),
    "get_range": ("read v1/x", lambda store: store.get_range("v1/x", 0, 1)),
    "listing": ("list v1", lambda store: list(store.listing("v1"))),
    "folders": ("list v1", lambda store: store.folders("v1")),
    "delete": ("delete v1/x", lambda store: store.delete(["v1/x"])),
    "delete many": ("delete 2 objects", lambda store: store.delete(["v1/x", "v1/y"])),
}


def unknown(do: Callable[[], object]) -> str:
    """What is said where nobody knows whether it was done."""
    with pytest.raises(TierError) as told:
        do()
    assert type(told.value) is TierError
    return str(told.value)


class TestSentences:
    """Each refusal is one line, says what to do, and has nothing in it that lets anybody in."""

    @pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]} {case[1]}")
    def test_refused(self, alone: StoreProxy, case: tuple[int, str, str, type, str]) -> None:
        status, code, more, kind, sentence = case
        alone.decide = lambda _: refused(status, code, more)
        store = at(alone)
        for operation, do in OPERATIONS.values():
            if status == 404 and kind is TierError and operation.startswith("delete"):
                do(store)  # it is not there, however the store says it
                continue
            with pytest.raises(TierError) as told:
                do(store)
            assert type(told.value) is kind
            where = f"s3://tier/p at {alone.endpoint}"
            assert str(told.value) == f"cannot {operation} in {where}: {sentence}"

    def test_the_library_names_nothing_that_we_do_not(self, alone: StoreProxy) -> None:
        """Whatever a store answers is not repeated."""
        alone.decide = lambda _: refused(403, "AccessDenied", f"<Key>{SECRET}</Key>\n\n")
        with pytest.raises(DeniedError) as told:
            at(alone).get("v1/x")
        assert SECRET not in str(told.value)
        assert "\n" not in str(told.value)
        assert told.value.__suppress_context__

    def told(self, endpoint: str) -> str:
        told = unknown(lambda: open_store("s3://tier/p", endpoint).get("v1/x"))
        start, _, reason = told.partition(f" at {endpoint}: ")
        assert start == "cannot read v1/x in s3://tier/p"
        return reason

    def test_nothing_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        assert self.told(f"http://127.0.0.1:{port}") == "nothing listens there"

    def test_a_host_that_nobody_knows(self) -> None:
        assert self.told("http://store.invalid") == "the name of its host is not known"

    def test_no_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(remote_store, "_DEADLINE", timedelta(seconds=0.05))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
            assert self.told(endpoint) == "there was no answer in time"

    def test_no_tls_at_https(self, alone: StoreProxy) -> None:
        assert self.told(alone.endpoint.replace("http:", "https:")) == (
            "it does not speak TLS: write http://, not https://"
        )

    def test_a_certificate_that_nobody_vouches_for(self) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            threading.Thread(target=shake_hands, args=(listener, context), daemon=True).start()
            endpoint = f"https://127.0.0.1:{listener.getsockname()[1]}"
            assert self.told(endpoint) == "its certificate is not trusted"

    def test_a_connection_that_breaks(self, alone: StoreProxy) -> None:
        alone.decide = lambda _: Spoil.UNREACHED
        assert self.told(alone.endpoint) == "the connection broke off"

    @pytest.mark.parametrize("missing", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
    def test_half_of_the_credentials(self, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
        (there,) = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} - {missing}
        monkeypatch.delenv(missing)
        with pytest.raises(DeniedError) as told:
            open_store("s3://tier/p")
        assert str(told.value) == f"cannot use s3://tier/p: {there} is set, and {missing} is not"

    def test_no_credentials(self, alone: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", alone.endpoint)
        alone.decide = lambda _: Answer(404, {}, b"")
        with pytest.raises(DeniedError) as told:
            at(alone).get("v1/x")
        assert str(told.value).endswith(
            ": there are no credentials in the environment:"
            " set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )

    def test_settings_of_other_providers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(DeniedError, match="az://c/p: AZURE_STORAGE_ACCOUNT_NAME is not set"):
            open_store("az://c/p")
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/nowhere")
        with pytest.raises(DeniedError, match="gs://b: the file that GOOGLE_SERVICE_ACCOUNT names"):
            open_store("gs://b")
        monkeypatch.setenv("AWS_UNSIGNED_PAYLOAD", SECRET)
        monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", SECRET)
        with pytest.raises(DeniedError) as told:
            open_store("s3://b")
        assert str(told.value) == (
            "cannot use s3://b: the library does not take the settings in the environment"
            " (AWS_…, GOOGLE_…, AZURE_…)"
        )

    def test_the_extra_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "segments.store.remote_store", None)
        with pytest.raises(DeniedError) as told:
            open_store("s3://tier/p")
        assert str(told.value) == (
            'a tier at s3:// needs the package obstore; pip install "streamd-server[tier]"'
        )


def shake_hands(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        try:
            context.wrap_socket(connection, server_side=True).close()
        except OSError:
            connection.close()


class TestLostAnswers:
    """Of a write nobody knows about it is never said that somebody else has done it."""

    @pytest.mark.parametrize("spoil", [Spoil.LOST, Spoil.FAILED])
    def test_compare_and_set(self, store: ObjectStore, proxy: StoreProxy, spoil: Spoil) -> None:
        proxy.decide = first(spoil, "PUT")
        unknown(lambda: store.create("v1/x", b"1"))
        assert proxy.count("PUT") == 1
        found = store.get("v1/x")
        assert found.content == b"1"
        proxy.decide = first(spoil, "PUT")
        unknown(lambda: store.replace("v1/x", b"2", found.etag))
        assert proxy.count("PUT") == 2
        assert store.get("v1/x").content == b"2"

    def test_no_answer_in_time(
        self, store: ObjectStore, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(remote_store, "_DEADLINE_ONCE", timedelta(seconds=0.5))
        hasty = open_store(repr(store).partition(" ")[0], proxy.endpoint)
        proxy.decide = first(Spoil.SILENCE, "PUT")
        assert "there was no answer in time" in unknown(lambda: hasty.create("v1/x", b"1"))
        assert store.get("v1/x").content == b"1"

    def test_it_never_arrived(self, store: ObjectStore, proxy: StoreProxy) -> None:
        proxy.decide = first(Spoil.UNREACHED, "PUT")
        unknown(lambda: store.create("v1/x", b"1"))
        with pytest.raises(MissingError):
            store.get("v1/x")

    @pytest.mark.parametrize("spoil", [Spoil.LOST, Spoil.FAILED, Spoil.UNREACHED])
    def test_everything_else_is_repeated(
        self, store: ObjectStore, proxy: StoreProxy, tmp_path: Path, spoil: Spoil
    ) -> None:
        path = tmp_path / "file"
        path.write_bytes(b"content")
        for method, do in (
            ("PUT", lambda: store.put("v1/x", b"content")),
            ("PUT", lambda: store.put_file("v1/y", str(path), 7)),
            ("GET", lambda: store.get("v1/x")),
            ("GET", lambda: store.get_range("v1/x", 0, 7)),
            ("GET", lambda: list(store.listing("v1"))),
            ("POST", lambda: store.delete(["v1/x"])),
        ):
            proxy.decide = first(spoil, method)
            do()
        assert [found.key for found in store.listing("v1")] == ["v1/y"]

    def test_a_body_that_is_cut(self, store: ObjectStore, proxy: StoreProxy) -> None:
        content = bytes(range(256)) * 1_000
        store.put("v1/x", content)
        for read in (
            lambda: store.get("v1/x").content,
            lambda: bytes(store.get_range("v1/x", 0, len(content))),
        ):
            proxy.decide = first(Spoil.CUT, "GET")
            assert read() == content  # the library asks for the rest
            proxy.decide = lambda _: Spoil.CUT
            with pytest.raises(TierError, match="the connection broke off"):
                read()
            proxy.decide = well

    @pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted"])
    def test_409_is_a_conflict(self, alone: StoreProxy, code: str) -> None:
        """Nothing was written; somebody else is writing it, and may fail."""
        alone.decide = lambda _: refused(409, code)
        for write in (
            lambda: at(alone).create("v1/x", b"1"),
            lambda: at(alone).replace("v1/x", b"1", '"e"'),
        ):
            with pytest.raises(ConflictError):
                write()
        assert alone.count("PUT") == 2

    def test_what_is_sent_again_is_the_same(
        self, alone: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each part is lost once, while others are read into memory that is used again."""
        size = 100_000
        monkeypatch.setattr(remote_store, "MOST_IN_REQUEST", size)
        path, parts = tmp_path / "file", [bytes([n]) * size for n in range(40)]
        path.write_bytes(b"".join(parts))
        sent: dict[str, list[bytes]] = {}

        def decide(request: Request) -> Spoil | Answer:
            if request.method != "PUT":
                return upload(request)
            bodies = sent.setdefault(request.path, [])
            bodies.append(request.body)
            return Spoil.UNREACHED if len(bodies) == 1 else Answer(200, {"etag": '"e"'}, b"")

        alone.decide = decide
        at(alone).put_file("v1/x", str(path), 40 * size)
        assert sorted(sent.values()) == [[part, part] for part in parts]

    @pytest.mark.parametrize("at_once", [1, 3])
    def test_parts_that_the_store_has_are_not_sent_again(
        self, alone: StoreProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
    ) -> None:
        """The line breaks off again and again in the middle of a file; what moves is told."""
        size = 100_000
        monkeypatch.setattr(remote_store, "MOST_IN_REQUEST", size)
        monkeypatch.setitem(remote_store._MANY, "backoff", remote_store._FEW["backoff"])
        path = tmp_path / "file"
        path.write_bytes(bytes(10 * size))
        sent, stored = Counter[str](), Counter[str]()

        def decide(request: Request) -> Spoil | Answer:
            if request.method != "PUT":
                return upload(request)
            part = request.path.partition("partNumber=")[2].partition("&")[0]
            sent[part] += 1
            if 0 < sent["5"] < 6:  # also for those that are sent beside it
                return Spoil.UNREACHED
            stored[part] += 1
            return Answer(200, {"etag": '"e"'}, b"")

        alone.decide = decide
        moved: list[int] = []
        at(alone).put_file("v1/x", str(path), 10 * size, at_once, moved.append)
        assert sum(moved) == 10 * size
        assert sent["5"] == 6
        assert stored == Counter(str(part) for part in range(1, 11))
        assert moved[: at_once + 1] == [0] * (at_once + 1), "those are still on their way"

    def test_who_hears_of_parts_can_end_the_upload(
        self, store: ObjectStore, proxy: StoreProxy, tmp_path: Path
    ) -> None:
        path, size = tmp_path / "file", 5 * MOST_IN_REQUEST
        with path.open("wb") as file:
            file.truncate(size)

        def moved(some: int) -> None:
            if some:
                raise TierError("not needed any more")

        with pytest.raises(TierError, match="not needed any more"):
            store.put_file("v1/x", str(path), size, 1, moved)
        assert list(store.listing("v1")) == []
        assert proxy.count("PUT") <= 3

    def test_a_part_that_never_arrives_leaves_nothing(
        self,
        store: ObjectStore,
        proxy: StoreProxy,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setitem(remote_store._MANY, "max_retries", 2)
        store = open_store(repr(store).partition(" ")[0], proxy.endpoint)
        path, size = tmp_path / "file", MOST_IN_REQUEST + 100
        with path.open("wb") as file:
            file.truncate(size)
        proxy.decide = lambda request: (
            Spoil.UNREACHED if "partNumber=2" in request.path else Spoil.NOTHING
        )
        with pytest.raises(TierError):
            store.put_file("v1/x", str(path), size)
        assert list(store.listing("v1")) == []
        assert proxy.count("DELETE") == 1, "the upload is given up, so it takes no room"


class TestVersitygw:
    """It looks at signatures and checksums."""

    @pytest.fixture
    def endpoint(
        self, store_server: Callable[[str], StoreServer], monkeypatch: pytest.MonkeyPatch
    ) -> str:
        return tier_in(store_server("versitygw"), monkeypatch).endpoint

    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            (
                "AWS_SECRET_ACCESS_KEY",
                "the secret key is wrong: correct AWS_SECRET_ACCESS_KEY (SignatureDoesNotMatch)",
            ),
            ("AWS_ACCESS_KEY_ID", f"{NO_KEY} (XAdminUserNotFound)"),
        ],
    )
    def test_wrong_credentials(
        self, endpoint: str, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
    ) -> None:
        monkeypatch.setenv(name, SECRET)
        store = open_store(f"s3://{BUCKET}/x", endpoint)
        for _, do in OPERATIONS.values():
            with pytest.raises(DeniedError) as told:
                do(store)
            assert str(told.value).endswith(f"s3://{BUCKET}/x at {endpoint}: {reason}")
        with pytest.raises(DeniedError):
            probe(store)

    def test_one_that_may_only_be_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for server in started("versitygw", tmp_path, "--readonly"):
            tier = tier_in(server, monkeypatch)
            store = open_store(tier.url, tier.endpoint)
            for write, arguments in ((store.put, ("v1/x", b"1")), (store.delete, (["v1/x"],))):
                with pytest.raises(DeniedError) as told:
                    write(*arguments)
                assert str(told.value).endswith(f" at {tier.endpoint}: {NO_RIGHT}")
            with pytest.raises(DeniedError, match="cannot write a probe"):
                probe(store)
            assert list(store.listing("v1")) == []

    def test_no_such_bucket(self, endpoint: str) -> None:
        store = open_store("s3://not-there/x", endpoint)
        for _, do in OPERATIONS.values():
            with pytest.raises(DeniedError, match="there is no such bucket: create it"):
                do(store)

    def test_wrong_region(self, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        with pytest.raises(DeniedError, match="the region is wrong: set AWS_REGION to us-east-1"):
            open_store(f"s3://{BUCKET}/x", endpoint).get("v1/x")

    @pytest.mark.parametrize("size", [100, MOST_IN_REQUEST + 100])
    def test_a_bit_that_turns_on_the_way(self, endpoint: str, tmp_path: Path, size: int) -> None:
        path = tmp_path / "file"
        path.write_bytes(bytes(size))
        with proxy_before(endpoint) as proxy:
            store = open_store(f"s3://{BUCKET}/flipped", proxy.endpoint)
            proxy.decide = lambda request: (
                Spoil.FLIPPED if request.method == "PUT" else Spoil.NOTHING
            )
            for write in (
                lambda: store.put_file("v1/x", str(path), size),
                lambda: store.create("v1/x", bytes(100)),
            ):
                with pytest.raises(TierError, match="the bytes were changed on the way"):
                    write()
            assert list(store.listing("v1")) == []

    def test_a_store_that_is_killed_and_started_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for server in started("versitygw", tmp_path):
            tier = tier_in(server, monkeypatch)
            store = open_store(tier.url, tier.endpoint)
            etag = store.create("v1/x", b"1")
            server.kill()
            with pytest.raises(TierError, match="nothing listens there"):
                store.replace("v1/x", b"2", etag)
            server.start()
            store.replace("v1/x", b"2", etag)
            assert store.get("v1/x").content == b"2"


def deleted(body: bytes) -> Answer:
    """The answer to a request to delete what is in it."""
    names = re.findall(rb"<Key>(.*?)</Key>", body)
    each = b"".join(b"<Deleted><Key>%s</Key></Deleted>" % name for name in names)
    return Answer(200, {}, b"<DeleteResult>%s</DeleteResult>" % each)


def upload(request: Request) -> Answer:
    """The answers to the beginning and the end of an upload in parts."""
    if request.path.endswith("uploads="):
        begun = b"<InitiateMultipartUploadResult><UploadId>1</UploadId>"
        return Answer(200, {}, begun + b"</InitiateMultipartUploadResult>")
    done = b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
    return Answer(200, {}, done)


class TestWhatIsSent:
    def headers(self, proxy: StoreProxy) -> dict[str, str]:
        return proxy.requests[-1].headers

    def test_uploads_are_not_signed_but_checked(
        self, alone: StoreProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alone.decide = lambda _: Answer(200, {"etag": '"e"'}, b"")
        store = at(alone)
        store.replace("v1/x", b"content", '"e"')
        assert self.headers(alone)["if-match"] == '"e"'
        for write in (store.put, store.create):
            write("v1/x", b"content")
            assert self.headers(alone)["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
            assert "x-amz-checksum-crc64nvme" in self.headers(alone)
        assert self.headers(alone)["if-none-match"] == "*"
        monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", "SHA256")
        at(alone).put("v1/x", b"content")
        assert "x-amz-checksum-sha256" in self.headers(alone)

    def test_the_session_token_and_the_region(
        self, alone: StoreProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alone.decide = lambda _: Answer(200, {"etag": '"e"'}, b"")
        monkeypatch.delenv("AWS_REGION", raising=False)
        monkeypatch.setenv("AWS_SESSION_TOKEN", "a-token")
        at(alone).put("v1/x", b"")
        assert self.headers(alone)["x-amz-security-token"] == "a-token"
        assert "/us-east-1/s3/" in self.headers(alone)["authorization"]
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
        at(alone).put("v1/x", b"")
        assert "/eu-north-1/s3/" in self.headers(alone)["authorization"]
        monkeypatch.setenv("AWS_REGION", "eu-west-1")
        at(alone).put("v1/x", b"")
        assert "/eu-west-1/s3/" in self.headers(alone)["authorization"]

    def test_the_endpoint_of_the_environment(
        self, alone: StoreProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        alone.decide = lambda _: Answer(200, {"etag": '"e"'}, b"")
        for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
            with monkeypatch.context() as patch:
                patch.setenv(name, alone.endpoint)
                store = open_store("s3://tier/p/")
                assert repr(store) == f"s3://tier/p at {alone.endpoint}"
                store.put("v1/x", b"")
        with monkeypatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
            at(alone).put("v1/x", b"")
        assert [request.path for request in alone.requests] == ["/tier/p/v1/x"] * 4

    def test_google_compares_generations(
        self, alone: StoreProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.google(alone, monkeypatch)
        answer = Answer(200, {"etag": '"e"', "x-goog-generation": "78"}, b"")
        alone.decide = lambda _: answer
        store = open_store("gs://bucket/p")
        assert store.create("v1/x", b"1") == "78"
        assert self.headers(alone)["x-goog-if-generation-match"] == "0"
        assert store.replace("v1/x", b"1", "77") == "78"
        assert self.headers(alone)["x-goog-if-generation-match"] == "77"

    def test_google_deletes_one_by_one_also_what_is_missing(
        self, alone: StoreProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.google(alone, monkeypatch)
        alone.decide = lambda request: (
            refused(404, "NoSuchKey") if request.path.endswith("0") else Answer(204, {}, b"")
        )
        open_store("gs://bucket/p").delete([f"v1/{n}" for n in range(50)])
        deleted = {request.path for request in alone.requests if request.method == "DELETE"}
        assert deleted == {f"/bucket/p%2Fv1%2F{n}" for n in range(50)}

    def google(self, alone: StoreProxy, patch: pytest.MonkeyPatch) -> None:
        account = {"gcs_base_url": alone.endpoint, "disable_oauth": True}
        account |= dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
        patch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
        patch.setenv("GOOGLE_ALLOW_HTTP", "true")

    def test_azure_compares_etags(self, alone: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", alone.endpoint)
        monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
        alone.decide = lambda _: Answer(201, {"etag": '"e"'}, b"")
        store = open_store("az://container/p")
        assert store.create("v1/x", b"1") == '"e"'
        assert self.headers(alone)["if-none-match"] == "*"
        store.replace("v1/x", b"1", '"d"')
        assert self.headers(alone)["if-match"] == '"d"'
        alone.decide = lambda _: refused(409, "BlobAlreadyExists")
        with pytest.raises(ConflictError):
            store.create("v1/x", b"1")

    def test_a_store_without_etags(self, alone: StoreProxy) -> None:
        def decide(request: Request) -> Answer:
            return Answer(200, {} if request.method == "PUT" else {"etag": '"e"'}, b"")

        alone.decide = decide
        with pytest.raises(TierError):
            at(alone).create("v1/x", b"1")

    def test_thousands_of_keys_are_deleted_in_thousands(self, alone: StoreProxy) -> None:
        alone.decide = lambda request: deleted(request.body)
        at(alone).delete([f"v1/{n}" for n in range(2_001)])
        assert [request.body.count(b"<Key>") for request in alone.requests] == [1000, 1000, 1]

    def test_keys_that_may_not_be_deleted(self, alone: StoreProxy) -> None:
        error = b"<Error><Key>p/v1/x</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
        alone.decide = lambda _: Answer(200, {}, b"<DeleteResult>" + error + b"</DeleteResult>")
        with pytest.raises(DeniedError, match=r"cannot delete v1/x in s3.* do not allow it: give"):
            at(alone).delete(["v1/x"])
