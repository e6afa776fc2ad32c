// trees.js: draws what the last steps verified: the root at the left, each guess behind its parent,
// the kept path on the top line, and behind it the token that the model chose itself.

const SVG = "http://www.w3.org/2000/svg";
const BOX = 22, ROW = 27, GAP = 14, PAD = 6, LONGEST = 12;

const pen = document.createElement("canvas").getContext("2d");

function svg(name, attributes, ...children) {
  const e = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) e.setAttribute(key, value);
  e.append(...children);
  return e;
}

// Blanks can be seen; bytes that are no characters alone come as "bytes:\xe2".
function label(text) {
  const bytes = /^bytes:((?:\\x[0-9a-f]{2})+)$/.exec(text);
  if (bytes) return bytes[1].replaceAll("\\x", "‹").replace(/(‹..)/g, "$1›");
  const seen = text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  const letters = [...seen];
  return letters.length > LONGEST ? letters.slice(0, LONGEST - 1).join("") + "…" : seen;
}

const FATE = ["dropped", "kept"];

// Nodes with their text, kind and children, the kept or next one first.
function readTree(tree) {
  const nodes = tree.token.map((text, i) => ({
    text, parent: tree.parent[i], kind: i ? FATE[tree.kept[i]] : "root", children: [],
  }));
  if (tree.next !== null)
    nodes.push({ text: tree.next, parent: tree.kept.lastIndexOf(1), kind: "next", children: [] });
  for (const node of nodes) {
    const parent = nodes[node.parent];
    node.label = label(node.text);
    node.width = Math.ceil(pen.measureText(node.label).width) + 2 * PAD;
    if (!parent) continue;
    if (node.kind === "dropped") parent.children.push(node);
    else parent.children.unshift(node);
  }
  return nodes;
}

// A node stands right behind its parent, in the row of its first child. Returns width and height.
function place(nodes) {
  let rows = 1;
  const setRow = (node, row) => {
    node.y = row * ROW + (ROW - BOX) / 2;
    node.children.forEach((child, i) => setRow(child, i ? rows++ : row));
  };
  setRow(nodes[0], 0);
  for (const n of nodes) {
    const parent = nodes[n.parent];
    n.x = parent ? parent.x + parent.width + GAP : 1;
  }
  return [Math.max(...nodes.map((n) => n.x + n.width)) + 1, rows * ROW];
}

function drawEdge(parent, node) {
  const x = parent.x + parent.width, y = parent.y + BOX / 2, to = node.y + BOX / 2;
  const middle = (x + node.x) / 2, turn = Math.min(8, (to - y) / 2);
  const bend = `H${middle - 6}q6 0 6 ${turn}V${to - turn}q0 ${turn} 6 ${turn}`;
  return svg("path", { d: `M${x} ${y}${y === to ? "" : bend}H${node.x}`, class: `edge ${node.kind}` });
}

const KINDS = {
  root: "the last token", kept: "a guess that was right", dropped: "a guess that was dropped",
  next: "what the model chose next",
};

function drawNode(node) {
  const box = svg("rect", { x: node.x, y: node.y, width: node.width, height: BOX, rx: 6 });
  const text = svg("text", { x: node.x + node.width / 2, y: node.y + BOX / 2 }, node.label);
  const title = svg("title", {}, `${JSON.stringify(node.text)}: ${KINDS[node.kind]}`);
  return svg("g", { class: `node ${node.kind}` }, title, box, text);
}

// What a reader who sees no drawing is told.
function describe(nodes) {
  const texts = (kind) => nodes.filter((n) => n.kind === kind).map((n) => n.text.trim());
  const kept = texts("kept"), dropped = texts("dropped");
  return `After “${texts("root")}”: ${kept.length} of ${kept.length + dropped.length} guesses ` +
    `were right${kept.length ? ` (${kept.join(", ")})` : ""}; next “${texts("next")}”`;
}

function drawStep(tree) {
  const nodes = readTree(tree);
  const [width, height] = place(nodes);
  const drawing = svg("svg", { width, height, role: "img", "aria-label": describe(nodes) });
  const children = nodes.slice(1).sort((a, b) => (b.kind === "dropped") - (a.kind === "dropped"));
  drawing.append(...children.map((n) => drawEdge(nodes[n.parent], n)), ...nodes.map(drawNode));
  const count = document.createElement("span");
  count.className = "count";
  count.textContent = `+${tree.kept.reduce((sum, kept) => sum + kept, 0)}`;
  const step = document.createElement("li");
  step.append(count, drawing);
  return step;
}

const drawn = new WeakMap(); // tree: its element

// Shows the trees in place of what list shows, the newest last. Those that are there stay untouched:
// put in anew they would seem to be new.
export function drawTrees(list, trees) {
  pen.font = getComputedStyle(list).font;
  const steps = trees.map((tree) => {
    if (!drawn.has(tree)) drawn.set(tree, drawStep(tree));
    return drawn.get(tree);
  });
  for (const step of [...list.children]) if (!steps.includes(step)) step.remove();
  list.append(...steps.filter((step) => step.parentNode !== list));
  list.scrollTop = list.scrollHeight;
}
