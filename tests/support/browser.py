"""A real Chromium, driven over the WebDriver protocol by its own driver."""

import base64
import json
import subprocess
import urllib.request

from programs import free_port, need_program
from waiting import wait_until

OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run",
)  # fmt: skip
DEADLINE_S = 60.0


class Browser:
    """One window. `close` ends it."""

    def __init__(self, folder):
        chromium = need_program("chromium", "chromium")
        driver = need_program("chromedriver", "chromium-driver")
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        self.log = folder / "chromedriver.log"
        self._process = subprocess.Popen(
            [driver, f"--port={port}", f"--log-path={self.log}"], stdout=subprocess.DEVNULL
        )
        self.until(lambda: self._call("GET", "/status")["ready"], "chromedriver ready")
        arguments = [*OPTIONS, f"--user-data-dir={folder / 'profile'}"]
        chrome = {"binary": chromium, "args": arguments}
        wanted = {"browserName": "chrome", "goog:chromeOptions": chrome, "goog:loggingPrefs": {"browser": "ALL"}}
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._url += f"/session/{session['sessionId']}"

    def open(self, url):
        self._call("POST", "/url", {"url": url})

    def run(self, script, *arguments):
        """Run JavaScript; what it returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def until(self, condition, what):
        """Wait until a condition holds; return what it gives."""
        return wait_until(condition, what, deadline_s=DEADLINE_S, log=self.log, every_s=0.05, not_yet=OSError)

    def text(self):
        """What a person can read."""
        return self.run("return document.body.innerText")

    def resize(self, width, height, *, mobile=False):
        """Pretend a screen."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile
        )

    def prefer(self, scheme):
        """`light` or `dark`, as the person has it."""
        self.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key):
        """One key, as `Tab` or `Enter`."""
        codes = {"Tab": 9, "Enter": 13}
        for kind in ("rawKeyDown", "keyUp"):
            self.devtools("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])
        if key == "Enter":
            self.devtools("Input.dispatchKeyEvent", type="char", text="\r")

    def screenshot(self):
        """A PNG of what is seen."""
        return base64.b64decode(self.devtools("Page.captureScreenshot", format="png")["data"])

    def devtools(self, command, **parameters):
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def complaints(self):
        """What the browser's console says of errors since the last call: scripts, policies, missing files."""
        return [entry for entry in self._call("POST", "/se/log", {"type": "browser"}) if entry["level"] == "SEVERE"]

    def close(self):
        try:
            self._call("DELETE", "")
        finally:
            self._process.kill()
            self._process.wait()

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data, kind, method=method)  # noqa: S310  our own driver
        with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
            return json.load(response)["value"]
