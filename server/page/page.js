// page.js: the page at work: what is typed, sent, stopped, kept over a reload.

import { ApiError, chatChunks, draftLevels, modelName, useKey } from "./api.js";
import { acceptanceLength, addChunk, newAnswer, sameText, toMessages, usesDrafts } from "./answer.js";
import { AnswerView, number, resultView, userView } from "./messages.js";
import { drawTrees } from "./trees.js";
import { readFields, restoreSettings, setDrafts, setTools, suggestSettings } from "./settings.js";
import { keep, load } from "./store.js";
import { DEMO, EXAMPLES } from "./examples.js";

const $ = (id) => document.getElementById(id);
const CONVERSATION = "offshoot.conversation";

let conversation = []; // messages, in the order of the page
let running = null; // the AbortController of the answer that is being made
const views = new Map(); // answer: its AnswerView

// ---- the conversation and its page ----

function loadConversation() {
  const kept = load(CONVERSATION);
  conversation = Array.isArray(kept) ? kept : [];
  for (const m of conversation) if (m.state === "running") m.state = "stopped";
}

function keepConversation() {
  if (keep(CONVERSATION, conversation) || !conversation.length) return;
  $("wrong").textContent = "This conversation will be lost with a reload.";
}

function viewOf(message) {
  if (message.role === "user") return userView(message);
  if (message.role === "tool") return resultView(message);
  const view = new AnswerView(message, { compare, results: sendAll });
  views.set(message, view);
  return view.element;
}

function isLast(message) {
  return conversation.at(-1) === message;
}

function updateAnswer(answer) {
  if (!views.has(answer)) return; // a new chat has begun
  const log = $("messages");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  views.get(answer).update(isLast(answer) && !running);
  showDrafts(answer);
  if (atEnd) log.scrollTop = log.scrollHeight;
}

function add(message) {
  const before = conversation.at(-1);
  conversation.push(message);
  $("welcome").hidden = true;
  $("messages").append(viewOf(message));
  $("messages").scrollTop = $("messages").scrollHeight;
  if (views.has(before)) views.get(before).update(false);
}

function showAll() {
  views.clear();
  for (const e of document.querySelectorAll("#messages article")) e.remove();
  $("welcome").hidden = conversation.length > 0;
  $("messages").append(...conversation.map(viewOf));
  for (const answer of views.keys()) views.get(answer).update(isLast(answer));
  showDrafts(conversation.findLast((m) => m.role === "assistant"));
  $("messages").scrollTop = $("messages").scrollHeight;
}

// The last trees of an answer, and how fast it was both ways as far as that is known.
function showDrafts(answer) {
  const rate = (x) => (x ? number(x) : "–");
  const own = answer?.perSecond, other = answer?.compared?.perSecond;
  const [fast, plain] = answer && usesDrafts(answer) ? [own, other] : [other, own];
  const length = answer ? acceptanceLength(answer) : 0;
  $("acceptance").textContent = length ? number(length, 2) : "–";
  $("rate-with").textContent = rate(fast);
  $("rate-without").textContent = rate(plain);
  $("no-trees").hidden = Boolean(answer?.trees.length);
  drawTrees($("trees"), answer?.trees ?? []);
}

function say(text) {
  $("status").textContent = text;
}

function setRunning(controller) {
  running = controller;
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
}

// ---- asking ----

// The page is drawn some times a second, however many chunks come: a model on the same machine
// has better use for its cores.
const DRAW_MS = 50;
let drawIsDue = false;
function drawSoon(answer, draw) {
  if (drawIsDue) return;
  drawIsDue = true;
  setTimeout(() => {
    drawIsDue = false;
    if (answer.state === "running") draw(answer);
  }, DRAW_MS);
}

