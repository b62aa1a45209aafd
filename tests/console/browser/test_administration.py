"""Pages of administrators in a real browser: making and deleting everything, and who may not."""

import json
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.exceptions import ConnectionClosedByBroker
from playwright.sync_api import expect

from tests.support.browser import Tab, needs_browser
from tests.support.process import ServerProcess

pytestmark = needs_browser
HOSTILE = "<script>alert(1)</script>\u202e\"'"


def press(tab: Tab, name: str) -> None:
    tab.page.get_by_role("button", name=name, exact=True).click()


def follow(tab: Tab, name: str) -> None:
    tab.page.get_by_role("link", name=name, exact=True).click()


def said(tab: Tab) -> str:
    return str(tab.page.get_by_role("status").first.inner_text())


def delete(tab: Tab, kind: str, name: str) -> None:
    follow(tab, "Delete")
    tab.page.get_by_label(f"Name of the {kind}").fill(name)
    press(tab, "Delete")
    assert said(tab) == f"The {kind} {name} was deleted."


def test_a_user_from_its_creation_to_its_deletion(tab: Tab) -> None:
    page = tab.page
    follow(tab, "Users")
    follow(tab, "Create user")
    page.get_by_label("Name", exact=True).fill(HOSTILE)
    page.get_by_label("Password", exact=True).fill("one")
    page.get_by_label("Password, again").fill("two")
    page.get_by_label("monitoring").check()
    press(tab, "Create")
    assert "the two passwords are not the same" in page.get_by_role("alert").inner_text()
    assert page.get_by_label("monitoring").is_checked()
    tab.complaints.clear()  # of the status 400
    tab.check()
    page.get_by_label("Password", exact=True).fill("one")
    page.get_by_label("Password, again").fill("one")
    press(tab, "Create")
    assert page.get_by_role("heading", level=1).inner_text() == HOSTILE
    press(tab, "Set permissions")
    page.get_by_label("May read").fill(f"^{HOSTILE[:8]}")
    tab.check()
    press(tab, "Set permissions")
    assert said(tab) == f"The permissions of {HOSTILE} in / are set."
    tab.check()
    follow(tab, "Permissions")
    page.get_by_label("User", exact=True).fill(HOSTILE)
    page.get_by_label("Stream or exchange").fill("<script>x")
    press(tab, "Try")
    assert "may read, but may not configure or write <script>x" in said(tab)
    tab.check()
    follow(tab, "Users")
    tab.check()
    page.get_by_role("link", name="<script>").click()
    delete(tab, "user", HOSTILE)
    expect(page.get_by_role("link", name="<script>")).to_have_count(0)


def test_a_virtual_host_and_what_is_in_it(tab: Tab) -> None:
    page = tab.page
    follow(tab, "Virtual hosts")
    follow(tab, "Create virtual host")
    page.get_by_label("Name", exact=True).fill("a/b <i>")
    press(tab, "Create")
    tab.check()
    follow(tab, "Super streams")
    follow(tab, "Create super stream")
    page.get_by_label("Name", exact=True).fill("clicks")
    page.get_by_label("Virtual host").select_option("a/b <i>")
    page.get_by_label("Or routing keys").fill("eu\n<us>")
    press(tab, "Create")
    expect(page.get_by_role("row", name="clicks-<us>")).to_have_count(1)
    tab.check()
    follow(tab, "its bindings")
    expect(page.get_by_role("button", name="Unbind")).to_have_count(2)
    tab.check()
    follow(tab, "Exchanges")
    follow(tab, "Create exchange")
    page.get_by_label("Name", exact=True).fill("logs")
    page.get_by_label("Virtual host").select_option("a/b <i>")
    page.get_by_label("Type").select_option("topic")
    press(tab, "Create")
    page.get_by_label("Its name").fill("clicks-eu")
    page.get_by_label("Routing key", exact=True).fill("<b>.#")
    press(tab, "Bind")
    assert said(tab) == "clicks-eu is bound to logs."
    page.get_by_role("button", name="Unbind").click()
    assert said(tab) == "clicks-eu is no longer bound to logs in that way."
    delete(tab, "exchange", "logs")
    tab.check()
    follow(tab, "Super streams")
    follow(tab, "clicks")
    delete(tab, "super stream", "clicks")
    follow(tab, "Virtual hosts")
    follow(tab, "a/b <i>")
    delete(tab, "virtual host", "a/b <i>")


def test_a_connection_is_closed(tab: Tab, served: ServerProcess) -> None:
    about = {"connection_name": HOSTILE}
    address = pika.ConnectionParameters("127.0.0.1", served.amqp_port, client_properties=about)
    client = pika.BlockingConnection(address)
    follow(tab, "Connections")
    tab.check()
    row = tab.page.get_by_role("row", name="<script>")
    row.get_by_role("link").click()
    assert tab.page.get_by_role("heading", level=1).inner_text() == HOSTILE
    tab.check()
    tab.page.get_by_label("Reason").fill("a test <b>")
    press(tab, "Close")
    assert "is being closed" in said(tab)
    with pytest.raises(ConnectionClosedByBroker, match="a test <b>"):
        client.process_data_events(5)
    assert tab.complaints == []


def test_definitions_are_downloaded_and_uploaded(tab: Tab, tmp_path: Path) -> None:
    follow(tab, "Definitions")
    tab.check()
    with tab.page.expect_download() as begun:
        press(tab, "Download")
    file = tmp_path / "definitions.json"
    begun.value.save_as(file)
    document = json.loads(file.read_bytes())
    assert document["users"][0]["name"] == "guest"
    document["vhosts"].append({"name": "<uploaded>"})
    document["queues"].append({"name": "<q>", "vhost": "/", "type": "classic", "durable": True})
    file.write_text(json.dumps(document))
    tab.page.get_by_label("File").set_input_files(file)
    press(tab, "Upload")
    assert said(tab) == "The file was taken over, but for what is listed below."
    expect(
        tab.page.get_by_role("listitem").filter(has_text="queue <q>: not a stream")
    ).to_have_count(1)
    tab.check()
    tab.go("/vhosts/%3Cuploaded%3E")
    delete(tab, "virtual host", "<uploaded>")


def test_without_scripts_and_while_others_delete(browser: Any, served: ServerProcess) -> None:
    base = f"http://127.0.0.1:{served.http_port}"
    tab, other = Tab(browser, base, java_script_enabled=False), Tab(browser, base)
    tab.log_in()
    follow(tab, "Virtual hosts")
    follow(tab, "Create virtual host")
    tab.page.get_by_label("Name", exact=True).fill("plain")
    press(tab, "Create")
    follow(tab, "Delete")
    tab.page.get_by_label("Name of the virtual host").fill("plain")
    other.log_in()
    other.go("/vhosts/plain")
    delete(other, "virtual host", "plain")
    press(tab, "Delete")
    alert = tab.page.get_by_role("alert").inner_text()
    assert alert == "There is no virtual host plain: somebody may have deleted it meanwhile."
    other.close()
    tab.close()
