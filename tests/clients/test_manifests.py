"""test_manifests.py: the files of configs/ for Kubernetes, Docker and systemd, against the server.

What they say of it must hold: every option is one, every path that is probed answers, every metric
that the endpoint picker reads is on the page, ports and names meet, and memory and time suffice.
"""

import glob
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
import unittest

import yaml

from served import BINARY, MODEL_DIR, Server, request, run_tests

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
CONFIGS = os.path.join(ROOT, "configs")
DRAIN_S = 30  # --drain-timeout's default
PICKED_METRICS = [  # that the endpoint picker reads unless it is told otherwise, and their labels
    ("vllm:num_requests_waiting",), ("vllm:num_requests_running",), ("vllm:kv_cache_usage_perc",),
    ("vllm:cache_config_info", "block_size", "num_gpu_blocks"),
    ("vllm:lora_requests_info", "max_lora", "running_lora_adapters", "waiting_lora_adapters"),
]


def documents(name):
    with open(f"{CONFIGS}/kubernetes/{name}", encoding="utf-8") as file:
        return [doc for doc in yaml.safe_load_all(file) if doc]


def find(docs, kind, name):
    found = [d for d in docs if d["kind"] == kind and d["metadata"]["name"] == name]
    assert len(found) == 1, (kind, name, len(found))
    return found[0]


def option(words, name):
    """The value of --name=value or --name value, None without."""
    for i, word in enumerate(words):
        if word == name:
            return words[i + 1]
        if word.startswith(name + "="):
            return word.split("=", 1)[1]
    return None


def wait_until_ready(url, patience_s=60):
    deadline = time.monotonic() + patience_s
    while request("GET", "/health", url=url)[0] == 503 and time.monotonic() < deadline:
        time.sleep(0.05)


def starts_with(words):
    """
    The server starts with these options, when its files and port are ours. Returns its replies to
    GET /health, /ping and /metrics.
    """
    with tempfile.TemporaryDirectory() as folder:
        ours = {"--model": MODEL_DIR, "--config": None, "--cache-dir": folder, "--port": "0"}
        options = []
        for word in words:
            name = word.split("=", 1)[0]
            value = ours.get(name, word.split("=", 1)[1] if "=" in word else None)
            if value is None and name == "--config":
                continue
            options += [name] if value is None else [name, value]
        with Server(*options) as server:
            wait_until_ready(server.url)
            return {p: request("GET", p, url=server.url) for p in ("/health", "/ping", "/metrics")}


def joined(words):
    """--name value as --name=value."""
    text = " ".join(shlex.quote(word) for word in words)
    return shlex.split(re.sub(r"(--[a-z-]+) (?!-)", r"\1=", text))


class Kubernetes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.docs = documents("offshoot.yaml") + documents("gateway.yaml")
        cls.pods = find(cls.docs, "Deployment", "offshoot")["spec"]["template"]
        cls.container = cls.pods["spec"]["containers"][0]
        cls.picker = find(cls.docs, "Deployment", "offshoot-epp")["spec"]["template"]
        cls.replies = starts_with(cls.container["args"])

    def test_every_document_has_a_name(self):
        seen = set()
        for doc in self.docs:
            self.assertTrue(doc["apiVersion"] and doc["kind"])
            key = doc["kind"], doc["metadata"]["name"]
            self.assertNotIn(key, seen)
            seen.add(key)

    def test_selectors_meet_pods(self):
        labels = self.pods["metadata"]["labels"]
        for kind, name, path in (
            ("Deployment", "offshoot", ("matchLabels",)),
            ("Service", "offshoot", ()),
            ("PodDisruptionBudget", "offshoot", ("matchLabels",)),
            ("InferencePool", "offshoot", ("matchLabels",)),
        ):
            selector = find(self.docs, kind, name)["spec"]["selector"]
            for key in path:
                selector = selector[key]
            self.assertEqual(selector, labels, kind)
        picker = find(self.docs, "Service", "offshoot-epp")["spec"]["selector"]
        self.assertEqual(picker, self.picker["metadata"]["labels"])

    def test_ports_meet(self):
        port = int(option(self.container["args"], "--port"))
        self.assertEqual([p["containerPort"] for p in self.container["ports"]], [port])
        pool = find(self.docs, "InferencePool", "offshoot")
        self.assertEqual(pool["apiVersion"], "inference.networking.k8s.io/v1")
        self.assertEqual(pool["spec"]["targetPorts"], [{"number": port}])
        reference = pool["spec"]["endpointPickerRef"]
        service = find(self.docs, "Service", reference["name"])
        self.assertEqual(service["spec"]["ports"][0]["port"], reference["port"]["number"])
        args = self.picker["spec"]["containers"][0]["args"]
        self.assertEqual(option(args, "--grpc-port"), str(reference["port"]["number"]))
        scraped = find(self.docs, "Service", "offshoot")["metadata"]["annotations"]
        self.assertEqual(scraped["prometheus.io/port"], str(port))

    def test_references_lead_somewhere(self):
        pool = find(self.docs, "InferencePool", "offshoot")
        group = pool["apiVersion"].split("/")[0]
        route = find(self.docs, "HTTPRoute", "offshoot")["spec"]
        backend = route["rules"][0]["backendRefs"][0]
        self.assertEqual(backend, {"group": group, "kind": "InferencePool", "name": "offshoot"})
        find(self.docs, "Gateway", route["parentRefs"][0]["name"])
        objective = find(self.docs, "InferenceObjective", "interactive")["spec"]["poolRef"]
        self.assertEqual(objective, {"group": group, "name": "offshoot"})
        args = self.picker["spec"]["containers"][0]["args"]
        self.assertEqual(option(args, "--pool-name"), "offshoot")
        config = find(self.docs, "ConfigMap", "offshoot-epp")["data"]
        self.assertEqual(os.path.basename(option(args, "--config-file")), *config)
        plugins = yaml.safe_load(*config.values())
        known = {plugin["type"] for plugin in plugins["plugins"]}
        used = {p["pluginRef"] for p in plugins["schedulingProfiles"][0]["plugins"]}
        self.assertEqual(known, used)

    def test_probes_are_answered(self):
        paths = [self.container[f"{kind}Probe"]["httpGet"]["path"]
                 for kind in ("startup", "readiness", "liveness")]
        for path in paths:
            self.assertEqual(self.replies[path][0], 200, path)

    def test_metrics_are_there(self):
        page = self.replies["/metrics"][2].decode()
        args = self.picker["spec"]["containers"][0]["args"]
        self.assertFalse([a for a in args if "-metric" in a])  # so it reads what it always does
        for name, *labels in PICKED_METRICS:
            (line,) = re.findall(rf"(?m)^{name}{{(.*)}} [0-9.]+$", page)
            for label in labels:
                self.assertRegex(line, rf'\b{label}="')

    def test_there_is_time_to_end(self):
        sleep = int(self.container["lifecycle"]["preStop"]["exec"]["command"][1])
        drain = int(option(self.container["args"], "--drain-timeout"))
        grace = self.pods["spec"]["terminationGracePeriodSeconds"]
        self.assertGreater(grace, sleep + drain)
        self.assertGreater(self.picker["spec"]["terminationGracePeriodSeconds"], grace)

    def test_memory_suffices(self):
        """What the config says that the model takes on a CPU, with bf16 weights."""
        name = os.path.basename(option(self.container["args"], "--config"))
        with open(f"{CONFIGS}/{name}", encoding="utf-8") as file:
            needs = float(re.search(r"(?m)^# bf16 +\d+ +([0-9.]+) GiB", file.read()).group(1))
        for kind in ("requests", "limits"):
            self.assertGreater(
                int(self.container["resources"][kind]["memory"].removesuffix("Gi")), needs
            )


