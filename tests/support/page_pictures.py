"""Renews the pictures in docs/images of what people see: `PYTHONPATH=. python tests/support/page_pictures.py`.

A daemon runs two files with the engine that has no model; a band of ten minutes needs ten minutes, so the pictures show the
first one.
"""

import io
import json
import sys
import tempfile
import time
from pathlib import Path

from browser import Browser
from daemon_process import Daemon, request_lines
from rich.console import Console

from daemon.top_view import render_top

IMAGES = Path(__file__).parents[2] / "docs" / "images"
VIEWS = (
    ("page-light.png", "light", 1200, 1000, False),
    ("page-dark.png", "dark", 1200, 1000, False),
    ("page-phone.png", "light", 390, 1500, True),
)


def main():
    folder = Path(tempfile.mkdtemp())
    daemon = Daemon(
        folder,
        "fake:step_ms=20,eos_every=60,load_ms=6000",
    )
    daemon.config.write_text(daemon.config.read_text().replace("max_tokens: 16", "max_tokens: 200"))
    daemon.start()
    browser = Browser(folder)
    try:
        browser.open(f"http://127.0.0.1:{daemon.port()}/")
        browser.until(lambda: "async" in browser.text() and "\nready\n" in browser.text(), "ready")
        time.sleep(8)
        daemon.drop("eval.jsonl", request_lines(150) + "{broken\n")
        daemon.wait_done("eval")
        time.sleep(4)
        daemon.drop("reviews-2026-11.jsonl", request_lines(900))
        daemon.drop("summaries.jsonl", request_lines(250))
        time.sleep(18)
        for name, scheme, width, height, mobile in VIEWS:
            browser.resize(width, height, mobile=mobile)
            browser.prefer(scheme)
            time.sleep(1.5)
            (IMAGES / name).write_bytes(browser.screenshot())
        console = Console(record=True, width=118, file=io.StringIO())
        console.print(render_top(json.loads(daemon.get("/status")), console.width))
        console.save_svg(str(IMAGES / "top.svg"), title="gapless top")
    finally:
        browser.close()
        daemon.kill()


if __name__ == "__main__":
    sys.exit(main())
