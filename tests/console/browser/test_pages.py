"""Pages of the console in a real browser."""

from typing import Any

from playwright.sync_api import expect

from clients import connect
from tests.support.browser import Tab, beside, needs_browser
from tests.support.process import ServerProcess

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
    expect(page.get_by_role("heading", name="Streams")).to_have_count(0)
    assert stranger.complaints == []


def test_a_refused_login(stranger: Tab) -> None:
    stranger.log_in(password="guess")
    assert stranger.page.get_by_role("alert").inner_text() == "User or password is wrong."
    assert stranger.page.get_by_label("User name").input_value() == "guest"
    stranger.check()


def test_what_screen_readers_tell(stranger: Tab, served: ServerProcess) -> None:
    """The outline of pages, as golden text: what is a heading, a link, a field, and its name."""
    page = stranger.page
    stranger.go("/login")
    expect(page.locator("body")).to_match_aria_snapshot("""
        - link "Skip to the content"
        - banner:
          - link "streamd"
        - main:
          - heading "Log in" [level=1]
          - textbox "User name"
          - textbox "Password"
          - button "Log in"
        - contentinfo
        """)
    stranger.log_in()
    beside(make(served.uri, "a stream to read aloud"))
    stranger.go("/streams?q=aloud")
    expect(page.locator("body")).to_match_aria_snapshot("""
        - link "Skip to the content"
        - banner:
          - link "streamd"
          - button "Pause updates"
          - button "Dark"
          - button "Log out"
          - navigation "Pages":
            - list:
              - listitem:
                - link "Overview"
              - listitem:
                - link "Streams"
        - main:
          - heading "Streams" [level=1]
          - link "Create stream"
          - search:
            - searchbox "Search names": aloud
            - button "Search"
          - region "List of streams":
            - table:
              - rowgroup:
                - row:
                  - columnheader "Name":
                    - link "Name"
                  - columnheader "Messages"
              - rowgroup:
                - row:
                  - rowheader "a stream to read aloud":
                    - link "a stream to read aloud"
          - navigation "Pages of the list"
        """)
    page.get_by_role("link", name="a stream to read aloud").click()
    expect(page.locator("main")).to_match_aria_snapshot("""
        - main:
          - heading "a stream to read aloud" [level=1]
          - navigation "Of this stream":
            - list:
              - listitem:
                - link "Stream"
              - listitem:
                - link "Messages"
          - figure "Where consumers are":
            - heading "Where consumers are" [level=2]
          - heading "Consumers" [level=2]
          - heading "Publishers" [level=2]
          - heading "Stored offsets" [level=2]
          - heading "Standing selectors" [level=2]
          - heading "Arguments" [level=2]
          - group: /\\d+ arguments with their defaults/
        """)


def test_a_page_renews_itself(tab: Tab, served: ServerProcess) -> None:
    """What was unfolded stays so; a drawing gets new figures; updates can be paused."""
    page = tab.page
    tab.go("/")
    expect(page.locator(".plot canvas")).to_have_count(4)
    assert page.locator("#plot-messages canvas").evaluate("e => e.isSame = true")
    page.get_by_text("Messages as a table").click()
    streams = page.locator(".tiles a").first
    before = int(streams.inner_text())
    beside(make(served.uri, "one more"))
    expect(streams).to_have_text(str(before + 1))
    expect(page.locator("#table-messages")).to_have_attribute("open", "")
    assert page.locator("#plot-messages canvas").evaluate("e => e.isSame")
    tab.check()
    page.get_by_role("button", name="Pause updates").click()
    with page.expect_response("**/"):
        page.get_by_role("button", name="Resume updates").click()
    page.get_by_role("button", name="Pause updates").click()
    tab.go("/streams")
    expect(page.get_by_role("button", name="Resume updates")).to_be_visible()


async def make(uri: str, name: str) -> None:
    async with connect(uri) as client:
        await client.create(name)


def test_light_and_dark(tab: Tab) -> None:
    """As the system says, until somebody chooses; pages and drawings follow."""
    page = tab.page
    page.emulate_media(color_scheme="dark")
    tab.go("/")
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.emulate_media(color_scheme="light")
    light = page.evaluate(colour)
    assert light != dark
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(colour) == dark
    assert tab.barriers() == []
    tab.go("/streams")
    assert page.evaluate(colour) == dark
    page.emulate_media(color_scheme="dark")
    page.get_by_role("button", name="Light").click()
    assert page.evaluate(colour) == light
    assert tab.barriers() == []


def test_the_keyboard_reaches_everything(tab: Tab, served: ServerProcess) -> None:
    page = tab.page
    beside(make(served.uri, "a stream among others"))
    tab.go("/streams")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    seen = []
    for _ in range(12):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.textContent.trim()"))
    assert {"Create stream", "Search", "Name"} <= set(seen)


def test_pages_work_without_scripts(browser: Any, served: ServerProcess) -> None:
    tab = Tab(browser, f"http://127.0.0.1:{served.http_port}", java_script_enabled=False)
    tab.log_in()
    page = tab.page
    page.get_by_role("link", name="Streams", exact=True).click()
    page.get_by_role("link", name="Create stream").click()
    page.get_by_label("Name", exact=True).fill("without scripts")
    page.get_by_role("button", name="Create", exact=True).click()
    assert page.get_by_role("status").inner_text() == "The stream without scripts was created."
    page.get_by_text("More", exact=True).click()
    page.get_by_role("link", name="Delete…").click()
    page.get_by_label("Name of the stream").fill("without scripts")
    page.get_by_role("button", name="Delete").click()
    assert page.get_by_role("status").inner_text() == "The stream without scripts was deleted."
    tab.close()


def test_a_stream_is_created_and_deleted(tab: Tab) -> None:
    page = tab.page
    page.get_by_role("link", name="Streams", exact=True).click()
    page.get_by_role("link", name="Create stream").click()
    page.get_by_label("Name", exact=True).fill("made here")
    page.get_by_role("button", name="Create", exact=True).click()
    assert page.get_by_role("status").inner_text() == "The stream made here was created."
    assert page.get_by_role("heading", level=1).inner_text() == "made here"
    tab.check()
    page.get_by_text("More", exact=True).click()
    page.get_by_role("link", name="Delete…").click()
    tab.check()
    page.get_by_label("Name of the stream").fill("made there")
    page.get_by_role("button", name="Delete").click()
    assert "nothing was done" in page.get_by_role("alert").inner_text()
    page.get_by_label("Name of the stream").fill("made here")
    page.get_by_role("button", name="Delete").click()
    assert page.get_by_role("status").inner_text() == "The stream made here was deleted."
    expect(page.get_by_role("link", name="made here")).to_have_count(0)
