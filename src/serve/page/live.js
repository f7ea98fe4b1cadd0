// The live view: what GET /stats says, twice a second. Its fields are listed in serve/metrics.h.

import { getJson } from "/api.js";
import { element, id } from "/dom.js";

const POLL_MS = 500;
const HIDDEN_POLL_MS = 5000;
const RATE_SECONDS = 2;    // a rate is taken over this long, so that it can be read
const SPARK_SECONDS = 60;
const MAX_CELLS = 480;     // of a larger pool a cell is several pages
const GOLDEN_ANGLE = 137.508;  // neighbouring colours are far apart, however many there are

const count = (n) => n.toLocaleString("en");
const rate = (n) => n.toLocaleString("en", { maximumFractionDigits: n < 10 ? 1 : 0 });

const percent = (part, all) => all ? `${Math.round(100 * part / all)}%` : "–";
const milliseconds = (s) => s === null ? "–" : s < 0.01 ? `${(1000 * s).toFixed(1)} ms`
  : s < 1 ? `${Math.round(1000 * s)} ms` : `${s.toFixed(1)} s`;

function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
}

// Colours by sequence: one keeps its colour while it runs.
class Hues {
  #slots = new Map();

  keep(keys) {
    for (const key of this.#slots.keys()) if (!keys.includes(key)) this.#slots.delete(key);
    const taken = new Set(this.#slots.values());
    let next = 0;
    for (const key of keys) {
      if (this.#slots.has(key)) continue;
      while (taken.has(next)) next++;
      taken.add(next);
      this.#slots.set(key, next);
    }
  }

  of(key) {
    return (200 + this.#slots.get(key) * GOLDEN_ANGLE) % 360;
  }
}

// Counters over the last minute, on the server's clock.
class History {
  #samples = [];

  add(time, counters) {
    const last = this.#samples.at(-1);
    if (last && time < last.time) this.#samples = [];  // the server was started again
    if (last && time === last.time) return;
    const sample = { time, ...counters };
    this.#samples.push(sample);
    sample.outputRate = this.rate("output_tokens");
    while (this.#samples[0].time < time - SPARK_SECONDS - RATE_SECONDS) this.#samples.shift();
  }

  rate(name) {
    const last = this.#samples.at(-1);
    const from = this.#samples.findLast((s) => s.time <= last.time - RATE_SECONDS)
      ?? this.#samples[0];
    return last === from ? 0 : (last[name] - from[name]) / (last.time - from.time);
  }

  // [[x from 0 to 1, rate], ...], oldest first
  curve() {
    const now = this.#samples.at(-1).time;
    return this.#samples.filter((s) => s.time >= now - SPARK_SECONDS)
      .map((s) => [1 - (now - s.time) / SPARK_SECONDS, s.outputRate]);
  }
}

function drawSpark(curve) {
  const peak = Math.max(1, ...curve.map(([, y]) => y));
  const points = curve.map(([x, y]) => `${(x * 120).toFixed(1)} ${(30 - y / peak * 28).toFixed(1)}`);
  const line = `M${points.join("L")}`;
  const start = (curve[0][0] * 120).toFixed(1);
  id("spark-line").setAttribute("d", line);
  id("spark-area").setAttribute("d", `${line}L120 32L${start} 32Z`);
  id("rate-note").textContent = `last minute, peak ${rate(peak)}`;
}

// How the pool is divided: [{kind, key, pages}], which together are all its pages. Pages that several
// sequences share count for each of them; here they are divided.
function owners(stats) {
  const { in_use: inUse, cached, free } = stats.pages;
  const held = stats.running.reduce((sum, s) => sum + s.pages, 0);
  const scale = held > inUse ? inUse / held : 1;
  const list = stats.running.map((s) => ({ kind: "in-use", key: s.key, pages: s.pages * scale }));
  list.push({ kind: "in-use", pages: Math.max(0, inUse - held) });
  list.push({ kind: "cached", pages: cached });
  list.push({ kind: "free", pages: free });
  return list;
}

// One square per page, or per some pages: whoever holds any has at least one.
function drawPages(box, stats, hues) {
  const { total } = stats.pages;
  const cells = Math.min(total, MAX_CELLS);
  if (box.children.length !== cells) {
    box.replaceChildren(...Array.from({ length: cells }, () => element("i", "free")));
    box.dataset.size = cells <= 64 ? "large" : cells <= 200 ? "medium" : "small";
  }
  let pages = 0;
  let cell = 0;
  for (const owner of owners(stats)) {
    pages += owner.pages;
    let end = Math.round(pages * cells / total);
    if (owner.pages > 0 && end <= cell) end = cell + 1;
    for (; cell < Math.min(end, cells); cell++) {
      const node = box.children[cell];
      if (node.className !== owner.kind) node.className = owner.kind;
      const hue = owner.key === undefined ? "" : String(hues.of(owner.key));
      if (node.style.getPropertyValue("--hue") !== hue) node.style.setProperty("--hue", hue);
    }
  }
  const { in_use: inUse, cached, free } = stats.pages;
  box.ariaLabel = `Pages by owner: ${inUse} in use, ${cached} cached, ${free} free of ${total}`;
  const size = `${stats.page_size} tokens`;
  id("page-note").textContent = cells === total ? `${count(total)} of ${size} each`
    : `${count(total)} of ${size} each, ${Math.round(total / cells)} a square`;
  id("pages-in-use").textContent = count(inUse);
  id("pages-cached").textContent = count(cached);
  id("pages-free").textContent = count(free);
  const shared = Math.max(0, stats.running.reduce((sum, s) => sum + s.pages, 0) - inUse);
  id("shared").hidden = shared === 0;
  id("pages-shared").textContent = count(shared);
}

function makeRow() {
  const row = element("li");
  const bar = element("span", "bar");
  bar.append(element("span"));
  row.append(element("i", "in-use"), element("span", "name"), bar, element("span", "doing"),
    element("span", "held"));
  return row;
}

// One row per sequence. What is left of the prompt is the empty part of its bar.
function drawBatch(list, stats, hues) {
  while (list.children.length > stats.running.length) list.lastChild.remove();
  while (list.children.length < stats.running.length) list.append(makeRow());
  stats.running.forEach((sequence, i) => {
    const row = list.children[i];
    const [, name, bar, doing, held] = row.children;
    const done = Math.min(sequence.computed_tokens, sequence.prompt_tokens);
    const inPrefill = done < sequence.prompt_tokens;
    row.style.setProperty("--hue", hues.of(sequence.key));
    row.classList.toggle("prefill", inPrefill);
    name.textContent = sequence.sample ? `#${sequence.request}.${sequence.sample}`
      : `#${sequence.request}`;
    bar.firstChild.style.width = `${100 * done / sequence.prompt_tokens}%`;
    bar.title = `${count(sequence.prompt_tokens)} prompt tokens`;
    doing.textContent = inPrefill ? `${count(done)} / ${count(sequence.prompt_tokens)}`
      : `${count(sequence.output_tokens)} out`;
    held.textContent = `${count(sequence.pages)} p`;
    held.title = `${count(sequence.pages)} pages`;
  });
  id("idle").hidden = stats.running.length > 0;
  id("batch-note").textContent = `${stats.running.length} of ${count(stats.max_running)}`;
}

function drawTotals(stats, history) {
  const { counters, seconds } = stats;
  const text = {
    "output-rate": rate(history.rate("output_tokens")),
    "prefill-rate": rate(history.rate("prefill_tokens")),
    "step-rate": rate(history.rate("steps")),
    "waiting": count(stats.waiting),
    "prefix-hits": percent(counters.cached_tokens, counters.prompt_tokens),
    "first-token": milliseconds(seconds.time_to_first_token.p50),
    "next-token": milliseconds(seconds.inter_token_latency.p50),
    "answers": count(counters.answers_finished),
    "output-tokens": count(counters.output_tokens),
    "prompt-tokens": count(counters.prompt_tokens),
    "refused": count(counters.requests_refused),
    "preemptions": count(counters.preemptions),
    "evicted": count(counters.evicted_pages),
    "mixed": percent(counters.mixed_steps, counters.steps),
    "uptime": duration(stats.uptime_seconds),
  };
  for (const [name, value] of Object.entries(text)) id(name).textContent = value;
}

function showState(state, title) {
  const node = id("state");
  if (node.dataset.state !== state) {
    node.dataset.state = state;
    node.textContent = state;
  }
  node.title = title;
}

export function startLive() {
  const hues = new Hues();
  const history = new History();
  let timer = 0;
  let polling = false;
  let delay = POLL_MS;

  function show(stats) {
    for (const sequence of stats.running) sequence.key = `${sequence.request}.${sequence.sample}`;
    hues.keep(stats.running.map((sequence) => sequence.key));
    history.add(stats.uptime_seconds, stats.counters);
    showState(stats.state, `Quire ${stats.version}`);
    if (stats.pages.total === 0) return;  // while the model is loaded
    drawPages(id("pages"), stats, hues);
    drawBatch(id("batch"), stats, hues);
    drawTotals(stats, history);
    drawSpark(history.curve());
  }

  async function poll() {
    clearTimeout(timer);
    if (polling) return;
    polling = true;
    let stats = null;
    try {
      stats = await getJson("/stats");
      delay = POLL_MS;
    } catch (error) {
      showState(error.status === 401 ? "locked" : "unreachable", error.message);
      // Without a key there is nothing to ask for until one is given.
      delay = error.status === 401 ? Infinity : Math.min(2 * delay, HIDDEN_POLL_MS);
    }
    polling = false;
    if (delay === Infinity) delay = POLL_MS;
    else timer = setTimeout(poll, document.hidden ? HIDDEN_POLL_MS : delay);
    if (stats) show(stats);
  }

  document.addEventListener("visibilitychange", () => document.hidden || poll());
  poll();
  return { poll };
}
