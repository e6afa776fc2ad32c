// settings.js: the fields of a request that the reader sets; they stay over a reload.

import { keep, load } from "./store.js";

const KEY = "offshoot.settings";
const IDS = ["temperature", "max-tokens", "thinking", "use-drafts", "tools", "more"];
const $ = (id) => document.getElementById(id);

function keepAll() {
  const own = IDS.filter((id) => !$(id).disabled);
  keep(KEY, { ...load(KEY), ...Object.fromEntries(own.map((id) => [id, $(id).value])) });
}

function set(values) {
  for (const id of IDS) if (id in values) $(id).value = values[id];
}

export function restoreSettings() {
  set(load(KEY) ?? {});
  for (const id of IDS) $(id).addEventListener("change", keepAll);
}

// What suits the model, until the reader has chosen.
export function suggestSettings(values) {
  if (!load(KEY)) set(values);
}

// Whether there is a choice: a server without drafts leaves none.
export function setDrafts(possible) {
  const box = $("use-drafts");
  if (box.disabled !== possible) return;
  box.disabled = !possible;
  box.value = possible ? (load(KEY)?.["use-drafts"] ?? "on") : "off";
}

export function setTools(tools) {
  $("tools").value = JSON.stringify(tools, null, 1);
  keepAll();
}

// The JSON in a box, undefined where it is empty. Throws what is wrong with it, in words.
function readJson(id, name, fits) {
  const text = $(id).value.trim();
  if (!text) return undefined;
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: ${error.message}`);
  }
  if (!fits(value)) throw new Error(`${name}: this is JSON of another kind`);
  return value;
}

function numberOf(id) {
  return $(id).value === "" ? undefined : Number($(id).value);
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

// The request's fields but its messages. Null, and wrong says why, where the boxes hold no JSON.
// Its seed is drawn here, so that the same request makes the same text again.
export function readFields(wrong) {
  wrong.textContent = "";
  try {
    const tools = readJson("tools", "Tools", Array.isArray);
    const thinking = $("thinking").value;
    return {
      temperature: numberOf("temperature"),
      max_tokens: numberOf("max-tokens"),
      seed: Math.floor(Math.random() * 2 ** 31),
      tools: tools?.length ? tools : undefined,
      ...(thinking && { chat_template_kwargs: { enable_thinking: thinking === "on" } }),
      ...($("use-drafts").value === "off" && { "speculative.n_max": 0 }),
      ...readJson("more", "More request fields", isObject),
    };
  } catch (error) {
    wrong.textContent = error.message;
    $("settings").open = true;
    return null;
  }
}