// Lets the server make the answer to messages; its state says how that ended.
async function make(answer, messages, draw) {
  const body = {
    messages, ...answer.fields, stream: true, stream_options: { include_usage: true }, return_trees: true,
  };
  const controller = new AbortController();
  setRunning(controller);
  try {
    for await (const chunk of chatChunks(body, controller.signal)) {
      addChunk(answer, chunk, performance.now());
      drawSoon(answer, draw);
    }
    answer.state = "done";
  } catch (error) {
    answer.state = controller.signal.aborted ? "stopped" : "failed";
    if (answer.state === "failed") fail(answer, error);
  }
  setRunning(null);
}

function fail(answer, error) {
  answer.error = error.message;
  if (!(error instanceof ApiError)) answer.error = `the server does not answer: ${error.message}`;
  if (error.status === 401) askForKey();
}

async function sendAll(messages) {
  if (running) return;
  const fields = readFields($("wrong"));
  if (!fields) return;
  for (const message of messages) add(message);
  const answer = newAnswer(fields);
  const context = toMessages(conversation);
  add(answer);
  keepConversation();
  say("The model answers.");
  await make(answer, context, updateAnswer);
  updateAnswer(answer);
  keepConversation();
  say({ done: "The answer is there.", stopped: "Stopped." }[answer.state] ?? "");
}

// The same question once more, the other way; the seed is the same, and so must the text be. Its
// steps are drawn too, so that both ways have the same to bear.
async function compare(answer) {
  if (running) return;
  const fields = { ...answer.fields };
  if (usesDrafts(answer)) fields["speculative.n_max"] = 0;
  else delete fields["speculative.n_max"];
  const other = { ...newAnswer(fields), compared: answer };
  say("The model answers once more.");
  await make(other, toMessages(conversation.slice(0, conversation.indexOf(answer))), showDrafts);
  if (other.state === "done") {
    answer.compared = { perSecond: other.perSecond, same: sameText(answer, other) };
    keepConversation();
  } else if (other.state === "failed") $("wrong").textContent = other.error;
  updateAnswer(answer);
  say(answer.compared ? "The comparison is there." : "");
}

function sendTyped() {
  const text = $("message").value.trim();
  if (!text || running) return;
  sendAll([{ role: "user", content: text }]);
  if (running) $("message").value = "";
  fitMessage();
}

function stop() {
  running?.abort();
}

// ---- keys, buttons ----

function fitMessage() {
  const box = $("message");
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight + 2, 200)}px`;
}

function askForKey() {
  $("key-form").hidden = false;
  $("key").focus();
}

function listen() {
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    sendTyped();
  });
  $("message").addEventListener("input", fitMessage);
  $("message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    sendTyped();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") stop();
  });
  $("stop").addEventListener("click", stop);
  $("new-chat").addEventListener("click", () => {
    stop();
    conversation = [];
    $("wrong").textContent = "";
    keepConversation();
    showAll();
    $("message").focus();
  });
  $("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    useKey($("key").value);
    $("key").value = "";
    connect();
  });
  addEventListener("pagehide", () => {
    stop(); // else the answer's end would look like a failure of the server
    keepConversation();
  });
}

function showExamples(model) {
  const examples = model === "demo" ? DEMO : EXAMPLES;
  $("hint").textContent = examples.hint;
  suggestSettings(examples.settings);
  $("examples").replaceChildren(...examples.questions.map((question) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = question;
    button.addEventListener("click", () => {
      if (examples.tools) setTools(examples.tools);
      $("message").value = question;
      sendTyped();
    });
    return button;
  }));
}

async function connect() {
  try {
    const model = await modelName();
    setDrafts((await draftLevels()) > 0);
    $("model").textContent = model;
    $("key-form").hidden = true;
    showExamples(model);
    $("message").focus();
  } catch (error) {
    const loading = error.status === 503;
    if (error.status === 401) askForKey();
    $("model").textContent = { 401: "needs a key", 503: "loading the model" }[error.status] ?? "no connection";
    if (error.status !== 401) setTimeout(connect, loading ? 500 : 3000);
  }
}

loadConversation();
restoreSettings();
showAll();
listen();
connect();
