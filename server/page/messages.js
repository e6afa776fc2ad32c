// messages.js: the elements of a conversation. A view is made once for each message and brought up
// to date while its answer grows, so that what a reader has unfolded stays so.

import { markdown } from "./markdown.js";
import { acceptanceLength, usesDrafts } from "./answer.js";

function element(name, className, ...children) {
  const e = document.createElement(name);
  if (className) e.className = className;
  e.append(...children);
  return e;
}

function button(text, onClick) {
  const b = element("button", "", text);
  b.type = "button";
  b.addEventListener("click", onClick);
  return b;
}

export function number(x, digits = 0) {
  return x.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // not whole yet
  }
}

// ---- the user's, and results of tools ----

export function userView(message) {
  const text = element("div", "text", ...markdown(message.content));
  return element("article", "user", text);
}

export function resultView(message) {
  return element("article", "result", element("h3", "", "Result"), element("pre", "", message.content));
}

// ---- answers ----

function callCard(call) {
  const name = element("h3", "", call.name || "…");
  return element("div", "call", name, element("pre", "", pretty(call.arguments)));
}

// A box for the result of each call, and one button for all.
function resultForm(answer, onResults) {
  const form = element("form", "results");
  const boxes = answer.calls.map((call) => {
    const box = element("input");
    box.required = true;
    form.append(element("label", "", `Result of ${call.name} `, box));
    return box;
  });
  form.append(element("button", "", "Send results"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    onResults(boxes.map((box, i) => ({
      role: "tool", tool_call_id: answer.calls[i].id, content: box.value,
    })));
  });
  return form;
}

const ENDS = { length: "ended by the limit of tokens", stopped: "stopped" };

function figures(answer) {
  const parts = [];
  if (answer.tokens) parts.push(`${number(answer.tokens)} tokens`);
  if (answer.perSecond) parts.push(`${number(answer.perSecond)} tokens/s`);
  if (usesDrafts(answer) && answer.steps)
    parts.push(`acceptance length ${number(acceptanceLength(answer), 2)}`);
  const end = ENDS[answer.state] ?? ENDS[answer.finish];
  if (end) parts.push(end);
  return parts.join(" · ");
}

// Both ways of making the same answer, side by side.
function comparison(answer) {
  const { perSecond, same } = answer.compared;
  const [fast, plain] = usesDrafts(answer) ? [answer.perSecond, perSecond] : [perSecond, answer.perSecond];
  const widest = Math.max(fast, plain, 1e-9);
  const bar = (name, rate) => {
    const fill = element("i");
    fill.style.width = `${(100 * rate) / widest}%`;
    return element("div", "", element("span", "", name), element("span", "bar", fill),
      element("b", "", `${number(rate)} tokens/s`));
  };
  const verdict = same ? "The text is the same." : "The text is not the same.";
  const times = plain ? ` ${number(fast / plain, 2)} times the speed with drafts.` : "";
  return element("div", `compared ${same ? "same" : "different"}`, bar("with drafts", fast),
    bar("without", plain), element("p", "", verdict + times));
}

// actions: { compare(answer), results(messages) }
export class AnswerView {
  constructor(answer, actions) {
    this.answer = answer;
    this.actions = actions;
    this.summary = element("summary");
    this.thought = element("div", "text");
    this.reasoning = element("details", "reasoning", this.summary, this.thought);
    this.text = element("div", "text");
    this.calls = element("div", "calls");
    this.foot = element("footer");
    this.element = element("article", "assistant", this.reasoning, this.text, this.calls, this.foot);
    this.update(false);
  }

  // isLast: nothing follows it, so that results of its calls are still wanted
  update(isLast) {
    const a = this.answer, running = a.state === "running";
    this.element.setAttribute("aria-busy", running);
    this.reasoning.hidden = !a.reasoning;
    this.summary.textContent = running && !a.content && !a.calls.length ? "Thinking…" : "Reasoning";
    this.thought.replaceChildren(...markdown(a.reasoning));
    this.text.replaceChildren(...markdown(a.content));
    this.calls.replaceChildren(...a.calls.map(callCard));
    this.foot.replaceChildren();
    if (!running) this.showEnd(isLast);
  }

  showEnd(isLast) {
    const a = this.answer;
    const whole = a.state === "done";
    if (isLast && whole && a.calls.length)
      this.foot.append(resultForm(a, this.actions.results));
    const line = element("div", "figures", element("span", "", figures(a)));
    if (whole && !a.compared)
      line.append(button(`Ask again ${usesDrafts(a) ? "without" : "with"} drafts`, () =>
        this.actions.compare(a)));
    this.foot.append(line);
    if (a.compared) this.foot.append(comparison(a));
    if (a.error) {
      const error = element("p", "error", a.error);
      error.setAttribute("role", "alert");
      this.foot.append(error);
    }
  }
}
