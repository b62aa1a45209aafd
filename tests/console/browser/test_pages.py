"""Pages of the console in a real browser."""

import pytest

from tests.support.browser import Tab, needs_browser

pytestmark = needs_browser


def test_log_in_and_out(stranger: Tab) -> None:
    page = stranger.page
    stranger.go("/streams?q=x")
    assert page.get_by_role("heading", name="Log in").is_visible()
    stranger.check()
    page.get_by_label("User name").fill("guest")
    page.get_by_label("Password").fill("guest")
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/streams?q=x")
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login")
    page.go_back()
    assert page.get_by_role("heading", name="Streams").count() == 0
    assert stranger.complaints == []


def test_a_refused_login(stranger: Tab) -> None:
    stranger.log_in(password="guess")
    assert stranger.page.get_by_role("alert").inner_text() == "User or password is wrong."
    assert stranger.page.get_by_label("User name").input_value() == "guest"
    stranger.check()


@pytest.mark.parametrize("path", ["/", "/streams", "/create-stream"])
def test_pages(tab: Tab, path: str) -> None:
    tab.go(path)
    assert tab.page.locator("h1").count() == 1
    tab.check()


def test_a_stream_is_created_and_deleted(tab: Tab) -> None:
    page = tab.page
    page.get_by_role("link", name="Streams", exact=True).click()
    page.get_by_role("link", name="Create stream").click()
    page.get_by_label("Name", exact=True).fill("made here")
    page.get_by_role("button", name="Create", exact=True).click()
    assert page.get_by_role("status").inner_text() == "The stream made here was created."
    assert page.get_by_role("heading", level=1).inner_text() == "made here"
    tab.check()
    page.get_by_role("link", name="Delete").click()
    tab.check()
    page.get_by_label("Name of the stream").fill("made there")
    page.get_by_role("button", name="Delete").click()
    assert "nothing was deleted" in page.get_by_role("alert").inner_text()
    page.get_by_label("Name of the stream").fill("made here")
    page.get_by_role("button", name="Delete").click()
    assert page.get_by_role("status").inner_text() == "The stream made here was deleted."
    assert page.get_by_role("link", name="made here").count() == 0
