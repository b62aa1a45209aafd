"""Users, their password hashes and permissions.

A permission is three patterns for the names of streams in a virtual host, searched for in the
name as RabbitMQ does: "" matches nothing, ".*" everything, "^app-" that prefix. "$" is the end of
the name, also where a line end is the last character of it. Passwords are
kept as scrypt hashes. Checking one takes some 50 ms on purpose and happens in a thread, two at a
time at most; a password that was right once is then known by a keyed hash that lives as long as
the server, so clients with many connections do not pay for each.
"""

import hmac
import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import trio

from streamd.auth.throttle import LoginThrottle
from streamd.broker.catalog.catalog import Catalog
from streamd.broker.catalog.writer import CatalogWriter, Check, permitted
from streamd.broker.declared.rows import PermissionRow, UserRow
from streamd.net import threads
from streamd.operations.errors import NoSuch, Reason, Refused
from streamd.operations.names import Name, check_new
from streamd.operations.passwords import check_password, hash_password, is_own
from streamd.operations.rights import ADMINISTRATOR, Right
from streamd.patterns import MOST_LETTERS, PatternError, compiled, matches

logger = logging.getLogger(__name__)

MAX_NAME_BYTES = 255
NODE = Name("~node")  # no user: the nodes of a cluster, for each other
_CHECKS_AT_ONCE = 2  # each takes 16 MB and a core


class Account:
    """A user as somebody has entered, from then on until that counts no more.

    Who may still: everything that was begun by somebody who has entered, be it a connection, a
    session or a request, keeps the account, and asks it, or the `Rights` over it, after every wait.
    It ends for good when the user is deleted; what was entered with a password ends with that
    password, too. Another user of the same name, created later, is another account.

    Attributes:
        ended: why it counts no more, one sentence; empty while it does.
    """

    def __init__(self, name: Name) -> None:
        self.name = name
        self.ended = ""
        self._told: dict[object, Callable[[], None]] = {}

    @contextmanager
    def told(self, changed: Callable[[], None]) -> Iterator[None]:
        """In this block, call `changed` when it has ended, or its tags or permissions are others.

        That is before the change is answered; `changed` does not wait.
        """
        key = object()
        self._told[key] = changed
        try:
            yield
        finally:
            del self._told[key]

    def tell(self) -> None:
        """Tell listeners that its tags or permissions have changed."""
        for changed in list(self._told.values()):
            changed()

    def end(self, reason: str) -> None:
        """End the account, for the given reason."""
        self.ended = reason
        self.tell()


class _Accounts(NamedTuple):
    """The accounts of a user: one for password logins, one for logins by certificate or setting."""

    with_password: Account
    without: Account


class Rights:
    """What one user may do in one virtual host, as it is at the moment.

    Attributes:
        account: the user; once it has ended, it may do nothing.
    """

    def __init__(self, directory: "UserDirectory", account: Account, virtual_host: Name) -> None:
        self.account = account
        self._directory = directory
        self._virtual_host = virtual_host

    @property
    def user(self) -> Name:
        """The name of the user."""
        return self.account.name

    @property
    def may_enter(self) -> bool:
        """Whether the user may do anything at all there."""
        account, host = self.account, self._virtual_host
        permission = self._directory.permission(account.name, host)
        return not account.ended and permission is not None

    def allows(self, right: Right, name: Name) -> bool:
        """Whether the user has this right on the resource `name`."""
        account = self.account  # for each message of AMQP: as few calls as possible
        if account.ended:
            return False
        row = self._directory.permission(account.name, self._virtual_host)
        return row is not None and matches(row[2 + right], name[:MOST_LETTERS])

    def allows_any(self, name: Name, *rights: Right) -> bool:
        """Whether the user has one of these rights on the resource `name`."""
        return any(self.allows(right, name) for right in rights)

    def require(self, right: Right, name: Name) -> None:
        """Raise Refused unless the user has this right on the resource `name`."""
        if not self.allows(right, name):
            details = f"{self.user} may not {right.name.lower()} {name}"
            raise Refused(Reason.ACCESS_REFUSED, details)

    def require_super_stream(self, name: Name, partitions: Sequence[Name]) -> None:
        """Raise Refused unless the user may create or delete a super stream.

        Source: rabbitmq/rabbitmq-server, deps/rabbitmq_stream/src/rabbit_stream_utils.erl.
        """
        self.require(Right.CONFIGURE, name)
        self.require(Right.READ, name)
        for partition in partitions:
            self.require(Right.CONFIGURE, partition)
            self.require(Right.WRITE, partition)


