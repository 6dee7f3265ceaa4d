"""The status page in a real browser: what it shows of a real daemon, and what it makes of hostile names."""

import time
from contextlib import contextmanager
from dataclasses import replace

import pytest
from browser import Browser
from daemon_process import Daemon, request_lines
from site_views import HOSTILE, READY, STARTING, views_of

from daemon.batch_object import BatchStatus
from daemon.http import HttpServer
from daemon.logs import LogTail
from daemon.status import ConfigStatus

TOKEN = "t0ken"  # noqa: S105  of this test
CONTRAST = """
const levels = (color) => color.match(/[\\d.]+/g).slice(0, 3).map(Number).map((value) => value / 255)
  .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const light = (color) => { const [r, g, b] = levels(color); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const behind = (element) => {
  for (; element; element = element.parentElement) {
    const color = getComputedStyle(element).backgroundColor;
    if (color !== "rgba(0, 0, 0, 0)") return color;
  }
};
const poor = [];
for (const element of document.querySelectorAll("body *")) {
  const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!hasText || !element.checkVisibility()) continue;
  const [one, other] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
  const ratio = (one + 0.05) / (other + 0.05);
  if (ratio < 4.5) poor.push([element.textContent.slice(0, 40), element.className, ratio]);
}
return poor;
"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """One for all tests of this file: each opens a page of its own."""
    found = Browser(tmp_path_factory.mktemp("browser"))
    yield found
    found.close()


@pytest.fixture
def page(browser):
    """The browser with an ordinary screen, and at the end nothing to complain of."""
    browser.resize(1280, 1000)
    browser.prefer("light")
    browser.complaints()
    yield browser
    assert browser.complaints() == []
    browser.open("about:blank")


@contextmanager
def served(status=READY, **kwargs):
    """A page of made-up status; its address."""
    log = kwargs.pop("log", None)
    server = HttpServer("127.0.0.1", 0, views=views_of(status, log=log, **kwargs.pop("views", {})), **kwargs)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.port}/"
    finally:
        server.close()


def is_drawn(browser):
    return browser.run("return document.documentElement.dataset.drawn === 'yes'")


def show(browser, url):
    browser.open(url)
    browser.until(lambda: is_drawn(browser), "page drawn")


def live(status):
    """A snapshot that is never old."""
    return lambda: replace(status, taken_s=time.monotonic(), started_s=time.monotonic() - 100)


def test_a_real_daemon_is_followed_from_its_start_to_its_death(browser, tmp_path):
    """Engine, band, progress, outcome, report and log appear by themselves; so does the loss of the connection."""
    daemon = Daemon(tmp_path, "fake:step_ms=10,eos_every=40")
    daemon.start()
    try:
        browser.resize(1280, 1000)
        show(browser, f"http://127.0.0.1:{daemon.port()}/")
        browser.until(lambda: browser.run("return document.getElementById('state').textContent") == "ready", "ready")
        daemon.drop("reviews.jsonl", request_lines(400) + "{broken\n")
        progress = (
            "const bar = document.querySelector('#running progress'); return bar && bar.value > 1 && bar.max === 401"
        )
        browser.until(lambda: browser.run(progress), "progress of a file of 401 requests")
        browser.until(lambda: "of 401" in browser.text() and "in progress" in browser.text(), "counts")
        browser.until(
            lambda: browser.run("return document.querySelectorAll('.band .k-busy').length > 0"), "a busy band"
        )
        assert "busy" in browser.run("return document.querySelector('.band').getAttribute('aria-label')")
        browser.until(lambda: browser.run("return document.querySelector('#ended a')"), "the end of the file")
        row = browser.run("return document.querySelector('#ended tbody tr').innerText")
        assert [word in row for word in ("p/reviews.jsonl", "completed", "401", "1")] == [True] * 4
        browser.until(
            lambda: "reviews.jsonl is done" in browser.run("return document.getElementById('log').innerText"), "log"
        )
        assert browser.complaints() == []
        address = browser.run("return document.querySelector('#ended a').href")
        daemon_report = daemon.get(address.partition(str(daemon.port()))[2])
        assert "400 completed, 1 refused" in daemon_report
        daemon.kill()
        browser.until(lambda: "connection lost" in browser.text(), "the loss of the connection")
    finally:
        if daemon.process.poll() is None:
            daemon.kill()
    browser.open("about:blank")
    browser.complaints()


def test_a_hostile_name_stays_text(page):
    """In every place that a name or a line of the log can come to."""
    tail = LogTail()
    tail.emit(_record(HOSTILE))
    files = (replace(READY.pipelines[0].files[0], name=HOSTILE),)
    ended = (replace(READY.pipelines[0].ended[0], name=HOSTILE),)
    engines = (replace(READY.engines[0], name=HOSTILE, model=HOSTILE, detail=HOSTILE, stall_s=-1.0),)
    pipeline = replace(
        READY.pipelines[0],
        files=files,
        ended=ended,
        paused_because=HOSTILE,
        name=HOSTILE.replace("\ud800", ""),
        left_files=(HOSTILE,),
    )
    status = replace(READY, engines=engines, pipelines=(pipeline,), config=ConfigStatus(0.0, error=HOSTILE))
    with served(live(status), log=tail) as url:
        show(page, url)
        assert page.run("return document.title") == "Gapless"
        assert page.run("return document.querySelectorAll('main img, main script, .notice img').length") == 0
        count = "return document.body.textContent.split('<img src=x onerror=').length - 1"
        assert page.run(count) >= 9


def _record(message):
    import logging

    return logging.LogRecord("x", logging.ERROR, "x", 1, message, (), None)


def test_what_is_wrong_stands_at_the_top(page):
    """Reasons, a paused pipeline, a refused configuration."""
    pipeline = replace(READY.pipelines[0], paused_because="the disk is full")
    status = replace(STARTING, pipelines=(pipeline,), config=ConfigStatus(0.0, error="gapless.yaml:3: what was found"))
    with served(live(status)) as url:
        show(page, url)
        text = page.text()
    assert "not ready" in text
    assert "engine big is starting: load 40 %" in text
    assert "chat takes no files: the disk is full" in text
    assert "gapless.yaml:3: what was found" in text
    below = text.index("Engines")
    for words in ("engine big is starting", "chat takes no files", "The last change of the configuration was refused"):
        assert text.index(words) < below
    assert text.index("gapless.yaml:3") > below


def test_what_is_left_in_an_inbox_is_named_with_the_reason(page):
    """As in gapless status: whoever dropped a spreadsheet looks here, and finds none in the counts."""
    pipeline = replace(
        READY.pipelines[0], left_files=("a.xlsx: its extension is none", "b.jsonl: it is a symbolic link")
    )
    with served(live(replace(READY, pipelines=(pipeline,)))) as url:
        show(page, url)
        text = page.text()
    assert "chat: a.xlsx: its extension is none\nchat: b.jsonl: it is a symbolic link" in text
    assert text.index("in the inbox of chat") < text.index("a.xlsx") < text.index("a<b>.jsonl")
    with served(live(READY)) as url:
        show(page, url)
        assert not page.run("return document.getElementById('left').checkVisibility()")


def test_a_file_that_could_not_be_run_has_no_number_of_requests(page):
    """None is not nothing."""
    (ended,) = READY.pipelines[0].ended
    failed = replace(ended, status=BatchStatus.FAILED, num_done=0, num_failed=0)
    status = replace(READY, pipelines=(replace(READY.pipelines[0], ended=(failed, ended)),))
    with served(live(status)) as url:
        show(page, url)
        rows = "return [...document.querySelectorAll('#ended td.number')].map((cell) => cell.textContent)"
        assert page.run(rows) == ["-", "-", "1 min 1 s", "9", "2", "1 min 1 s"]


def test_a_token_is_asked_for_once(page, tmp_path):
    """Then the page works, events included; scripts cannot read the cookie."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    with served(live(READY), token_file=file) as url:
        page.open(url)
        page.complaints()  # the page is answered with 401
        assert "Token" in page.text()
        page.run("document.getElementById('token').value = 'guess'; document.querySelector('button').click()")
        page.until(lambda: "This is not the token." in page.text(), "a word on the wrong token")
        page.complaints()
        page.run(
            "document.getElementById('token').value = arguments[0]; document.querySelector('button').click()", TOKEN
        )
        page.until(lambda: is_drawn(page), "page drawn")
        assert page.run("return document.cookie") == ""
        assert page.run("return location.pathname") == "/"


