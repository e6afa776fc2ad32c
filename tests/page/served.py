"""served.py: servers with the demonstration model, for the tests of the page."""

import os
import re
import subprocess
import tempfile
import time
import urllib.request

BINARY = os.environ.get("OFFSHOOT_BINARY", "build/offshoot")
OPTIONS = ("serve", "--model", "models/demo", "--port", "0", "--memory", "256M", "--tree-nodes", "8",
           "--draft-depth", "4", "--draft-topk", "2")


class Server:
    def __init__(self, *options):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen([BINARY, *OPTIONS, *options], stdout=self.log, stderr=self.log)
        self.url = "http://" + self.wait_for(r"listening address=(\S+)")
        self.wait_for(r"( ready) ")

    def wait_for(self, pattern):
        deadline = time.time() + 120
        while time.time() < deadline and self.process.poll() is None:
            with open(self.log.name, encoding="utf-8") as log:
                found = re.search(pattern, log.read())
            if found:
                return found[1]
            time.sleep(0.05)
        raise AssertionError(f"the server never said {pattern}")

    def stop(self):
        self.process.terminate()
        status = self.process.wait(60)
        self.log.close()
        assert status == 0, f"the server ended with status {status}"

    def metric(self, name):
        with urllib.request.urlopen(self.url + "/metrics", timeout=60) as reply:
            text = reply.read().decode()
        return sum(float(v) for v in re.findall(rf"^{re.escape(name)}{{[^}}]*}} (\S+)$", text, re.MULTILINE))
