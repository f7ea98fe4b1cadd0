// What stands inside of a block of Markdown: emphasis, code, links, formulas. markdown.js has the blocks.

import { element } from "/dom.js";
import { mathElement } from "/math.js";

const MAX_DEPTH = 12;  // of emphasis and links within each other; deeper is text
const SCHEMES = ["http:", "https:", "mailto:"];
const ENTITIES = { "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "\"", "&nbsp;": "\u00a0" };

const starts = new WeakMap();
// Where in the source a text node, or a formula, begins.
export const sourceStart = (node) => starts.get(node);

export function textNode(text, at) {
  const node = document.createTextNode(text);
  starts.set(node, at);
  return node;
}

export function formulaNode(tex, display, at) {
  const node = mathElement(tex, display);
  starts.set(node, at);
  return node;
}

// A part of a line {text, at}, where `at` is the place of the text in the source.
export const cut = (line, from, to) =>
  ({ text: line.text.slice(from, to), at: line.at + from });

function safeAddress(text) {
  try {
    const url = new URL(text);
    return SCHEMES.includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

function link(address) {
  const node = element("a");
  node.href = address;
  node.target = "_blank";
  node.rel = "noopener noreferrer nofollow";
  return node;
}

// The text of some lines, and the place of each of its characters in the source.
class Inline {
  #lines;
  #missing = new Set();  // `what:to`: a search that found nothing finds nothing further on either

  constructor(lines) {
    this.#lines = lines;
    this.text = lines.map((line) => line.text).join("\n");
  }

  #sourceAt(at) {
    let line = 0;
    while (at > this.#lines[line].text.length) at -= this.#lines[line++].text.length + 1;
    return this.#lines[line].at + at;
  }

  #put(parent, from, to) {
    while (from < to) {
      const newline = this.text.indexOf("\n", from);
      const end = newline < 0 || newline > to ? to : newline;
      if (end > from) parent.append(textNode(this.text.slice(from, end), this.#sourceAt(from)));
      if (end < to) parent.append(element("br"));
      from = end + 1;
    }
  }

  draw(parent, from, to, depth) {
    const special = /[\\`$*_~[!<&]|\bhttps?:/g;
    let plain = from;
    let at = from;
    for (;;) {
      special.lastIndex = at;
      const found = special.exec(this.text);
      if (!found || found.index >= to) break;
      at = found.index;
      const taken = depth < MAX_DEPTH ? this.#take(at, to, depth + 1) : null;
      if (taken) {
        this.#put(parent, plain, at);
        parent.append(taken.node);
        at = plain = taken.end;
      } else {
        at++;
      }
    }
    this.#put(parent, plain, to);
    return parent;
  }

  // What begins at `at` and ends at or before `to`: {node, end}, or null.
  #take(at, to, depth) {
    switch (this.text[at]) {
      case "\\": return this.#escape(at, to);
      case "`": return this.#code(at, to);
      case "$": return this.#dollars(at, to);
      case "[": return this.#link(at, at, to, depth);
      case "!": return this.text[at + 1] === "[" ? this.#link(at, at + 1, to, depth) : null;
      case "<": return this.#angle(at, to);
      case "&": return this.#entity(at, to);
      case "h": return this.#address(at, to);
      default: return this.#emphasis(at, to, depth);
    }
  }

  // The first `what` from `from` on that ends at or before `to`, or -1.
  #find(what, from, to) {
    const key = `${what}:${to}`;
    if (this.#missing.has(key)) return -1;
    const found = this.text.indexOf(what, from);
    if (found >= 0 && found + what.length <= to) return found;
    this.#missing.add(key);
    return -1;
  }

  #formula(at, from, close, to, display) {
    const end = this.#find(close, from, to);
    if (end <= from) return null;
    const node = formulaNode(this.text.slice(from, end), display, this.#sourceAt(at));
    return { node, end: end + close.length };
  }

  #escape(at, to) {
    const next = this.text[at + 1];
    if (next === "(") return this.#formula(at, at + 2, "\\)", to, "inline");
    if (next === "[") return this.#formula(at, at + 2, "\\]", to, "block");
    if (at + 1 >= to || !/[!-/:-@[-`{-~]/.test(next)) return null;
    return { node: textNode(next, this.#sourceAt(at + 1)), end: at + 2 };
  }

  #code(at, to) {
    const run = /`+/y;
    run.lastIndex = at;
    const ticks = run.exec(this.text)[0];
    const from = at + ticks.length;
    const whole = new RegExp(`(?<!\`)${ticks}(?!\`)`, "g");
    whole.lastIndex = from;
    const end = this.#find(ticks, from, to) < 0 ? -1 : whole.exec(this.text)?.index ?? -1;
    if (end < 0 || end + ticks.length > to) {
      // A run that nothing closes is text as a whole.
      return { node: textNode(ticks, this.#sourceAt(at)), end: from };
    }
    const text = this.text.slice(from, end);
    const padded = /^ [^]* $/.test(text) && text.trim() !== "" ? 1 : 0;
    const node = element("code");
    this.#put(node, from + padded, end - padded);
    return { node, end: end + ticks.length };
  }

  // As Pandoc has it, so that prices stay prices: no space inside the dollars, no digit behind them.
  #dollars(at, to) {
    if (this.text[at + 1] === "$") return this.#formula(at, at + 2, "$$", to, "block");
    if (/\s/.test(this.text[at + 1] ?? " ") || /[\w$]/.test(this.text[at - 1] ?? " ")) return null;
    const end = this.#find("$", at + 1, to);
    if (end < 0 || /\s/.test(this.text[end - 1]) || /\d/.test(this.text[end + 1] ?? " ")) return null;
    return this.#formula(at, at + 1, "$", to, "inline");
  }

  #link(at, open, to, depth) {
    let end = open;
    for (let level = 0; end < to; end++) {
      const c = this.text[end];
      if (c === "\\") end++;
      else if (c === "[") level++;
      else if (c === "]" && --level === 0) break;
    }
    const target = /\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*")?\s*\)/y;
    target.lastIndex = end + 1;
    const found = end < to ? target.exec(this.text) : null;
    const address = found && target.lastIndex <= to ? safeAddress(found[1]) : null;
    if (!address) return null;
    const node = link(address);
    this.draw(node, open + 1, end, depth);
    if (!node.textContent.trim()) node.textContent = address;
    return { node, end: target.lastIndex };
  }

  #angle(at, to) {
    const found = /<(?:(br) *\/?|([a-z]+:[^\s<>]+))>/iy;
    found.lastIndex = at;
    const match = found.exec(this.text);
    if (!match || found.lastIndex > to) return null;
    if (match[1]) return { node: element("br"), end: found.lastIndex };
    const address = safeAddress(match[2]);
    if (!address) return null;
    const node = link(address);
    this.#put(node, at + 1, found.lastIndex - 1);
    return { node, end: found.lastIndex };
  }

  #entity(at, to) {
    const name = this.text.slice(at, Math.min(to, this.text.indexOf(";", at) + 1));
    if (!Object.hasOwn(ENTITIES, name)) return null;
    return { node: textNode(ENTITIES[name], this.#sourceAt(at)), end: at + name.length };
  }

  #address(at, to) {
    const found = /https?:\/\/[^\s<>"`|]+/y;
    found.lastIndex = at;
    let text = found.exec(this.text)?.[0].slice(0, to - at).replace(/[.,;:!?'*_~]+$/, "") ?? "";
    if (text.endsWith(")") && !text.includes("(")) text = text.replace(/\)+$/, "");
    const address = safeAddress(text);
    if (!address) return null;
    const node = link(address);
    this.#put(node, at, at + text.length);
    return { node, end: at + text.length };
  }

  #emphasis(at, to, depth) {
    const mark = this.text[at];
    const run = mark === "~" ? "~~" : ["***", "**", "*"].map((m) => m.replaceAll("*", mark))
      .find((m) => this.text.startsWith(m, at));
    if (!this.text.startsWith(run, at)) return null;
    const from = at + run.length;
    const opens = from < to && !/\s/.test(this.text[from])
      && (mark !== "_" || !/[\p{L}\p{N}]/u.test(this.text[at - 1] ?? " "));
    const end = opens ? this.#closer(run, from, to) : -1;
    // A run that nothing closes is text as a whole.
    if (end < 0) return { node: textNode(run, this.#sourceAt(at)), end: from };
    const tags = { 1: ["em"], 2: [mark === "~" ? "del" : "strong"], 3: ["strong", "em"] }[run.length];
    const node = element(tags[0]);
    const inner = tags[1] ? element(tags[1]) : node;
    if (inner !== node) node.append(inner);
    this.draw(inner, from, end, depth);
    return { node, end: end + run.length };
  }

  // Where emphasis that began before `from` ends; what stands in code and formulas does not end it.
  #closer(run, from, to) {
    const key = `close ${run}:${to}`;
    if (this.#missing.has(key)) return -1;
    const mark = run[0];
    for (let at = from; at + run.length <= to; at++) {
      const c = this.text[at];
      if (c === "\\") at++;
      else if (c === "`" || c === "$") {
        const inside = this.#take(at, to, MAX_DEPTH);
        if (inside) at = inside.end - 1;
      } else if (c === mark) {
        let end = at;
        while (end < to && this.text[end] === mark) end++;
        const length = end - at;
        const closes = !/\s/.test(this.text[at - 1]) && at > from
          && (mark !== "_" || !/[\p{L}\p{N}]/u.test(this.text[end] ?? " "));
        // Of a longer run the last ones: what stands before them ends what began inside.
        if (closes && (length === run.length || length === 3)) return end - run.length;
        at = end - 1;
      }
    }
    this.#missing.add(key);
    return -1;
  }
}

export function drawInline(parent, lines) {
  const trimmed = lines.map((line) => {
    const from = line.text.length - line.text.trimStart().length;
    return cut(line, from, Math.max(from, line.text.trimEnd().length));
  });
  const inline = new Inline(trimmed);
  inline.draw(parent, 0, inline.text.length, 0);
}
