"""Passwords: nobody finds one by trying, and none is ever shown."""

import base64
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trio

from streamd.auth import throttle as guesses
from streamd.auth.throttle import LoginThrottle
from streamd.config import Config
from streamd.net.addresses import network_of
from streamd.operations import passwords
from streamd.wire.amqp091 import methods as m
from streamd.wire.amqp091.codec import PROTOCOL_HEADER, method_frame
from streamd.wire.stream import ResponseCode, commands as c
from streamd.wire.stream.fields import Pair
from tests.auth.test_users import greet
from tests.http_api.test_http_api import Http
from tests.support.amqp import connect
from tests.support.server import Harness, MemoryTransport, Peer

FAILURE = ResponseCode.AUTHENTICATION_FAILURE


class TestGuessing:
    async def test_over_many_connections(
        self, server: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A thousand at once: some are looked at, the others are wrong unseen."""
        seen: list[bytes] = []
        real = passwords._scrypt
        monkeypatch.setattr(passwords, "_scrypt", lambda *a: seen.append(a[0]) or real(*a))
        codes: list[int] = []

        async def guess(number: int) -> None:
            peer = await greet(server)
            data = b"\0guest\0guess%d" % number
            codes.append(await peer.code(c.SaslAuthenticate, "PLAIN", data))

        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(guess, number)
        assert codes == [FAILURE] * 1000
        assert 10 <= len(seen) <= 20 + trio.current_time() - started
        assert trio.current_time() - started < 10

    async def test_known_users_log_in_meanwhile(self, server: Harness) -> None:
        await server.peer()
        access = server.server.directory
        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(access.authenticate, "guest", b"%d" % number, "memory")
            before = trio.current_time()
            await server.peer()
            assert trio.current_time() == before

    async def test_other_users_log_in_soon_after(self, server: Harness) -> None:
        access = server.server.directory
        async with trio.open_nursery() as nursery:
            for number in range(1000):
                nursery.start_soon(access.authenticate, "guest", b"%d" % number, "192.0.2.1")
        before = trio.current_time()
        assert await access.authenticate("guest", b"guest", "192.0.2.2")  # from elsewhere, at once
        assert trio.current_time() == before
        await access.put_user("guest", b"guest")  # not known any more
        await trio.sleep(15)
        assert await access.authenticate("guest", b"guest", "192.0.2.1")

    async def test_many_with_the_right_password_at_once(self, server: Harness) -> None:
        """After a restart all clients come back together; none of them is refused."""
        access = server.server.directory
        for number in range(30):
            await access.put_user(f"user{number}", b"right")
        found: list[bool] = []

        async def enter(number: int) -> None:
            name = f"user{number % 30}"
            account = await access.authenticate(name, b"right", "192.0.2.1")
            found.append(account is not None and account.name == name)

        async with trio.open_nursery() as nursery:
            for number in range(900):
                nursery.start_soon(enter, number)
        assert found == [True] * 900

    @pytest.mark.parametrize(
        ("one", "other", "are_one"),
        [
            ("192.0.2.1", "192.0.2.1", True),
            ("192.0.2.1", "192.0.2.2", False),
            ("192.0.2.1", "::ffff:192.0.2.1", True),
            ("2001:db8::1", "2001:db8::ffff:1", True),
            ("2001:db8::1", "2001:db8:0:1::1", False),
            ("fe80::1%eth0", "fe80::2", True),
            ("somewhere", "somewhere", True),
        ],
    )
    def test_addresses(self, one: str, other: str, are_one: bool) -> None:
        assert (network_of(one) == network_of(other)) is are_one

    async def test_from_more_addresses_than_are_remembered(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(guesses, "MAX_ADDRESSES", 5)
        judge = LoginThrottle()

        async def wrong() -> bool:
            return False

        for number in range(100):
            assert await judge.judge(f"192.0.2.{number}", wrong) is False
        assert len(judge._addresses) == 5


# -- never shown

SECRETS = [f"hush-{number:02}" for number in range(12)]


@pytest.fixture
def secret() -> Callable[[], str]:
    """Another one each time."""
    return iter(SECRETS).__next__


def forms(secret: str) -> list[str]:
    """A secret as text, and in the forms that logged bytes can have."""
    raw = secret.encode()
    return [secret, raw.hex(), base64.b64encode(raw).decode().rstrip("=")]


async def test_are_in_no_log_and_no_answer(
    server: Harness,
    peer: Peer,
    secret: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setattr(MemoryTransport, "certificate_user", "guest")
    told: list[object] = []

    async def manage(operation: str, **arguments: str) -> None:
        pairs = tuple(Pair(*pair) for pair in arguments.items())
        told.append(await peer.ask(c.Manage, operation, pairs))

    right = secret()
    await manage("user.add", name="ada", password=right, tags="administrator")
    await manage("permission.set", user="ada", vhost="/", read=".*")
    await manage("user.add", name="ada", password=secret())  # exists
    await manage("user.passwd", name="nobody", password=secret())
    await manage("user.passwd", name="ada", password=right)
    await manage("user.list")

    for mechanism, password in (
        ("PLAIN", right),
        ("PLAIN", secret()),
        ("AMQPLAIN", right),
        ("AMQPLAIN", secret()),
        ("EXTERNAL", secret()),
        ("NONE", secret()),
    ):
        data = f"\0ada\0{password}".encode()
        if mechanism == "AMQPLAIN":
            data = b"".join(
                bytes([len(k)]) + k + b"S" + len(v).to_bytes(4, "big") + v
                for k, v in ((b"LOGIN", b"ada"), (b"PASSWORD", password.encode()))
            )
        told += [c.SaslAuthenticate(1, mechanism, data), c.Manage(1, "x", (Pair("p", password),))]
        stream = await greet(server)
        told.append(await stream.ask(c.SaslAuthenticate, mechanism, data))
        amqp = connect(server)
        start = m.ConnectionStartOk({}, mechanism, data, "en_US")
        told += [start, m.ConnectionSecureOk(data), m.ConnectionUpdateSecret(data, "")]
        await amqp.send_bytes(PROTOCOL_HEADER + method_frame(0, start))
        with trio.move_on_after(5), suppress(trio.EndOfChannel):
            while True:
                told.append(await amqp.receive())

    http = Http(server)
    rows: list[dict[str, Any]] = [
        {"name": "eve", "password": right, "tags": ""},
        {"password": secret(), "tags": ""},
        {"name": "\n", "password": secret(), "tags": ""},
        {"name": "eve", "password_hash": secret(), "tags": ""},
        {"name": "eve", "password_hash": secret(), "hashing_algorithm": "x", "tags": ""},
    ]
    for row in rows:
        for method, path, body in (
            ("POST", "definitions", {"users": [row]}),
            ("PUT", f"users/{row.get('name', 'x')}".replace("\n", "%0A"), row),
        ):
            answer = await http.ask(method, path, body, "ada", right)
            assert answer.status_code in (201, 204, 400), answer.text
            told.append(answer.text)
    told.append((await http.ask("GET", "whoami", None, "ada", SECRETS[0] + "x")).text)
    told += [*server.server.directory.users(), Config(password=right)]

    everything = caplog.text + "".join(map(repr, told)) + "".join(map(str, told))
    assert "login refused" in everything
    assert "user put: name ada" in everything
    for shown in (form for password in SECRETS for form in forms(password)):
        assert shown not in everything
    assert "scrypt$" not in everything
