"""A real browser, driven from tests: Chromium with Playwright, and what it complains of."""

import asyncio
import os
import shutil
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest

Result = TypeVar("Result")
EXECUTABLE = (
    os.environ.get("CHROMIUM")
    or shutil.which("chromium")
    or shutil.which("chromium-browser")
    or shutil.which("google-chrome")
)
needs_browser = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(
        EXECUTABLE is None,
        reason="no Chromium is found: install it, or say where it is in CHROMIUM",
    ),
]
SECONDS = 60.0  # that a slow machine may take
_RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21aa", "wcag22aa"]}}
_OF_COLOURS = {"runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}}
_WATCH = """
window.violations = [];
document.addEventListener("securitypolicyviolation",
    (e) => window.violations.push(`${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}`));
"""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser, which asks nobody but this machine."""
    from playwright.sync_api import expect, sync_playwright  # noqa: PLC0415 - only with a browser

    expect.set_options(timeout=SECONDS * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=EXECUTABLE,
            headless=True,
            args=["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"],
        )
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """A tab of a browser, with a store of cookies of its own.

    Attributes:
        page: for Playwright.
        complaints: of the browser: violations of the policy, errors of scripts, answers that fail.
    """

    def __init__(self, browser: Any, base: str, **options: Any) -> None:
        # Without motion, so that colours are looked at when they have changed, not while they do.
        self.context = browser.new_context(base_url=base, reduced_motion="reduce", **options)
        self.context.set_default_timeout(SECONDS * 1000)
        self.context.add_init_script(_WATCH)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))

    def _hear(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text} {message.location}")

    def go(self, path: str) -> None:
        self.page.goto(path)

    def log_in(self, user: str = "guest", password: str = "guest") -> None:
        self.go("/login")
        self.page.get_by_label("User name").fill(user)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Log in").click()

    def check(self) -> None:
        """Nothing to complain of: neither the browser, nor for those who cannot see or point."""
        where = self.page.url
        found = [*self.page.evaluate("window.violations"), *self.complaints, *self.barriers(_RULES)]
        assert found == [], f"{where}: {found}"
        self.page.emulate_media(color_scheme="dark")
        found = self.barriers(_OF_COLOURS)
        assert found == [], f"{where} in dark: {found}"
        self.page.emulate_media(color_scheme="light")

    def barriers(self, rules: Any = _RULES) -> list[str]:
        """What axe finds."""
        from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415

        found = Axe().run(self.page, options=rules).response["violations"]
        return [
            f"{item['id']}: {item['help']}: {node['html'][:200]} {node['failureSummary'][:300]}"
            for item in found
            for node in item["nodes"]
        ]

    def close(self) -> None:
        self.context.close()


def beside(work: Coroutine[Any, Any, Result]) -> Result:
    """Run what a client does: Playwright has an event loop of its own in this thread."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()
