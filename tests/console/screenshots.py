"""Pictures of the console for the documentation: `python -m tests.console.screenshots [FOLDER]`.

A server in a process of its own, with something in it; a browser looks at each page. With
`--all`, also in dark and on a narrow screen, for those who work on the console.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from tests.support.browser import Tab, chromium
from tests.support.process import ServerProcess

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "images"
_COLOURS = 256


class Shot(NamedTuple):
    """A page.

    Attributes:
        name: of the file, after "console-".
        path: of the page.
        height: of the picture; 0 for the whole page.
    """

    name: str
    path: str
    height: int = 800


SHOTS = (
    Shot("login", "/login", 500),
    Shot("overview", "/"),
    Shot("streams", "/streams", 620),
    Shot("stream", "/streams/%2F/orders", 1100),
    Shot("filters", "/streams/%2F/orders/filters", 800),
    Shot(
        "messages",
        "/streams/%2F/orders/messages?sql=customer+%3D+'customer-7'+AND+total+%3E+100&limit=5",
        1150,
    ),
    Shot("message", "/streams/%2F/orders/messages/12345", 760),
    Shot("create-stream", "/create-stream", 900),
)
MORE = (
    Shot("change", "/streams/%2F/orders/change", 0),
    Shot("publish", "/streams/%2F/orders/publish", 0),
    Shot("publish-again", "/streams/%2F/orders/publish?again=12345", 0),
    Shot("truncate", "/streams/%2F/orders/truncate", 0),
    Shot("delete", "/streams/%2F/orders/delete", 0),
    Shot("empty-stream", "/streams/%2F/returns", 0),
    Shot("bad-search", "/streams/%2F/orders/messages?sql=region+%3D+%3D+'EU'", 0),
    Shot("many-messages", "/streams/%2F/orders/messages?key=4711&start=first", 0),
    Shot("tail", "/streams/%2F/clicks/messages?live=1", 0),
    Shot("no-messages", "/streams/%2F/returns/messages", 0),
    Shot("no-message", "/streams/%2F/returns/messages/7", 0),
    Shot("super-streams", "/super-streams", 0),
    Shot("exchanges", "/exchanges", 0),
    Shot("exchange", "/exchanges/%2F/amq.default", 0),
    Shot("connections", "/connections", 0),
    Shot("user", "/users/guest", 0),
    Shot("virtual-host", "/vhosts/%2F", 0),
    Shot("permissions", "/permissions?user=guest&vhost=/&name=orders", 0),
    Shot("definitions", "/definitions", 0),
    Shot("nothing-found", "/streams?q=%3Cscript%3E", 0),
    Shot("missing", "/streams/%2F/missing", 0),
)


def take(tab: Tab, shot: Shot, folder: Path, width: int = 1280, kind: str = "") -> Path:
    tab.page.set_viewport_size({"width": width, "height": shot.height or 800})
    tab.go(shot.path)
    tab.page.wait_for_timeout(600)  # charts are drawn
    file = folder / f"console-{shot.name}{kind}.png"
    tab.page.screenshot(path=str(file), full_page=not shot.height or bool(kind))
    image: Any = Image.open(file).convert("RGB")
    often = sorted(image.getcolors(1 << 24), reverse=True)[:_COLOURS]  # those of surfaces stay
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in often for part in colour])
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(file, optimize=True)
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=FOLDER)
    parser.add_argument("--all", action="store_true", help="also in dark and on a narrow screen")
    parser.add_argument("--only", default="", help="pages whose name has this in it")
    parser.add_argument("--seconds", type=float, default=90, help="of traffic before the pictures")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, chromium() as browser:
        server = ServerProcess(Path(data, "data"), "--http-port", "0").start()
        command = [sys.executable, "-m", "tests.console.load", server.uri]
        load = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        try:
            assert load.stdout is not None
            assert load.stdout.readline() == "ready\n"
            time.sleep(options.seconds)
            look(browser, f"http://127.0.0.1:{server.http_port}", options)
        finally:
            load.kill()
            load.wait()
            server.end()


def look(browser: Any, base: str, options: argparse.Namespace) -> None:
    kinds: list[tuple[str, str, int]] = [("", "light", 1280)]
    if options.all:
        kinds += [("-dark", "dark", 1280), ("-narrow", "light", 360)]
    for kind, scheme, width in kinds:
        tab = Tab(browser, base, color_scheme=scheme)
        for shot in SHOTS + (MORE if options.all else ()):
            if options.only in shot.name:
                if shot.name != "login" and not tab.context.cookies():
                    tab.log_in()
                file = take(tab, shot, options.folder, width, kind)
                print(f"{file.name}: {file.stat().st_size:,} bytes", *tab.complaints)
                tab.complaints.clear()
        tab.close()


if __name__ == "__main__":
    main()