class Docker(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(f"{CONFIGS}/Dockerfile", encoding="utf-8") as file:
            text = re.sub(r"\\\n", "", file.read())
        cls.steps = re.findall(r"(?m)^([A-Z]+) (.*)$", text)

    def step(self, name):
        return [rest for word, rest in self.steps if word == name]

    def test_copied_files_exist(self):
        for words in self.step("COPY"):
            if not words.startswith("--from"):
                self.assertTrue(glob.glob(os.path.join(ROOT, words.split()[0])), words)

    def test_options_start_the_server(self):
        words = yaml.safe_load(self.step("ENTRYPOINT")[0]) + yaml.safe_load(self.step("CMD")[-1])
        self.assertEqual(words[:2], ["offshoot", "serve"])
        self.assertEqual(starts_with(joined(words[2:]))["/health"][0], 200)

    def test_health_check_tells(self):
        words = yaml.safe_load(self.step("HEALTHCHECK")[0].split("CMD ")[1])
        with Server() as server:
            wait_until_ready(server.url)
            port = server.url.rsplit(":", 1)[1]
            check = [word.replace("/8080", f"/{port}") for word in words]
            self.assertNotEqual(check, words)
            self.assertEqual(subprocess.run(check, timeout=60).returncode, 0)
        gone = subprocess.run(check, timeout=60, capture_output=True)
        self.assertNotEqual(gone.returncode, 0)

    def test_nobody_is_root(self):
        self.assertRegex(self.step("USER")[-1], r"^[1-9]")


class Systemd(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(f"{CONFIGS}/offshoot.service", encoding="utf-8") as file:
            cls.text = file.read()

    def value(self, name):
        return re.search(rf"(?m)^{name}=(.*)$", self.text).group(1)

    def test_options_start_the_server(self):
        words = shlex.split(self.value("ExecStart"))
        self.assertEqual(words[1], "serve")
        options = joined(words[2:]) + ["--model=" + MODEL_DIR]
        self.assertEqual(starts_with(options)["/health"][0], 200)

    def test_folder_is_the_services(self):
        folder = option(shlex.split(self.value("ExecStart")), "--cache-dir")
        self.assertEqual(folder, "/var/lib/" + self.value("StateDirectory"))

    def test_there_is_time_to_end(self):
        self.assertGreater(int(self.value("TimeoutStopSec")), DRAIN_S)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd here")
    def test_systemd_takes_it(self):
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/offshoot.service"
            with open(path, "w", encoding="utf-8") as file:
                file.write(self.text.replace("/usr/local/bin/offshoot", BINARY))
            ran = subprocess.run(
                ["systemd-analyze", "verify", path], capture_output=True, text=True, timeout=60
            )
        self.assertEqual((ran.returncode, ran.stdout + ran.stderr), (0, ""))


if __name__ == "__main__":
    run_tests()
