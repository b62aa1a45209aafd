"""Users, permissions, virtual hosts: what each user may do; open connections feel changes."""

import struct
from pathlib import Path
from typing import Any

import pytest
import trio

from streamd.auth import users as access
from streamd.net import threads
from streamd.operations import passwords
from streamd.operations.names import as_sent
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.support.server import FIRST, OK, Harness, Peer, harness, with_peer

REFUSED, NO_STREAM = ResponseCode.ACCESS_REFUSED, ResponseCode.STREAM_DOES_NOT_EXIST
PRECONDITION_FAILED = ResponseCode.PRECONDITION_FAILED
FAILURE, SASL_ERROR = ResponseCode.AUTHENTICATION_FAILURE, ResponseCode.SASL_ERROR


async def manage(peer: Peer, operation: str, **arguments: str) -> Any:
    pairs = tuple(Pair(*item) for item in arguments.items())
    return await peer.ask(c.Manage, operation, pairs)


async def must(peer: Peer, operation: str, **arguments: str) -> list[dict[str, str]]:
    answer = await manage(peer, operation, **arguments)
    assert answer.code == OK, answer.reason
    return [dict(row) for row in answer.rows]


async def add(peer: Peer, name: str, *patterns: str, host: str = "/", tags: str = "") -> None:
    await must(peer, "user.add", name=name, password=f"{name}-secret", tags=tags)
    if patterns:
        names = ("configure", "write", "read")
        given = dict(zip(names, patterns, strict=True))
        await must(peer, "permission.set", user=name, vhost=host, **given)


async def greet(server: Harness, *, is_local: bool = True) -> Peer:
    """A peer that may show its password next."""
    peer = server.connect(is_local=is_local)
    await peer.ask(c.PeerProperties, ())
    await peer.ask(c.SaslHandshake)
    return peer


async def enter(server: Harness, user: str, host: str = "/", *, code: int = OK) -> Peer:
    peer = await greet(server)
    assert await peer.code(c.SaslAuthenticate, "PLAIN", f"\0{user}\0{user}-secret".encode()) == OK
    await peer.expect(c.Tune)
    await peer.send(c.Tune(1 << 20, 0))
    assert await peer.code(c.Open, host) == code
    return peer


# What a RabbitMQ 4.3.6 exported for the password "guest".
FROM_RABBITMQ = "rabbit_password_hashing_sha256$ZKb8WbtWUXB4dv3t9RNw1kg0pZUvxkXcIf94EbpaXNFRmPEH"


