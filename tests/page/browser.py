"""browser.py: a headless Chromium, driven over the pipe of its DevTools protocol.

The protocol (https://chromedevtools.github.io/devtools-protocol/) is JSON with a NUL behind each
message; a pipe needs no packages beyond Python's own.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

FOUND = ("chromium", "chromium-browser", "google-chrome")
PROGRAM = os.environ.get("CHROMIUM") or next(filter(shutil.which, FOUND), None)
# No sandbox: tests run as root in containers too. One process less per page saves memory.
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
         "--no-first-run", "--disable-background-networking", "--remote-debugging-pipe")
PATIENCE = 60  # seconds that anything may take

# Keys that are no characters: the protocol wants them by number too.
KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "Tab": (9, "")}
SHIFT = 8


class Browser:
    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="offshoot-page-")
        from_us, to_us = os.pipe(), os.pipe()

        def to_child():  # Chromium reads commands from 3 and writes answers to 4
            a, b = os.dup(from_us[0]), os.dup(to_us[1])
            os.dup2(a, 3)
            os.dup2(b, 4)

        self.process = subprocess.Popen([PROGRAM, *FLAGS, f"--user-data-dir={self.profile}"], close_fds=False,
                                        preexec_fn=to_child, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(from_us[0])
        os.close(to_us[1])
        self.out, self.input = from_us[1], to_us[0]
        self.rest, self.n_asked = b"", 0

    def close(self):
        self.process.terminate()
        self.process.wait(PATIENCE)
        os.close(self.out)
        os.close(self.input)
        shutil.rmtree(self.profile, ignore_errors=True)

    def read(self, deadline):
        while b"\0" not in self.rest:
            if not select.select([self.input], [], [], max(0, deadline - time.time()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self.input, 1 << 16)
            if not data:
                raise EOFError("the browser has ended")
            self.rest += data
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def ask(self, method, session=None, **params):
        self.n_asked += 1
        message = {"id": self.n_asked, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        deadline = time.time() + PATIENCE
        while (answer := self.read(deadline)).get("id") != self.n_asked:
            pass  # an event; none is waited for
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]


# What goes wrong unseen: errors of scripts, and what the page's own policy forbids it.
WATCH = """
window.wrong = [];
addEventListener("error", (e) => wrong.push(e.message));
addEventListener("unhandledrejection", (e) => wrong.push(String(e.reason)));
addEventListener("securitypolicyviolation", (e) => wrong.push(`${e.violatedDirective} ${e.blockedURI}`));
"""


class Page:
    """A tab with storage of its own. wrong() is what went wrong in it since it was loaded."""

    def __init__(self, browser, url, width=1280, height=800, dark=False):
        self.browser = browser
        context = browser.ask("Target.createBrowserContext")["browserContextId"]
        target = browser.ask("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        self.session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.target = target
        self.ask("Page.enable")
        self.ask("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
        self.resize(width, height)
        self.scheme("dark" if dark else "light")
        self.go(url)

    def ask(self, method, **params):
        return self.browser.ask(method, self.session, **params)

    def close(self):
        self.browser.ask("Target.closeTarget", targetId=self.target)

    def wrong(self):
        return self.run("window.wrong")

    def go(self, url):
        self.ask("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.getElementById('model')")

    def reload(self):
        self.run("window.isOld = true")
        self.ask("Page.reload")
        self.wait("!window.isOld && document.readyState === 'complete'")

    def resize(self, width, height, scale=1):
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale,
                 mobile=False)

    def scheme(self, name):
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def run(self, expression):
        """The value of a JavaScript expression, awaited."""
        answer = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description", expression))
        return answer["result"].get("value")

    def wait(self, expression, seconds=PATIENCE):
        deadline = time.time() + seconds
        while True:
            try:
                value = self.run(expression)
            except RuntimeError:
                value = None  # between two pages
            if value not in (None, False, 0, ""):  # as in JavaScript: an element comes as {}
                return value
            if time.time() > deadline:
                raise TimeoutError(f"never true: {expression}")
            time.sleep(0.02)

    def text(self, selector):
        return self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? null")

    def texts(self, selector):
        return self.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((e) => e.innerText)")

    def click(self, selector):
        """As a person does: into the middle of what can be seen."""
        x, y = self.wait(f"""(() => {{
            const e = document.querySelector({json.dumps(selector)});
            e?.scrollIntoView({{block: "nearest"}});
            const box = e?.getBoundingClientRect();
            return box?.width ? [box.x + box.width / 2, box.y + box.height / 2] : null;
        }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text):
        self.ask("Input.insertText", text=text)

    def press(self, key, modifiers=0):
        code, text = KEYS[key]
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
                     modifiers=modifiers, **({"text": text} if text and kind == "keyDown" else {}))

    def screenshot(self, path):
        png = base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"])
        with open(path, "wb") as f:
            f.write(png)
        return len(png)