class UserDirectory:
    """The users of a server and what they may do.

    Args:
        catalog: changes the catalog, in which they are kept.

    Attributes:
        node: the nodes of a cluster, for each other.
    """

    def __init__(self, catalog: CatalogWriter) -> None:
        self._catalog = catalog
        self._users: dict[Name, UserRow] = {}
        self._accounts: dict[Name, _Accounts] = {}
        self._permissions: dict[tuple[Name, Name], PermissionRow] = {}
        self._known: dict[Name, bytes] = {}  # user to keyed hash of the right password
        self._key = secrets.token_bytes(32)
        self.node = Account(NODE)
        self._checks = trio.CapacityLimiter(_CHECKS_AT_ONCE)
        self._throttle = LoginThrottle()

    async def open(
        self, catalog: Catalog, default_user: Name, default_password: str, virtual_host: Name
    ) -> None:
        """Read the catalog; a new one gets a first user, an administrator with all rights.

        Raises:
            CatalogError: it cannot be read.
            Refused: it cannot be written.
        """
        for user in await threads.in_thread(catalog.users):
            self._add(user)
        for row in await threads.in_thread(catalog.permissions):
            self.add_permission(row)
        if not self._users:
            digest = await threads.in_thread(hash_password, default_password.encode())
            user = UserRow(default_user, digest, (ADMINISTRATOR,))
            rights = PermissionRow(default_user, virtual_host, ".*", ".*", ".*")
            async with self._catalog.turn(is_answered=False) as turn:
                await turn.commit(lambda c: c.put_user(user), lambda c: c.put_permission(rights))
                self._add(user)
                self.add_permission(rights)

    def _add(self, user: UserRow) -> None:
        self._users[user.name] = user
        self._accounts[user.name] = _Accounts(Account(user.name), Account(user.name))

    def _replace(self, user: UserRow) -> None:
        """A user has another password, other tags, or both."""
        name, known = user.name, self._users[user.name]
        self._users[name] = user
        if user.password_hash != known.password_hash:
            self._known.pop(name, None)
            accounts = self._accounts[name]
            self._accounts[name] = accounts._replace(with_password=Account(name))
            accounts.with_password.end(f"the password of user '{name}' was changed")
        if user.tags != known.tags:
            self._tell(name)

    def _tell(self, name: Name) -> None:
        for account in self._accounts.get(name, ()):
            account.tell()

    # -- entering

    async def authenticate(self, name: Name, password: bytes, address: str) -> Account | None:
        """The user, as entered with its password, if that is right; takes as long when it is not.

        Args:
            name: of the user.
            password: as it was sent.
            address: where it comes from; after too many wrong ones from there it is not checked.
        """
        accounts = self._accounts.get(name)
        account = accounts and accounts.with_password
        seen = hmac.digest(self._key, password, "sha256")
        if self._is_known(name, seen):
            return account

        async def look() -> bool:
            return self._is_known(name, seen) or await self._check(name, password, seen)

        is_right = await self._throttle.judge(address, look)
        if is_right is None:
            logger.warning("%s: a password was not checked, after too many wrong ones", address)
        return account if is_right and account is not None and not account.ended else None

    def _is_known(self, name: Name, seen: bytes) -> bool:
        """Whether the user's password was found to be this one."""
        known = self._known.get(name)
        return known is not None and name in self._users and hmac.compare_digest(known, seen)

    async def _check(self, name: Name, password: bytes, seen: bytes) -> bool:
        user = self._users.get(name)
        kept = user.password_hash if user else ""
        async with self._checks:
            is_right: bool = await threads.in_thread(check_password, password, kept)
        current = self._users.get(name)
        if not is_right or current is None or current.password_hash != kept:
            return False  # wrong, or no longer the password
        self._known[name] = seen
        if not is_own(kept):
            await self._strengthen(current, password)
        return True

    async def _strengthen(self, user: UserRow, password: bytes) -> None:
        """Replace a hash that came from RabbitMQ, now that the password is known."""
        async with self._checks:
            digest = await threads.in_thread(hash_password, password)
        async with self._catalog.turn(is_answered=False) as turn:
            if self._users.get(user.name) is not user:
                return  # changed meanwhile
            stronger = user._replace(password_hash=digest)
            try:
                await turn.commit(lambda catalog: catalog.put_user(stronger))
                self._users[user.name] = stronger  # of the same password: nothing ends
            except Refused as refused:  # the old one still works
                logger.warning("the password hash of %s stays weak: %s", user.name, refused)

    def follow(self, users: Sequence[UserRow], permissions: Sequence[PermissionRow]) -> None:
        """Know what the catalog of the server says that writes, and nothing else."""
        wanted = {user.name: user for user in users}
        for name in [name for name in self._users if name not in wanted]:
            self._forget(name)
        for user in users:
            (self._replace if user.name in self._users else self._add)(user)
        before, self._permissions = (
            self._permissions,
            {(row.user, row.virtual_host): row for row in permissions},
        )
        changed = dict.fromkeys(
            user
            for user, host in (*before, *self._permissions)
            if before.get((user, host)) != self._permissions.get((user, host))
        )
        for name in changed:
            self._tell(name)

    def _forget(self, name: Name) -> None:
        """A user is not in the catalog any more."""
        del self._users[name]
        self._known.pop(name, None)
        self._permissions = {k: row for k, row in self._permissions.items() if k[0] != name}
        for account in self._accounts.pop(name):
            account.end(f"user '{name}' is deleted")

    def account(self, name: Name) -> Account | None:
        """The user of that name, as entered without its password."""
        accounts = self._accounts.get(name)
        return accounts and accounts.without

    def find_user(self, name: Name) -> UserRow | None:
        """The user of that name."""
        return self._users.get(name)

    def has_tag(self, account: Account, tag: str) -> bool:
        """Whether an account has not ended, and its user has this tag."""
        user = self._users.get(account.name)
        return not account.ended and user is not None and tag in user.tags

    def permission(self, user: Name, virtual_host: Name) -> PermissionRow | None:
        """What a user may do in a virtual host; None when it may not even enter."""
        if user == NODE:
            return PermissionRow(user, virtual_host, ".*", ".*", ".*")
        return self._permissions.get((user, virtual_host))

    # -- managing

    def users(self) -> list[UserRow]:
        """All users, by name."""
        return sorted(self._users.values())

    def permissions(self) -> list[PermissionRow]:
        """All permissions, by user and virtual host."""
        return sorted(self._permissions.values())

    async def put_user(
        self,
        name: Name,
        password: bytes | None = None,
        tags: Collection[str] | None = None,
        password_hash: str | None = None,
        check: Check = permitted,
        *,
        is_new: bool | None = None,
    ) -> bool:
        """Add a user or change one; None leaves a value unchanged, in a new user empty.

        What was begun with the password before ends.

        Args:
            name: of the user.
            password: the new one; with an empty one nobody can log in.
            tags: the new ones, all of them.
            password_hash: instead of a password, as passwords.read_hash gives it.
            check: see CatalogWriter.turn.
            is_new: True when the user must not exist yet, False when it must; None for either.

        Returns:
            Whether it is new.

        Raises:
            Refused: bad name, `is_new` is wrong, no administrator would be left, or the
                catalog cannot be written.
        """
        check()
        if name == NODE:
            details = f"no user can be called {NODE}: it stands for the nodes of a cluster"
            raise Refused(Reason.PRECONDITION_FAILED, details)
        check_new("a user", name, MAX_NAME_BYTES)
        if password:
            async with self._checks:
                password_hash = await threads.in_thread(hash_password, password)
        elif password is not None:
            password_hash = ""
        async with self._catalog.turn(check) as turn:
            if is_new is not None:
                (self.check_no_user if is_new else self.check_user)(name)
            known = self._users.get(name)
            user = known or UserRow(name, "", ())
            if password_hash is not None:
                user = user._replace(password_hash=password_hash)
            if tags is not None:
                self.check_tags(name, tags)
                user = user._replace(tags=tuple(sorted(set(tags))))
            await turn.commit(lambda catalog: catalog.put_user(user))
            (self._add if known is None else self._replace)(user)
            return known is None

    async def remove_user(self, name: Name, check: Check = permitted) -> None:
        """Remove a user, except the last administrator; see CatalogWriter.turn for `check`.

        Its connections are ended.

        Raises:
            Refused: no such user, it is the last administrator, or the catalog cannot be written.
        """
        async with self._catalog.turn(check) as turn:
            self._check_stays_managed(name)
            self.check_user(name)
            await turn.commit(lambda catalog: catalog.remove_user(name))
            self._forget(name)

    async def put_permission(self, row: PermissionRow, check: Check = permitted) -> bool:
        """Set what a user may do in a virtual host.

        Args:
            row: the new permissions.
            check: raises Refused unless the virtual host exists, and whoever asks may do this; see
                CatalogWriter.turn.

        Returns:
            Whether the user had no permissions there.

        Raises:
            Refused: no such user or virtual host, a pattern that cannot be compiled, or the
                catalog cannot be written.
        """
        for pattern in row[2:]:
            try:
                compiled(pattern)
            except PatternError as error:
                details = f"{pattern[:40]!r} is not a regular expression that is taken: {error}"
                raise Refused(Reason.PRECONDITION_FAILED, details) from error
        async with self._catalog.turn(check) as turn:
            self.check_user(row.user)
            is_new = self.permission(row.user, row.virtual_host) is None
            await turn.commit(lambda catalog: catalog.put_permission(row))
            self.add_permission(row)
            self._tell(row.user)
            return is_new

    async def remove_permission(
        self, user: Name, virtual_host: Name, check: Check = permitted
    ) -> None:
        """Remove the permissions of a user in a virtual host; see CatalogWriter.turn for `check`.

        Raises:
            Refused: it has no permissions there, or the catalog cannot be written.
        """
        async with self._catalog.turn(check) as turn:
            if (user, virtual_host) not in self._permissions:
                raise NoSuch(f"{user} has no permissions in {virtual_host}")
            await turn.commit(lambda catalog: catalog.remove_permission(user, virtual_host))
            del self._permissions[user, virtual_host]
            self._tell(user)

    def add_permission(self, row: PermissionRow) -> None:
        """Apply permissions of a user; the catalog has them already.

        A pattern that an earlier version has taken, and this one does not, allows nothing.
        """
        self._permissions[row.user, row.virtual_host] = row
        for right in Right:
            try:
                compiled(row[2 + right])
            except PatternError as error:
                logger.error(
                    "user %s may %s nothing in virtual host %s: the permission %.200r is not a "
                    "regular expression that is taken: %s",
                    row.user,
                    right.name.lower(),
                    row.virtual_host,
                    row[2 + right],
                    error,
                )

    def forget_virtual_host(self, name: Name) -> None:
        """Drop the permissions in a virtual host; the catalog has them no longer."""
        before = self._permissions
        self._permissions = {key: p for key, p in before.items() if key[1] != name}
        for user in dict.fromkeys(user for user, host in before if host == name):
            self._tell(user)

    def check_user(self, name: Name) -> None:
        """Raise Refused unless there is such a user."""
        if name not in self._users:
            raise NoSuch(f"there is no user {name}")

    def check_no_user(self, name: Name) -> None:
        """Raise Refused when there is such a user."""
        if name in self._users:
            raise Refused(Reason.PRECONDITION_FAILED, f"there is a user {name} already")

    def check_tags(self, name: Name, tags: Collection[str]) -> None:
        """Raise Refused when nobody could manage any more once a user has these tags."""
        if ADMINISTRATOR not in tags:
            self._check_stays_managed(name)

    def _check_stays_managed(self, name: Name) -> None:
        if {u.name for u in self._users.values() if ADMINISTRATOR in u.tags} == {name}:
            details = f"{name} is the last administrator: create another one first"
            raise Refused(Reason.PRECONDITION_FAILED, details)
