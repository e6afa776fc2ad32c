// markdown.js: a little Markdown as elements. Text only ever becomes text nodes: what a model or a
// user writes is never read as HTML.

function element(name, ...children) {
  const e = document.createElement(name);
  e.append(...children);
  return e;
}

const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*(?!\*)|\*([^\s*](?:.*?[^\s*])?)\*/;

function inline(text) {
  const nodes = [];
  for (;;) {
    const m = INLINE.exec(text);
    if (!m) break;
    nodes.push(text.slice(0, m.index));
    if (m[1]) nodes.push(element("code", m[2]));
    else if (m[3]) nodes.push(element("strong", ...inline(m[3])));
    else nodes.push(element("em", ...inline(m[4])));
    text = text.slice(m.index + m[0].length);
  }
  nodes.push(text);
  return nodes.filter((n) => n !== "");
}

const FENCE = /^\s*(```+|~~~+)\s*(\S*)/;
const HEADING = /^(#{1,6})\s+(.*)/;
const BULLET = /^\s*[-*+]\s+(.*)/;
const NUMBER = /^\s*(\d+)[.)]\s+(.*)/;

function isBlock(line) {
  return [FENCE, HEADING, BULLET, NUMBER].some((r) => r.test(line));
}

// A fence that is still open, as in a stream, holds all that has come.
function codeBlock(lines) {
  const fence = FENCE.exec(lines.shift())[1];
  const code = [];
  while (lines.length && !lines[0].trim().startsWith(fence)) code.push(lines.shift());
  lines.shift();
  return element("pre", element("code", code.join("\n")));
}

function list(lines, name, pattern) {
  const items = element(name);
  const first = pattern.exec(lines[0]);
  if (name === "ol") items.start = Number(first[1]);
  for (let m; lines.length && (m = pattern.exec(lines[0])); ) {
    lines.shift();
    items.append(element("li", ...inline(m[m.length - 1])));
  }
  return items;
}

function paragraph(lines) {
  const p = element("p");
  do {
    if (p.hasChildNodes()) p.append(element("br"));
    p.append(...inline(lines.shift()));
  } while (lines.length && lines[0].trim() && !isBlock(lines[0]));
  return p;
}

export function markdown(text) {
  const lines = text.split("\n");
  const blocks = [];
  while (lines.length) {
    const heading = HEADING.exec(lines[0]);
    if (!lines[0].trim()) lines.shift();
    else if (FENCE.test(lines[0])) blocks.push(codeBlock(lines));
    else if (heading) blocks.push(element("h4", ...inline((lines.shift(), heading[2]))));
    else if (BULLET.test(lines[0])) blocks.push(list(lines, "ul", BULLET));
    else if (NUMBER.test(lines[0])) blocks.push(list(lines, "ol", NUMBER));
    else blocks.push(paragraph(lines));
  }
  return blocks;
}
