// answer.js: what an answer is, made of a stream's chunks; and how it goes back to the server.

export const TREES_KEPT = 6; // of the last steps, to be drawn

// fields: those of its request but the messages, so that it can be asked for again.
export function newAnswer(fields) {
  return {
    role: "assistant", content: "", reasoning: "", calls: [], state: "running", fields,
    trees: [], steps: 0, emitted: 0, started: 0, perSecond: 0, tokens: 0,
  };
}

function addCall(answer, delta) {
  const call = (answer.calls[delta.index] ??= { id: "", name: "", arguments: "" });
  call.id += delta.id ?? "";
  call.name += delta.function?.name ?? "";
  call.arguments += delta.function?.arguments ?? "";
}

// A step emits its kept nodes but the root, and the token after them: as many as kept nodes.
function addTree(answer, tree) {
  answer.steps++;
  answer.emitted += tree.kept.reduce((sum, kept) => sum + kept, 0);
  answer.trees.push(tree);
  if (answer.trees.length > TREES_KEPT) answer.trees.shift();
}

export function addChunk(answer, chunk, now) {
  const choice = chunk.choices[0];
  answer.content += choice?.delta.content ?? "";
  answer.reasoning += choice?.delta.reasoning_content ?? "";
  for (const call of choice?.delta.tool_calls ?? []) addCall(answer, call);
  for (const tree of choice?.trees ?? []) addTree(answer, tree);
  answer.finish = choice?.finish_reason ?? answer.finish;
  answer.started ||= now;
  if (now > answer.started) answer.perSecond = (answer.emitted * 1000) / (now - answer.started);
  if (!chunk.timings) return;
  answer.perSecond = chunk.timings.predicted_per_second; // the server's clock knows better
  answer.tokens = chunk.timings.predicted_n;
}

// Tokens a step of the model gives: 1 without drafts.
export function acceptanceLength(answer) {
  return answer.steps ? answer.emitted / answer.steps : 0;
}

export function usesDrafts(answer) {
  return answer.fields["speculative.n_max"] !== 0;
}

// Equal but for ids, which are never the same.
export function sameText(a, b) {
  const said = (x) => [x.content, x.reasoning, x.calls.map((c) => [c.name, c.arguments])];
  return JSON.stringify(said(a)) === JSON.stringify(said(b));
}

function toMessage(m) {
  if (m.role !== "assistant") return { ...m };
  const calls = m.calls.map((c) => ({
    id: c.id, type: "function", function: { name: c.name, arguments: c.arguments },
  }));
  return {
    role: "assistant", content: m.content,
    ...(m.reasoning && { reasoning_content: m.reasoning }),
    ...(calls.length && { tool_calls: calls }),
  };
}

// An answer that failed or was stopped early may have said nothing.
function saysSomething(m) {
  return m.content || m.reasoning_content || m.tool_calls;
}

export function toMessages(conversation) {
  return conversation.map(toMessage).filter(saysSomething);
}
