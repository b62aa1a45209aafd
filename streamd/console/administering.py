"""What the pages of administrators share: what was deleted meanwhile, and what a form did wrong."""

from collections.abc import Iterable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from streamd.console.forms import Form
from streamd.console.site import Site
from streamd.http_api.messages import BadRequest
from streamd.operations.errors import NoSuch, Reason, Refused, ReservedName
from streamd.operations.names import Name, as_sent
from streamd.operations.virtual_hosts import ListHostNames

BAD_REQUEST = 400


def gone(what: str, name: str) -> NoSuch:
    """What a page says of something that is not there, or no more."""
    return NoSuch(f"there is no {what} {name}")


def problem_of(error: Refused | BadRequest) -> str:
    """What a form that cannot be carried out says; one sentence.

    Raises:
        Refused: it is not about the form, but about the user's rights, or what it is about is
            gone.
    """
    if isinstance(error, BadRequest):
        return str(error)
    is_of_rights = error.reason is Reason.ACCESS_REFUSED and not isinstance(error, ReservedName)
    if is_of_rights or isinstance(error, NoSuch):
        raise error
    return error.details


async def host_names(site: Site, request: Request) -> list[Name]:
    """The virtual hosts that the user of a request may look into."""
    return await site.service.ask(request, ListHostNames())


async def hosts_chosen(site: Site, request: Request) -> tuple[list[Name], Name | None]:
    """The virtual hosts that the user may see, and the one of them that the address asks for."""
    hosts = await host_names(site, request)
    chosen = as_sent(request.query_params.get("vhost", ""))
    return hosts, chosen if chosen in hosts else None


@dataclass(frozen=True, slots=True)
class Deletion:
    """Something that is to be deleted, as the page that asks for its name shows it.

    Attributes:
        kind: what it is, as "virtual host".
        consequences: what goes with it; sentences.
        then: where it goes when the thing is gone.
    """

    kind: str
    name: str
    consequences: Iterable[str]
    here: str
    back: str
    then: str

    def is_meant(self, form: Form) -> bool:
        """Whether a form names it."""
        return form.raw("name") == self.name

    async def ask(self, site: Site, request: Request, *, is_again: bool = False) -> Response:
        """The page that asks for the name, or asks again, because another one was typed."""
        return await site.show(
            request,
            "delete.html",
            BAD_REQUEST if is_again else 200,
            deletion=self,
            problem=f"the name is not that of the {self.kind}: nothing was deleted"
            if is_again
            else "",
        )

    def done(self, site: Site, request: Request) -> Response:
        """What follows when it is gone."""
        return site.go(request, self.then, f"The {self.kind} {self.name} was deleted.")
