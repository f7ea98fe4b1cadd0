// Markdown to elements: what models write of CommonMark, tables, and TeX. Text of the source becomes
// text nodes and nothing else; an image becomes a link, so that no answer makes the browser ask anyone.

import { copyButton, element } from "/dom.js";
import { cut, drawInline, formulaNode, textNode } from "/inline.js";

const MAX_DEPTH = 12;           // of quotes and lists within each other; deeper is text
const MAX_FORMULA_LINES = 200;  // of a formula that stands alone

// ---- Lines: {text, at}, where `at` is the place of the text in the source ----

function linesOf(source) {
  let at = 0;
  return source.split("\n").map((text) => {
    const line = { text: text.replace(/\r$/, ""), at };
    at += text.length + 1;
    return line;
  });
}

const isBlank = (line) => /^\s*$/.test(line.text);

// In columns; a tab is four.
function indentOf(line) {
  let columns = 0;
  for (const c of line.text) {
    if (c !== " " && c !== "\t") break;
    columns += c === "\t" ? 4 : 1;
  }
  return columns;
}

function dropIndent(line, columns) {
  let i = 0;
  for (let dropped = 0; dropped < columns && /[ \t]/.test(line.text[i] ?? ""); i++) {
    dropped += line.text[i] === "\t" ? 4 : 1;
  }
  return cut(line, i);
}

// ---- Blocks. A reader is given the lines and the first one's number; it returns the number of the
// line behind its block and what draws it, or null where there is no such block. ----

function codeBlock(language, lines) {
  const box = element("div", "code");
  const bar = element("div", "bar-of-code");
  const code = element("code");
  lines.forEach((line, i) => {
    code.append(textNode(i + 1 < lines.length ? `${line.text}\n` : line.text, line.at));
  });
  bar.append(element("span", "", language), copyButton("Copy code", () => code.textContent));
  const pre = element("pre");
  pre.tabIndex = 0;  // so that it can be scrolled with keys
  pre.append(code);
  box.append(bar, pre);
  return box;
}

function readFence(lines, i) {
  const open = /^( *)(`{3,}|~{3,})([^`]*)$/.exec(lines[i].text);
  if (!open) return null;
  const [, indent, fence, language] = open;
  const close = new RegExp(`^ *${fence[0]}{${fence.length},}\\s*$`);
  let end = i + 1;
  while (end < lines.length && !close.test(lines[end].text)) end++;
  const code = lines.slice(i + 1, end).map((line) => dropIndent(line, indent.length));
  return { next: Math.min(end + 1, lines.length), draw: () => codeBlock(language.trim(), code) };
}

function readIndented(lines, i) {
  const isCode = (line) => indentOf(line) >= 4 && !isBlank(line);
  if (!isCode(lines[i])) return null;
  let end = i + 1;
  for (let j = end; j < lines.length && (isCode(lines[j]) || isBlank(lines[j])); j++) {
    if (isCode(lines[j])) end = j + 1;
  }
  const code = lines.slice(i, end).map((line) => dropIndent(line, 4));
  return { next: end, draw: () => codeBlock("", code) };
}

