// api.js: asking the server: the model's name, whether it drafts, and one answer as a stream of chunks.

const KEY = "offshoot.key"; // of sessionStorage: for this tab alone
let key = null;

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function useKey(text) {
  key = text;
  try {
    sessionStorage.setItem(KEY, text);
  } catch {
    // then it does not outlive this page
  }
}

function headers() {
  try {
    key ??= sessionStorage.getItem(KEY);
  } catch {
    // nothing was kept
  }
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function ask(path, options) {
  const response = await fetch(path, { headers: headers(), ...options });
  if (response.ok) return response;
  let message = `the server answered ${response.status}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // not our JSON: a proxy's page, say
  }
  throw new ApiError(response.status, message);
}

export async function modelName() {
  const models = await (await ask("v1/models")).json();
  return models.data[0].id;
}

// Levels of drafts that the server makes at most; 0: it makes none.
export async function draftLevels() {
  const props = await (await ask("props")).json();
  return props.default_generation_settings.params["speculative.n_max"];
}

// The chunks of an answer, as they come.
export async function* chatChunks(body, signal) {
  const post = { method: "POST", body: JSON.stringify(body), signal };
  const response = await ask("v1/chat/completions", post);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new ApiError(0, "the connection ended before the answer did");
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event === "data: [DONE]") return;
      if (!event.startsWith("data: ")) continue; // a comment keeps the connection alive
      const chunk = JSON.parse(event.slice(6));
      if (chunk.error) throw new ApiError(200, chunk.error.message);
      yield chunk;
    }
  }
}