class TestPasswords:
    def test_are_kept_as_hashes(self) -> None:
        kept = passwords.hash_password(b"secret")
        assert kept.startswith("scrypt$16384$8$1$")
        assert "secret" not in kept
        assert kept != passwords.hash_password(b"secret")
        assert passwords.check_password(b"secret", kept)
        assert not passwords.check_password(b"secreT", kept)
        assert not passwords.check_password(b"", kept)
        assert not passwords.check_password(b"", "")

    async def test_of_users_that_do_not_exist_take_the_same_work(
        self, server: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[bytes] = []
        real = passwords._scrypt
        monkeypatch.setattr(passwords, "_scrypt", lambda *a: calls.append(a[0]) or real(*a))
        await server.server.directory.put_user("moved", password_hash=FROM_RABBITMQ)
        for user in ("guest", "nobody", "moved"):
            assert not await server.server.directory.authenticate(user, b"guess", "127.0.0.1")
        assert calls == [b"guess"] * 3

    async def test_of_rabbitmq_let_in_and_are_replaced(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as server:
            found = server.server.directory
            await found.put_user("moved", password_hash=FROM_RABBITMQ)
            assert not await found.authenticate("moved", b"Guest", "127.0.0.1")
            assert await found.authenticate("moved", b"guest", "127.0.0.1")
            (kept,) = (user.password_hash for user in found.users() if user.name == "moved")
            assert kept.startswith("scrypt$")
        async with harness(tmp_path) as server:
            assert await server.server.directory.authenticate("moved", b"guest", "127.0.0.1")
            assert not await server.server.directory.authenticate("moved", b"Guest", "127.0.0.1")

    @pytest.mark.parametrize(
        ("algorithm", "text"),
        [
            ("md5", "YWJj"),
            (passwords.RABBITMQ_DEFAULT, "YWJj"),
            (passwords.RABBITMQ_DEFAULT, "?"),
            ("rabbit_password_hashing_sha512", FROM_RABBITMQ.split("$")[1]),
            ("scrypt", "YWJj"),
            ("scrypt", "scrypt$16385$8$1$YWJj$" + "A" * 86 + "=="),
            ("scrypt", "scrypt$1048576$8$1$YWJj$" + "A" * 86 + "=="),
            ("scrypt", "scrypt$16384$8$99$YWJj$" + "A" * 86 + "=="),
            ("scrypt", "scrypt$16384$8$1$YWJj$YWJj"),
            ("scrypt", "scrypt$16384$8$1$=$" + "A" * 86 + "=="),
        ],
    )
    def test_hashes_that_are_invalid_or_too_costly(self, algorithm: str, text: str) -> None:
        with pytest.raises(ValueError, match="hash"):
            passwords.read_hash(algorithm, text)

    def test_hashes_go_out_and_come_back(self) -> None:
        for kept in ("", FROM_RABBITMQ, passwords.hash_password(b"secret")):
            assert passwords.read_hash(*passwords.algorithm_of(kept)) == kept

    async def test_that_were_right_once_are_known(
        self, server: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert await server.server.directory.authenticate("guest", b"guest", "127.0.0.1")
        monkeypatch.setattr(access, "check_password", None)
        assert await server.server.directory.authenticate("guest", b"guest", "127.0.0.1")

    async def test_changed_while_one_is_checked(
        self, server: Harness, peer: Peer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was right then lets nobody in, nor is it remembered as right."""
        await add(peer, "ada")
        directory, in_thread = server.server.directory, threads.in_thread
        other = passwords.hash_password(b"other")

        async def late(work: Any, *arguments: Any) -> Any:
            outcome = await in_thread(work, *arguments)
            if work is passwords.check_password:
                await directory.put_user(as_sent("ada"), password_hash=other)
            return outcome

        with monkeypatch.context() as patch:
            patch.setattr(threads, "in_thread", late)
            assert not await directory.authenticate(as_sent("ada"), b"ada-secret", "127.0.0.1")
        assert not await directory.authenticate(as_sent("ada"), b"ada-secret", "127.0.0.1")
        assert await directory.authenticate(as_sent("ada"), b"other", "127.0.0.1")

    async def test_survive_a_restart(self, tmp_path: Path) -> None:
        async with harness(tmp_path) as server:
            await add(await server.peer(), "ada", "", "", "^s$")
        async with with_peer(tmp_path, password="changed in the settings") as (server, peer):
            await peer.create("s")
            ada = await enter(server, "ada")
            assert await ada.code(c.StreamStats, "s") == OK

    def test_are_nowhere_in_the_data_folder(self, tmp_path: Path) -> None:
        async def main() -> None:
            async with harness(tmp_path) as server:
                await add(await server.peer(), "ada")

        trio.run(main)
        kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert b"scrypt" in kept
        assert b"ada-secret" not in kept


class TestMechanisms:
    def table(self, **fields: str) -> bytes:
        return b"".join(
            bytes([len(name)]) + name.encode() + struct.pack(">cI", b"S", len(text)) + text.encode()
            for name, text in fields.items()
        )

    async def test_amqplain(self, server: Harness) -> None:
        peer = await greet(server)
        data = self.table(LOGIN="guest", PASSWORD="guest")
        assert await peer.code(c.SaslAuthenticate, "AMQPLAIN", data) == OK

    async def test_amqplain_cut_anywhere(self, server: Harness) -> None:
        whole = self.table(LOGIN="guest", PASSWORD="guest")
        for cut in range(len(whole)):
            peer = await greet(server)
            assert await peer.code(c.SaslAuthenticate, "AMQPLAIN", whole[:cut]) == SASL_ERROR
            await peer.ended()

    async def test_anonymous_when_it_is_switched_on(self, tmp_path: Path) -> None:
        async with harness(tmp_path, anonymous_user="guest") as server:
            peer = server.connect()
            await peer.ask(c.PeerProperties, ())
            assert "ANONYMOUS" in (await peer.ask(c.SaslHandshake)).mechanisms
            assert await peer.code(c.SaslAuthenticate, "ANONYMOUS", b"") == OK

    @pytest.mark.parametrize("mechanism", ["ANONYMOUS", "EXTERNAL", "", "SCRAM"])
    async def test_not_offered(self, server: Harness, mechanism: str) -> None:
        peer = await greet(server)
        code = ResponseCode.SASL_MECHANISM_NOT_SUPPORTED
        assert await peer.code(c.SaslAuthenticate, mechanism, b"\0guest\0guest") == code
        await peer.ended()

    async def test_another_user_from_afar(self, server: Harness, peer: Peer) -> None:
        await add(peer, "ada")
        far = await greet(server, is_local=False)
        assert await far.code(c.SaslAuthenticate, "PLAIN", b"\0ada\0ada-secret") == OK


class TestPermissions:
    async def test_what_each_command_takes(self, server: Harness, peer: Peer) -> None:
        """Refused before it is said whether there is such a stream."""
        await peer.create("s")
        await add(peer, "nobody", "", "", "")
        user = await enter(server, "nobody")
        for name in ("s", "none"):
            for command in (
                (c.Create, name, ()),
                (c.Delete, name),
                (c.DeclarePublisher, 1, "", name),
                (c.QueryPublisherSequence, "p", name),
                (c.Subscribe, 1, name, FIRST, 1, ()),
                (c.QueryOffset, "r", name),
                (c.StreamStats, name),
                (c.ResolveOffsetSpec, name, FIRST, ()),
                (c.Partitions, name),
                (c.Route, "key", name),
                (c.CreateSuperStream, name, ("p",), ("0",), ()),
                (c.DeleteSuperStream, name),
            ):
                assert await user.code(*command) == REFUSED, command
            assert (await user.ask(c.Metadata, (name,))).streams[0][1] == REFUSED
            assert (await user.ask(c.DescribeStreams, (name,))).streams[0][1] == REFUSED
        assert (await user.ask(c.DescribeStreams, ())).streams == ()

    async def test_patterns(self, server: Harness, peer: Peer) -> None:
        await peer.create("app-in")
        await peer.create("app-out")
        await add(peer, "app", "^tmp-", "-out$", "^app-")
        user = await enter(server, "app")
        assert await user.code(c.Create, "tmp-1", ()) == OK
        assert await user.code(c.Create, "my-tmp-1", ()) == REFUSED
        assert await user.code(c.DeclarePublisher, 1, "", "app-out") == OK
        assert await user.code(c.DeclarePublisher, 2, "", "app-in") == REFUSED
        assert await user.code(c.Subscribe, 1, "app-in", FIRST, 1, ()) == OK
        answer = await user.ask(c.Metadata, ("app-in", "app-out", "tmp-1", "x-out"))
        assert [found.code for found in answer.streams] == [OK, OK, REFUSED, NO_STREAM]

    async def test_a_change_is_felt_by_open_connections(self, server: Harness, peer: Peer) -> None:
        await peer.create("s")
        await add(peer, "app", "", ".*", ".*")
        user = await enter(server, "app")
        await user.declare("s")
        await must(peer, "permission.set", user="app", vhost="/", read="none")
        assert await user.code(c.StreamStats, "s") == REFUSED
        # Publishers and subscriptions stay until the client renews its secret.
        assert await user.code(c.SaslAuthenticate, "PLAIN", b"\0app\0app-secret") == OK
        assert await user.expect(c.MetadataUpdate) == c.MetadataUpdate(6, "s")


class TestNewSecrets:
    @pytest.mark.parametrize(
        ("mechanism", "data", "code"),
        [
            ("PLAIN", b"\0guest\0guest", OK),
            ("PLAIN", b"\0guest\0wrong", FAILURE),
            ("PLAIN", b"\0ada\0ada-secret", ResponseCode.SASL_CANNOT_CHANGE_USERNAME),
            ("AMQPLAIN", b"", ResponseCode.SASL_CANNOT_CHANGE_MECHANISM),
        ],
    )
    async def test_judged(self, peer: Peer, mechanism: str, data: bytes, code: int) -> None:
        await add(peer, "ada")
        began = trio.current_time()
        assert await peer.code(c.SaslAuthenticate, mechanism, data) == code
        if code == OK:
            assert await peer.code(c.StreamStats, "s") == NO_STREAM
        else:
            assert trio.current_time() - began == pytest.approx(3)
            await peer.ended()


class TestVirtualHosts:
    async def test_streams_of_one_name_in_two(self, server: Harness, peer: Peer) -> None:
        await peer.create("s")
        await must(peer, "vhost.add", name="team/a")
        await must(peer, "user.passwd", name="guest", password="guest-secret")
        await peer.ended()  # it had entered with the password before
        peer = await enter(server, "guest")
        other = await enter(server, "guest", "team/a")
        assert await other.code(c.StreamStats, "s") == NO_STREAM
        await other.begin("s")
        await other.store([b"x"])
        assert (await peer.ask(c.StreamStats, "s")).statistics[0].value == -1
        hosts = await must(peer, "vhost.list")
        assert hosts == [{"name": "/", "streams": "1"}, {"name": "team/a", "streams": "1"}]
        await must(peer, "vhost.delete", name="team/a")
        await other.expect(c.MetadataUpdate)
        await trio.sleep(6)
        await other.ended()
        assert len(list((server.data / "streams").glob("*/*"))) == 0  # the other one was never used
        await enter(server, "guest", "team/a", code=ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE)

    async def test_entered_only_with_permission(self, server: Harness, peer: Peer) -> None:
        await add(peer, "ada")
        await enter(server, "ada", code=ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE)
        await enter(server, "ada", "none", code=ResponseCode.VIRTUAL_HOST_ACCESS_FAILURE)

    async def test_streams_survive_a_restart(self, tmp_path: Path) -> None:
        async with with_peer(tmp_path) as (server, peer):
            await must(peer, "vhost.add", name="a")
            await add(peer, "ada", ".*", ".*", ".*", host="a")
            await (await enter(server, "ada", "a")).create("s")
        async with harness(tmp_path) as server:
            assert await (await enter(server, "ada", "a")).code(c.StreamStats, "s") == OK


class TestManaging:
    async def test_is_for_administrators(self, server: Harness, peer: Peer) -> None:
        await add(peer, "ada", ".*", ".*", ".*")
        user = await enter(server, "ada")
        answer = await manage(user, "user.list")
        assert (answer.code, answer.reason) == (REFUSED, "ada is not an administrator")
        await add(peer, "root", ".*", ".*", ".*", tags="administrator")
        root = await enter(server, "root")
        await must(root, "user.delete", name="ada")
        await must(root, "user.delete", name="guest")
        assert await must(root, "user.list") == [{"name": "root", "tags": "administrator"}]
        for gone in (user, peer):
            await gone.ended()

    async def test_permissions(self, peer: Peer) -> None:
        await add(peer, "ada", "a", "b", "c")
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        assert await must(peer, "permission.list") == [
            {"user": "ada", "vhost": "/", "configure": "a", "write": "b", "read": "c"},
            {"user": "guest", "vhost": "/"} | everything,
        ]
        await must(peer, "permission.clear", user="ada", vhost="/")
        assert len(await must(peer, "permission.list")) == 1

    @pytest.mark.parametrize(
        ("operation", "arguments", "reason"),
        [
            ("user.add", {"name": "guest", "password": "x"}, "a user guest already"),
            ("user.add", {"name": "ada"}, "password is missing"),
            ("user.add", {"name": "a\nb", "password": "x"}, "has the character U+000A"),
            ("user.add", {"name": "x" * 256, "password": "x"}, "256 bytes, expected 1 to 255"),
            ("user.delete", {"name": "ada"}, "no user ada"),
            ("user.delete", {"name": "guest"}, "the last administrator"),
            ("user.passwd", {"name": "ada", "password": "x"}, "no user ada"),
            ("user.tags", {"name": "ada"}, "no user ada"),
            ("user.tags", {"name": "guest"}, "the last administrator"),
            ("vhost.add", {"name": "/"}, "a virtual host / already"),
            ("vhost.delete", {"name": "none"}, "no virtual host none"),
            ("permission.set", {"user": "guest", "vhost": "none"}, "no virtual host none"),
            ("permission.set", {"user": "ada", "vhost": "/"}, "no user ada"),
            ("permission.set", {"user": "guest", "vhost": "/", "read": "("}, "is not a regular"),
            ("permission.clear", {"user": "ada", "vhost": "/"}, "there is no user ada"),
            ("permission.clear", {"user": "guest", "vhost": "x"}, "no virtual host x"),
            ("server.explode", {}, "there is no operation 'server.explode'"),
        ],
    )
    async def test_refusals(
        self, peer: Peer, operation: str, arguments: dict[str, str], reason: str
    ) -> None:
        answer = await manage(peer, operation, **arguments)
        assert answer.code == PRECONDITION_FAILED
        assert reason in answer.reason
