"""test_page.py: the built-in page in a headless Chromium, against servers with the demonstration
model: what a person does, and what they then see."""

import json
import os
import sys
import time
import unittest

from browser import PATIENCE, SHIFT, Browser, Page
from served import Server

QUESTION = "I am looking for somewhere to eat tonight."
RESTAURANT = "I want to find an Italian restaurant in San Jose"
FOUND = '[{"restaurant_name": "Il Fornaio", "city": "San Jose", "cuisine": "Italian"}]'
LONG = '{"ignore_eos": true, "max_tokens": 6000}'  # some seconds, so that it can be stopped
ANSWERS = "article.assistant"
DONE = f"{ANSWERS}:not([aria-busy=true])"
NASTY = '<img src=x onerror="document.title=1"><script>document.title=2</script><b>x</b>'


def setUpModule():
    global browser, server
    browser, server = Browser(), Server()


def tearDownModule():
    browser.close()
    server.stop()


class PageTest(unittest.TestCase):
    def setUp(self):
        self.page = self.open()

    def open(self, url=None, **options):
        page = Page(browser, url or server.url, **options)
        self.addCleanup(self.check_and_close, page)
        return page

    def check_and_close(self, page):
        try:
            self.assertEqual(page.wrong(), [])
            self.assertEqual(page.run("document.title"), "Offshoot")
        finally:
            page.close()

    def ready(self, page=None):
        (page or self.page).wait("document.getElementById('model').innerText === 'demo'")

    def set(self, box, value, page=None):
        """What a person's typing into a box of the settings comes to."""
        (page or self.page).run(f"""(() => {{
            const box = document.getElementById({json.dumps(box)});
            box.value = {json.dumps(value)};
            box.dispatchEvent(new Event("change"));
        }})()""")

    def write(self, text, page=None):
        page = page or self.page
        page.click("#message")
        page.type(text)
        page.press("Enter")

    def answered(self, n=1, page=None):
        """Waits for the end of the n-th answer; its text."""
        page = page or self.page
        page.wait(f"document.querySelectorAll('{DONE}').length === {n}")
        return page.run(f"[...document.querySelectorAll('{ANSWERS} > .text')].at(-1).innerText")

    def answer_with(self, chunk):
        """From now on every answer is this chunk, a JavaScript expression; asked is the last request."""
        self.page.run(f"""window.fetch = async (path, options) => {{
            window.asked = JSON.parse(options.body);
            return new Response("data: " + JSON.stringify({chunk}) + "\\n\\ndata: [DONE]\\n\\n");
        }}""")

    def steps(self):
        """Of each step that is drawn: root, kept and next tokens."""
        return self.page.run("""[...document.querySelectorAll("#trees li")].map((step) =>
            [...step.querySelectorAll(".node:not(.dropped) title")].map((title) =>
                JSON.parse(title.textContent.slice(0, title.textContent.lastIndexOf('": ') + 1))))""")

    # ---- chat ----

    def test_answer_streams_in(self):
        self.ready()
        self.set("more", '{"ignore_eos": true, "max_tokens": 1500}')
        self.write(QUESTION)
        length = f"document.querySelector('{ANSWERS}[aria-busy=true] > .text')?.innerText.length"
        first = self.page.wait(length)
        self.page.wait(f"{length} > {first}")  # more, and it is not done yet
        self.assertTrue(self.page.run("document.getElementById('send').hidden"))
        self.answered()
        self.assertIn("1,500 tokens", self.page.text(".figures"))
        self.assertIn("ended by the limit", self.page.text(".figures"))
        self.assertEqual(self.page.texts("article.user"), [QUESTION])
        self.assertEqual(self.page.run("document.getElementById('message').value"), "")

    def test_lines_and_buttons(self):
        self.ready()
        self.page.click("#message")
        self.page.type("one")
        self.page.press("Enter", SHIFT)
        self.page.type("two")
        self.assertEqual(self.page.run("document.getElementById('message').value"), "one\ntwo")
        self.page.press("Tab")
        self.assertEqual(self.page.run("document.activeElement.id"), "send")
        self.page.press("Enter")
        self.answered()
        self.assertEqual(self.page.texts("article.user"), ["one\ntwo"])
        self.page.click("#new-chat")
        self.page.wait("!document.querySelector('article') && document.querySelector('#welcome').offsetHeight")

    def test_trees_are_the_answer(self):
        self.ready()
        self.write(QUESTION)
        text = self.answered()
        steps = self.steps()
        self.assertTrue(1 <= len(steps) < 6, steps)  # all of them are drawn
        for before, after in zip(steps, steps[1:]):
            self.assertEqual(before[-1], after[0])  # its next token is the root of what follows
        told = steps[0][0] + "".join(token for step in steps for token in step[1:])
        self.assertEqual(told, text + "<|im_end|>")
        counts = [int(n) for n in self.page.texts("#trees .count")]
        self.assertEqual(counts, [len(step) - 1 for step in steps])
        shown = float(self.page.text("#acceptance"))
        self.assertAlmostEqual(shown, sum(counts) / len(counts), delta=0.005)
        self.assertGreater(self.page.run("document.querySelectorAll('.node.dropped').length"), 0)
        # what was kept stands on the top line, one behind the other, and the next token behind it
        self.assertTrue(self.page.run("""[...document.querySelectorAll("#trees li")].every((step) =>
            [...step.querySelectorAll(".node:not(.dropped) rect")].every((rect, i, all) =>
                rect.y.baseVal.value === all[0].y.baseVal.value &&
                (i === 0 || rect.x.baseVal.value > all[i - 1].x.baseVal.value)))"""))

    def test_stream_in_bytes(self):
        self.ready()
        self.page.run("""window.fetch = async () => {
            const chunk = (content) => `data: ${JSON.stringify({choices: [{delta: {content}}]})}\\n\\n`;
            const text = chunk("a\u00e9") + ": alive\\n\\n" + chunk("\u20ac\U0001f600 z") + "data: [DONE]\\n\\n";
            const bytes = new TextEncoder().encode(text);
            return new Response(new ReadableStream({start(stream) {
                for (const byte of bytes) stream.enqueue(new Uint8Array([byte]));
                stream.close();
            }}));
        }""")
        self.write(QUESTION)
        self.assertEqual(self.answered(), "a\u00e9\u20ac\U0001f600 z")

    def test_markdown(self):
        self.ready()
        said = "# A\nb **c *d*** ***D*** `*e*`\nf\n\n- g\n* h\n3. i\n4) j\n```py\n- k\n\nl\n```\nm"
        self.answer_with(json.dumps({"choices": [{"delta": {"content": said}}]}))
        self.write(QUESTION)
        self.answered()
        self.assertEqual(self.page.run(f"document.querySelector('{ANSWERS} > .text').innerHTML"),
                         "<h4>A</h4><p>b <strong>c <em>d</em></strong> <strong><em>D</em></strong> <code>*e*</code><br>f</p>"
                         "<ul><li>g</li><li>h</li></ul><ol start=\"3\"><li>i</li><li>j</li></ol>"
                         "<pre><code>- k\n\nl</code></pre><p>m</p>")

    def test_last_steps_only(self):
        self.ready()
        self.set("more", '{"ignore_eos": true, "max_tokens": 100}')
        self.write(QUESTION)
        self.answered()
        self.assertEqual(len(self.steps()), 6)

    def test_tools(self):
        self.ready()
        self.page.click("#examples button")
        self.answered()
        self.assertEqual(self.page.texts(".call h3"), ["FindRestaurants"])
        arguments = json.loads(self.page.text(".call pre"))
        self.assertEqual(arguments, {"city": "San Jose", "cuisine": "Italian"})
        self.page.click(".results input")
        self.page.type(FOUND)
        self.page.press("Enter")
        self.assertTrue(self.answered(2))
        self.assertEqual(self.page.text("article.result pre"), FOUND)
        self.assertIsNone(self.page.text(".results"))  # they were sent

    def test_what_goes_back(self):
        self.ready()
        call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}
        delta = {"content": "a", "reasoning_content": "b", "tool_calls": [call]}
        self.answer_with(json.dumps({"choices": [{"delta": delta}]}))
        self.write("Hello")
        self.answered()
        self.page.click(".results input")
        self.page.type("found")
        self.page.press("Enter")
        self.answered(2)
        del call["index"]
        self.assertEqual(self.page.run("asked.messages"), [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "a", "reasoning_content": "b",
             "tool_calls": [{"type": "function", **call}]},
            {"role": "tool", "tool_call_id": "c1", "content": "found"},
        ])

    def test_cut_call(self):
        self.ready()
        self.set("max-tokens", "14")
        self.page.click("#examples button")
        self.answered()
        self.assertEqual(self.page.texts(".call h3"), ["FindRestaurants"])
        self.assertNotIn("cuisine", self.page.text(".call pre"))
        self.set("max-tokens", "")
        self.write("San Jose, please.")
        self.answered(2)
        self.assertIsNone(self.page.text(".error"))

    def test_reasoning_is_folded(self):
        self.ready()
        self.set("thinking", "on")
        self.set("max-tokens", "20")
        self.write(QUESTION)
        self.answered()
        self.assertFalse(self.page.run("document.querySelector('.reasoning').open"))
        self.assertEqual(self.page.text(".reasoning .text"), "")  # not to be seen
        self.page.click(".reasoning summary")
        self.assertTrue(self.page.text(".reasoning .text"))

    # ---- stopping, reloading ----

    def check_stopped(self):
        self.answered()
        self.assertIn("stopped", self.page.text(".figures"))
        deadline = time.time() + PATIENCE
        while server.metric("vllm:num_requests_running"):
            self.assertLess(time.time(), deadline)
            time.sleep(0.05)
        self.set("more", "")
        self.write("Hello")
        self.assertTrue(self.answered(2))

    def begin_long(self):
        self.ready()
        self.set("more", LONG)
        self.write(QUESTION)
        self.page.wait("document.querySelector('#trees li')")
        self.assertEqual(server.metric("vllm:num_requests_running"), 1)

    def test_escape_stops(self):
        self.begin_long()
        self.page.press("Escape")
        self.check_stopped()

    def test_stop_button(self):
        self.begin_long()
        self.page.click("#stop")
        self.check_stopped()

    def test_new_chat_in_mid_answer(self):
        self.begin_long()
        self.page.click("#new-chat")
        self.page.wait("document.getElementById('status').textContent === 'Stopped.'")
        self.assertEqual(self.page.texts("article"), [])
        self.set("more", "")
        self.write(QUESTION)
        self.answered()
        self.set("more", LONG)
        self.page.click(".figures button")
        self.page.wait("document.getElementById('send').hidden")
        self.page.click("#new-chat")
        self.page.wait("document.getElementById('status').textContent === ''")
        self.assertEqual(self.page.texts("article"), [])
        self.assertEqual(self.steps(), [])

    def test_reload(self):
        self.ready()
        self.page.click("#examples button")
        self.answered()
        self.set("max-tokens", "7")
        seen = [self.page.texts("article"), self.steps(), self.page.text("#figures")]
        self.page.reload()
        self.ready()
        self.assertEqual([self.page.texts("article"), self.steps(), self.page.text("#figures")], seen)
        self.assertEqual(self.page.run("document.getElementById('max-tokens').value"), "7")
        self.assertIn("FindRestaurants", self.page.run("document.getElementById('tools').value"))
        self.write("Hello")
        self.answered(2)

    def test_reload_in_mid_answer(self):
        self.begin_long()
        self.page.reload()
        self.ready()
        self.check_stopped()

    def test_nothing_can_be_kept(self):
        self.ready()
        self.page.run("Storage.prototype.setItem = () => { throw new Error('full'); }")
        self.write(QUESTION)
        self.answered()
        self.assertIn("will be lost with a reload", self.page.text("#wrong"))
        self.page.click("#new-chat")
        self.assertEqual(self.page.text("#wrong"), "")

    # ---- with and without drafts ----

    def compare(self, text):
        self.ready()
        self.set("temperature", "1")
        self.set("max-tokens", "60")
        self.write(text)
        self.answered()
        self.page.click(".figures button")
        self.page.wait("document.querySelector('.compared')")
        return [int(b.split()[0].replace(",", "")) for b in self.page.texts(".compared b")]

    def test_without_drafts(self):
        before = server.metric("vllm:spec_decode_num_draft_tokens_total")
        rates = self.compare(QUESTION)
        self.assertIn("The text is the same.", self.page.text(".compared"))
        self.assertTrue(all(rates), rates)
        shown = [int(self.page.text(f"#rate-{way}").replace(",", "")) for way in ("with", "without")]
        self.assertEqual(shown, rates)
        self.assertGreater(server.metric("vllm:spec_decode_num_draft_tokens_total"), before)

    def test_drafts_off(self):
        self.set("use-drafts", "off")
        before = server.metric("vllm:spec_decode_num_draft_tokens_total")
        self.ready()
        self.write(QUESTION)
        self.answered()
        self.assertEqual(server.metric("vllm:spec_decode_num_draft_tokens_total"), before)
        self.assertEqual(self.page.text("#acceptance"), "1.00")
        self.page.click(".figures button")  # Ask again with drafts
        self.assertIn("The text is the same.", self.page.wait("document.querySelector('.compared')?.innerText"))
        self.assertGreater(server.metric("vllm:spec_decode_num_draft_tokens_total"), before)

    def test_what_is_compared(self):
        # each speed at its name, however it was asked for first; texts that differ are said to
        self.ready()
        for first, fast in (("on", 100), ("off", 50)):
            self.set("use-drafts", first)
            for text, speed in (("a", fast), ("b", 150 - fast)):
                self.answer_with(json.dumps({
                    "choices": [{"delta": {"content": text}}],
                    "timings": {"predicted_per_second": speed, "predicted_n": 1},
                }))
                if text == "a":
                    self.write(QUESTION)
                    self.answered()
                else:
                    self.page.click(".figures button")
            shown = self.page.wait("document.querySelector('.compared')?.innerText")
            self.assertIn("The text is not the same. 2.00 times the speed with drafts.", shown)
            self.assertEqual(self.page.texts(".compared b"), ["100 tokens/s", "50 tokens/s"])
            self.assertEqual([self.page.text(f"#rate-{way}") for way in ("with", "without")], ["100", "50"])
            widths = self.page.run("[...document.querySelectorAll('.compared i')].map((e) => e.style.width)")
            self.assertEqual(widths, ["100%", "50%"])
            self.page.click("#new-chat")

    def test_no_drafts_to_be_had(self):
        other = Server("--draft", "none")
        self.addCleanup(other.stop)
        page = self.open(other.url)
        self.ready(page)
        self.assertTrue(page.run("document.getElementById('use-drafts').disabled"))
        self.set("temperature", "0", page)
        self.assertIn('"temperature":"0"', page.run("localStorage.getItem('offshoot.settings')"))
        self.assertNotIn("use-drafts", page.run("localStorage.getItem('offshoot.settings')"))
        self.write(QUESTION, page)
        self.answered(page=page)
        self.assertNotIn("Ask again", page.text(".figures"))
        self.assertEqual(page.text("#rate-with"), "–")
        page.reload()
        self.ready(page)
        self.assertNotIn("Ask again", page.text(".figures"))
        self.assertNotEqual(page.text("#rate-without"), "–")

    # ---- how it looks ----

    def test_narrow(self):
        page = self.open(width=360, height=640)
        self.ready(page)
        page.click("#examples button")
        self.answered(page=page)
        self.write("x" * 300, page)
        self.answered(2, page)
        for is_open in ("false", "true"):
            page.run(f"document.getElementById('settings').open = {is_open}")
            self.assertEqual(page.run("document.documentElement.scrollWidth"), 360)
            self.assertEqual(page.run("document.getElementById('messages').scrollWidth"), 360)
        for button in ("#send", "#new-chat"):
            right = page.run(f"document.querySelector('{button}').getBoundingClientRect().right")
            self.assertLessEqual(right, 360)

    def contrast(self, page):
        """Of text on the page's ground, as WCAG reckons."""
        return page.run("""(() => {
            const light = (colour) => colour.match(/\\d+/g).slice(0, 3).map((c) => c / 255)
                .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
                .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
            const style = getComputedStyle(document.body);
            const [a, b] = [light(style.color), light(style.backgroundColor)];
            return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        })()""")

    def test_dark(self):
        ground = "getComputedStyle(document.body).backgroundColor"
        light = self.page.run(ground)
        self.assertGreater(self.contrast(self.page), 7)
        self.page.scheme("dark")
        self.assertNotEqual(self.page.run(ground), light)
        self.assertGreater(self.contrast(self.page), 7)

    def test_nothing_from_elsewhere(self):
        self.ready()
        names = self.page.run("performance.getEntriesByType('resource').map((e) => e.name)")
        self.assertGreater(len(names), 5)
        self.assertEqual([n for n in names if not n.startswith(server.url)], [])

    def test_controls_have_names(self):
        self.ready()
        nameless = self.page.run("""[...document.querySelectorAll("input, textarea, select, button")]
            .filter((e) => !(e.labels?.length || e.innerText || e.textContent)).map((e) => e.outerHTML)""")
        self.assertEqual(nameless, [])

    # ---- what is wrong ----

    def test_html_stays_text(self):
        self.ready()
        self.page.run("const nasty = %s" % json.dumps(NASTY))
        self.answer_with("""(() => {
            const call = {index: 0, id: "c", function: {name: nasty, arguments: nasty}};
            const tree = {token: [nasty, nasty], parent: [-1, 0], kept: [1, 0], next: nasty};
            const said = "**" + nasty + "** `" + nasty + "`\\n- " + nasty + "\\n```\\n" + nasty;
            const delta = {content: said, reasoning_content: nasty, tool_calls: [call]};
            return {choices: [{delta, trees: [tree], finish_reason: null}]};
        })()""")
        self.write(NASTY)
        self.answered()
        for where in ("article.user", f"{ANSWERS} > .text", f"{ANSWERS} strong", f"{ANSWERS} pre", ".call h3",
                      ".call pre", "#trees title"):
            self.assertIn("<img src=x onerror=", self.page.run(f"document.querySelector('{where}').textContent"))
        self.assertEqual(self.page.run("document.querySelectorAll('main img, main script, main b').length"), 0)

    def test_wrong_settings(self):
        self.ready()
        for box, value in (("tools", "[{"), ("tools", "{}"), ("more", "[]")):
            self.set(box, value)
            self.write(QUESTION)
            self.page.wait("document.getElementById('wrong').innerText")
            self.assertEqual(self.page.texts("article"), [])
            self.assertTrue(self.page.run("document.getElementById('settings').open"))
            self.page.run("document.getElementById('message').value = ''")
            self.set(box, "")
        self.set("more", '{"top_p": 7}')  # that it is wrong is the server's word
        self.write(QUESTION)
        self.answered()
        self.assertIn("top_p", self.page.text(".error"))
        self.set("more", "")
        self.write(QUESTION)
        self.assertTrue(self.answered(2))

    def test_key(self):
        guarded = Server("--api-key", "sesame")
        self.addCleanup(guarded.stop)
        page = self.open(guarded.url)
        page.wait("!document.getElementById('key-form').hidden")
        for key, shown in (("wrong", "needs a key"), ("sesame", "demo")):
            page.run("document.getElementById('model').innerText = ''")
            page.click("#key")
            page.type(key)
            page.press("Enter")
            page.wait(f"document.getElementById('model').innerText === '{shown}'")
        self.assertTrue(page.run("document.getElementById('key-form').hidden"))
        self.write(QUESTION, page)
        self.answered(page=page)
        page.reload()
        self.ready(page)
        self.assertNotIn("sesame", page.run("JSON.stringify({...localStorage})"))

    def test_server_gone(self):
        other = Server()
        page = self.open(other.url)
        self.ready(page)
        other.stop()
        self.write(QUESTION, page)
        self.answered(page=page)
        self.assertIn("the server does not answer", page.text(".error"))
        self.assertFalse(page.run("document.getElementById('send').hidden"))

    # ---- the picture in the README ----

    def test_screenshot(self):
        path = os.environ.get("SCREENSHOT", "build-page/screenshot.png")
        self.page.resize(1280, 760)
        self.ready()
        self.set("temperature", "0")
        self.page.click("#examples button")
        self.answered()
        self.page.click(".results input")
        self.page.type(FOUND)
        self.page.press("Enter")
        self.answered(2)
        self.page.click("article:last-of-type .figures button")
        self.page.wait("document.querySelector('.compared')")
        self.page.run("document.activeElement.blur()")
        time.sleep(0.5)  # what moves has come to rest
        self.assertLess(self.page.screenshot(path), 150 << 10)


if __name__ == "__main__":
    result = unittest.main(exit=False, verbosity=2).result
    failed = len({test.id() for test, _ in result.failures + result.errors})
    print(f"{max(result.testsRun - failed, 0)} passed, {failed} failed")
    sys.exit(failed != 0)
