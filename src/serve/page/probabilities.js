// How likely each token of an answer was, and what else could have stood there: under the pointer, and
// with the arrow keys.

import { element, id } from "/dom.js";
import { sourceStart } from "/inline.js";

// Which characters of `text` each token is: [{token, from, to}], in order. Tokens that are not in it (the
// one that ends an answer, say) are left out. Tokens that share a character each have it.
export function placeTokens(tokens, text) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  const places = [];
  let begun = [];  // tokens of which a character has begun that a later one ends
  let at = 0;
  for (const token of tokens) {
    const bytes = Uint8Array.from(token.bytes ?? []);
    let piece = decoder.decode(bytes, { stream: true });
    if (piece === "") {
      if (bytes.length) begun.push(token);
      continue;
    }
    if (!text.startsWith(piece, at)) piece = piece.trimStart();  // as before an answer
    // What could not be ended is shown as a character that says so.
    if (!text.startsWith(piece, at) && piece[0] === "\ufffd") piece = "\ufffd";
    if (piece && text.startsWith(piece, at)) {
      const character = at + (text.codePointAt(at) > 0xffff ? 2 : 1);
      for (const other of begun) places.push({ token: other, from: at, to: character });
      places.push({ token, from: at, to: at + piece.length });
      at += piece.length;
    }
    begun = [];
  }
  return places;
}

const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ | $/g, "␣");

function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  return value >= 99.95 ? "100%" : value < 0.1 ? "<0.1%" : `${value.toFixed(1)}%`;
}

function drawCard(card, token) {
  const others = token.top_logprobs ?? [];
  const rows = others.some((other) => other.token === token.token) ? others : [token, ...others];
  const list = element("ul");
  for (const row of rows) {
    const item = element("li", row.token === token.token ? "chosen" : "");
    const bar = element("span", "bar");
    bar.append(element("span"));
    bar.firstChild.style.width = `${100 * Math.exp(row.logprob)}%`;
    item.append(element("code", "", visible(row.token)), bar, element("span", "", percent(row.logprob)));
    list.append(item);
  }
  card.replaceChildren(list);
}

function caretAt(x, y) {
  if (document.caretPositionFromPoint) {
    const caret = document.caretPositionFromPoint(x, y);
    return caret && { node: caret.offsetNode, offset: caret.offset };
  }
  const range = document.caretRangeFromPoint(x, y);
  return range && { node: range.startContainer, offset: range.startOffset };
}

// The part of a token that stands in one text node of `box`, as a range; null if none is shown.
function rangeOf(box, { from, to }) {
  const walker = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const start = sourceStart(node);
    if (start === undefined || start >= to || start + node.length <= from) continue;
    const range = document.createRange();
    range.setStart(node, Math.max(0, from - start));
    range.setEnd(node, Math.min(node.length, to - start));
    return range;
  }
  return null;
}

// Has `box`, which shows the Markdown `text()`, tell about its `tokens`.
export function showProbabilities(box, tokens, text) {
  const card = id("token-card");
  let places = [];
  let placed = "";
  let shown = -1;

  function place() {
    const key = `${tokens.length} ${text().length}`;
    if (key === placed) return;
    placed = key;
    places = placeTokens(tokens, text());
  }

  function hide() {
    shown = -1;
    card.hidden = true;
    CSS.highlights?.delete("token");
  }

  function show(index) {
    const range = rangeOf(box, places[index]);
    if (!range) return hide();
    shown = index;
    drawCard(card, places[index].token);
    card.hidden = false;
    const at = range.getBoundingClientRect();
    const room = document.documentElement;
    card.style.left = `${Math.max(8, Math.min(at.left, room.clientWidth - card.offsetWidth - 8))}px`;
    const below = at.bottom + 6;
    card.style.top = below + card.offsetHeight < room.clientHeight ? `${below}px`
      : `${at.top - card.offsetHeight - 6}px`;
    if (window.Highlight) CSS.highlights.set("token", new Highlight(range));
  }

  function indexUnder(event) {
    const caret = caretAt(event.clientX, event.clientY);
    const start = caret && sourceStart(caret.node);
    if (start === undefined || start === null) return -1;
    // The caret stands between two characters: the nearer one may be the one before it.
    for (const offset of [caret.offset, caret.offset - 1]) {
      const at = start + offset;
      const index = places.findIndex(({ from, to }) => from <= at && at < to);
      const area = index >= 0 && rangeOf(box, places[index])?.getBoundingClientRect();
      if (area && event.clientX >= area.left && event.clientX <= area.right) return index;
    }
    return -1;
  }

  box.tabIndex = 0;
  box.setAttribute("role", "group");
  box.ariaLabel = "Answer. The arrow keys go through its tokens and their probabilities.";
  box.onpointermove = (event) => {
    place();
    const index = indexUnder(event);
    if (index < 0) hide();
    else if (index !== shown) show(index);
  };
  box.onpointerleave = box.onblur = hide;
  box.onkeydown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || event.target !== box) return;
    event.preventDefault();
    place();
    // Tokens of which nothing is shown, such as the ** of bold text, are passed over.
    for (let i = shown + step; i >= 0 && i < places.length; i += step) {
      if (!rangeOf(box, places[i])) continue;
      show(i);
      return;
    }
  };
}
