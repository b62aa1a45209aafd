"""What an open page says when it cannot be renewed."""

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.support.browser import Tab, needs_browser

pytestmark = needs_browser


def poll(tab: Tab) -> None:
    tab.page.evaluate("document.querySelector('[data-poll]').dispatchEvent(new Event('poll'))")


@pytest.mark.parametrize("path", ["/", "/connections"])
def test_figures_that_are_not_renewed_say_so(tab: Tab, path: str) -> None:
    tab.go(path)
    page, said = tab.page, tab.page.locator("#stale")
    refused = '<main><p class="problem">You may <b>not</b> &lt;i>.</p></main>'

    def refuse(route: Any) -> None:
        route.fulfill(status=403, body=refused, content_type="text/html")

    page.route("**/*", lambda route: route.abort())
    poll(tab)
    expect(said).to_contain_text("The server does not answer. What is shown here is of ")
    page.unroute_all()
    page.route("**/*", refuse)
    poll(tab)
    expect(said).to_contain_text("You may not <i>. What is shown here is of ")
    assert said.get_attribute("role") == "alert"
    tab.complaints.clear()  # the browser writes of what failed
    tab.check()
    page.unroute_all()
    poll(tab)
    expect(said).to_have_count(0)


def test_a_page_whose_login_has_ended_leads_to_the_login_page(tab: Tab) -> None:
    """As after a restart of the server, which knows no sessions."""
    tab.go("/connections")
    tab.context.clear_cookies()
    poll(tab)
    tab.page.wait_for_url("**/login")