// $$ ... $$ or \[ ... \] with nothing before and nothing but punctuation behind it.
function readFormula(lines, i) {
  const begin = /^\s*(\$\$|\\\[)/.exec(lines[i].text);
  if (!begin) return null;
  const close = begin[1] === "$$" ? "$$" : "\\]";
  const tex = [];
  for (let j = i; j < Math.min(lines.length, i + MAX_FORMULA_LINES); j++) {
    const text = j === i ? lines[i].text.slice(begin[0].length) : lines[j].text;
    const end = text.indexOf(close);
    if (end < 0) {
      tex.push(text);
      continue;
    }
    const behind = text.slice(end + close.length).trim();
    if (!/^[.,;:]?$/.test(behind)) return null;
    tex.push(text.slice(0, end));
    const draw = () => {
      const box = element("div", "formula");
      box.append(formulaNode(tex.join("\n"), "block", lines[i].at), behind);
      return box;
    };
    return { next: j + 1, draw };
  }
  return null;
}

function readHeading(lines, i) {
  const line = lines[i];
  const open = /^ {0,3}(#{1,6})(?:[ \t]+|$)/.exec(line.text);
  if (!open) return null;
  const end = line.text.trimEnd().replace(/[ \t]#+$/, "").length;
  const draw = () => {
    // The page's own headings end at the third level.
    const node = element(`h${Math.min(6, open[1].length + 3)}`);
    drawInline(node, [cut(line, open[0].length, end)]);
    return node;
  };
  return { next: i + 1, draw };
}

function readRule(lines, i) {
  if (!/^ {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$/.test(lines[i].text)) return null;
  return { next: i + 1, draw: () => element("hr") };
}

function cellsOf(line) {
  const cells = [];
  let from = /^\s*\|?/.exec(line.text)[0].length;
  const end = line.text.trimEnd().length;
  for (let i = from; i < end; i++) {
    if (line.text[i] === "\\") i++;
    else if (line.text[i] === "|") {
      cells.push(cut(line, from, i));
      from = i + 1;
    }
  }
  if (from < end) cells.push(cut(line, from, end));
  return cells;
}

function readTable(lines, i) {
  if (!lines[i].text.includes("|") || i + 1 === lines.length) return null;
  if (!/^\s*\|?[\s:|-]*-[\s:|-]*$/.test(lines[i + 1].text)) return null;
  const head = cellsOf(lines[i]);
  const rule = cellsOf(lines[i + 1]).map((cell) => cell.text.trim());
  if (rule.length !== head.length || !rule.every((text) => /^:?-+:?$/.test(text))) return null;
  let end = i + 2;
  while (end < lines.length && lines[end].text.includes("|")) end++;
  const side = rule.map((text) => (!text.endsWith(":") ? "" : text[0] === ":" ? "center" : "right"));
  const row = (tag, cells) => {
    const node = element("tr");
    side.forEach((className, column) => {
      const cell = element(tag, className);
      if (cells[column]) drawInline(cell, [cells[column]]);
      node.append(cell);
    });
    return node;
  };
  const draw = () => {
    const [box, table, top, body] = ["div", "table", "thead", "tbody"].map((tag) => element(tag));
    box.className = "table";
    box.tabIndex = 0;
    top.append(row("th", head));
    body.append(...lines.slice(i + 2, end).map((line) => row("td", cellsOf(line))));
    table.append(top, body);
    box.append(table);
    return box;
  };
  return { next: end, draw };
}

function readQuote(lines, i, depth) {
  const mark = /^ {0,3}> ?/;
  let end = i;
  while (end < lines.length && mark.test(lines[end].text)) end++;
  if (end === i || depth >= MAX_DEPTH) return null;
  const inner = lines.slice(i, end).map((line) => cut(line, mark.exec(line.text)[0].length));
  return { next: end, draw: () => drawBlocks(element("blockquote"), inner, depth + 1) };
}

// {indent, width, number} of a list's item; number is null for a bullet.
function itemMark(line) {
  const mark = /^([ \t]*)([-*+]|(\d{1,9})[.)])(?:[ \t]+|$)/.exec(line.text);
  return mark && { indent: indentOf(line), width: mark[0].length, number: mark[3] ?? null };
}

// The lines of the item at i, with the first one's mark and the others' indent taken off, and the
// number of the line behind it. Models indent by two where CommonMark asks for three: two will do.
function readItem(lines, i, mark) {
  const inner = [cut(lines[i], mark.width)];
  let j = i + 1;
  while (j < lines.length) {
    let text = j;
    while (text < lines.length && isBlank(lines[text])) text++;
    if (text === lines.length) break;
    const isInside = indentOf(lines[text]) >= mark.indent + 2;
    if (!isInside && (text > j || startsBlock(lines, text) || itemMark(lines[text]))) break;
    while (j <= text) inner.push(dropIndent(lines[j++], mark.width));
  }
  return { inner, next: j };
}

function readList(lines, i, depth) {
  const first = itemMark(lines[i]);
  if (!first || depth >= MAX_DEPTH) return null;
  const items = [];
  let next = i;
  for (let j = i; j < lines.length;) {
    const mark = itemMark(lines[j]);
    const belongs = mark && mark.indent <= first.indent + 1
      && (mark.number === null) === (first.number === null) && !readRule(lines, j);
    if (!belongs) break;
    const item = readItem(lines, j, mark);
    items.push(item.inner);
    j = next = item.next;
    while (j < lines.length && isBlank(lines[j])) j++;
  }
  const draw = () => {
    const list = element(first.number === null ? "ul" : "ol");
    if (first.number !== null && first.number !== "1") list.start = Number(first.number);
    for (const inner of items) {
      const box = element("li");
      const task = /^\[([ xX])\] /.exec(inner[0].text);
      if (task) {
        box.className = "task";
        box.append(task[1] === " " ? "☐ " : "☑ ");
        inner[0] = cut(inner[0], task[0].length);
      }
      list.append(drawBlocks(box, inner, depth + 1));
    }
    return list;
  };
  return { next, draw };
}

// What may follow a paragraph without a blank line between them.
function startsBlock(lines, i) {
  const mark = itemMark(lines[i]);
  if (mark && (mark.number === null || mark.number === "1")) return true;
  return [readFence, readFormula, readHeading, readRule, readTable].some((read) => read(lines, i))
    || /^ {0,3}>/.test(lines[i].text);
}

function readParagraph(lines, i) {
  let end = i + 1;
  while (end < lines.length && !isBlank(lines[end]) && !startsBlock(lines, end)) end++;
  const draw = () => {
    const node = element("p");
    drawInline(node, lines.slice(i, end));
    return node;
  };
  return { next: end, draw };
}

const READERS = [readFence, readFormula, readHeading, readRule, readTable, readQuote, readList,
                 readIndented, readParagraph];

function* blocksOf(lines, depth) {
  for (let i = 0; i < lines.length;) {
    if (isBlank(lines[i])) {
      i++;
      continue;
    }
    let block = null;
    for (const read of READERS) if ((block = read(lines, i, depth))) break;
    yield { first: i, ...block };
    i = block.next;
  }
}

function drawBlocks(parent, lines, depth) {
  for (const block of blocksOf(lines, depth)) parent.append(block.draw());
  return parent;
}

// What a person wrote: as it was typed, but for code between fences.
function* plainBlocksOf(lines) {
  for (let i = 0; i < lines.length;) {
    const fence = readFence(lines, i);
    let end = i;
    while (end < lines.length && !readFence(lines, end)) end++;
    const text = lines.slice(i, end).map((line) => line.text).join("\n").replace(/^\n+|\n+$/g, "");
    const draw = fence?.draw ?? (() => element("div", "typed", text));
    if (fence || text) yield { first: i, next: fence?.next ?? end, draw };
    i = fence?.next ?? end;
  }
}

// ---- The whole ----

const drawnFrom = new WeakMap();  // an element of the top level -> what it was drawn from

// Only blocks that changed are drawn again, so that a selection survives the next token.
function show(box, source, readBlocks) {
  const lines = linesOf(source);
  let i = 0;
  for (const block of readBlocks(lines, 0)) {
    const { at } = lines[block.first];
    const last = lines[block.next - 1];
    const from = `${at} ${source.slice(at, last.at + last.text.length)}`;
    const old = box.children[i++];
    if (old && drawnFrom.get(old) === from) continue;
    const node = block.draw();
    drawnFrom.set(node, from);
    if (old) old.replaceWith(node);
    else box.append(node);
  }
  while (box.children.length > i) box.lastChild.remove();
}

export const showMarkdown = (box, source) => show(box, source, blocksOf);
export const showPlain = (box, source) => show(box, source, plainBlocksOf);