def test_keys_alone_reach_everything(page):
    """The first stop leads to the files; links and log can be reached, and focus outlives a redrawing."""
    with served(live(READY)) as url:
        show(page, url)
        stops = []
        for _ in range(6):
            page.press("Tab")
            stops.append(page.run("const a = document.activeElement; return a.id || a.textContent"))
        assert stops[:5] == ["To the files", "JSON", "metrics", "report", "log"]
        page.run("document.querySelector('#ended a').focus()")
        drawn = page.run("const row = document.querySelector('#ended tbody tr'); row.dataset.old = '1'; return true")
        assert drawn
        page.until(lambda: page.run("return !document.querySelector('#ended tbody tr').dataset.old"), "a redrawing")
        assert page.run("return document.activeElement.textContent") == "report"
        show(page, url)
        page.press("Tab")
        page.press("Enter")
        page.until(lambda: page.run("return location.hash") == "#files", "the jump to the files")


@pytest.mark.parametrize("width", [320, 390, 768])
def test_a_small_screen_needs_no_sideways_scrolling(page, width):
    """Not even with a long name without a blank."""
    files = (replace(READY.pipelines[0].files[0], name="x" * 180 + ".jsonl"),)
    status = replace(READY, pipelines=(replace(READY.pipelines[0], files=files),))
    with served(live(status)) as url:
        page.resize(width, 800, mobile=True)
        show(page, url)
        assert page.run("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_in_both_schemes(page, scheme):
    """Each text against what is behind it: at least 4.5 to 1, as WCAG asks for."""
    pipeline = replace(READY.pipelines[0], paused_because="the disk is full")
    status = replace(STARTING, pipelines=(pipeline,), config=ConfigStatus(0.0, error="found what"))
    with served(live(status)) as url:
        page.prefer(scheme)
        show(page, url)
        assert page.run(CONTRAST) == []
        back = page.run("return getComputedStyle(document.body).backgroundColor")
    levels = [int(part) for part in back.removeprefix("rgb(").removesuffix(")").split(",")]
    assert (sum(levels) > 3 * 128) == (scheme == "light")


def test_a_script_that_got_in_would_not_run(page):
    """The policy stops inline scripts and other servers, should markup ever be made of a name."""
    with served(live(READY)) as url:
        show(page, url)
        page.run(
            "const script = document.createElement('script'); script.textContent = 'document.title = `owned`';"
            "document.body.append(script); const image = new Image(); image.src = 'http://127.0.0.1:9/x.png';"
        )
        found = page.until(page.complaints, "what the policy stops")
        assert "Content Security Policy" in " ".join(entry["message"] for entry in found)
        assert page.run("return document.title") == "Gapless"
        time.sleep(0.2)
        page.complaints()
