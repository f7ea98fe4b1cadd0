// The conversation.

import { events, getJson, request } from "/api.js";
import { element, id } from "/dom.js";

const SETTINGS = ["system", "temperature", "max-tokens"];

// Shows `text` in `box`: what stands between lines of ``` as code, the rest as it is. Only the blocks
// that changed are touched, so that a selection survives the next token.
export function showText(box, text) {
  const parts = text.split(/^ *```.*\n?/m);
  parts.forEach((part, i) => {
    const isCode = i % 2 === 1;
    if (box.children.length <= i) box.append(element(isCode ? "pre" : "div"));
    const shown = isCode ? part.replace(/\n$/, "") : part.replace(/^\n+|\n+$/g, "");
    if (box.children[i].textContent !== shown) box.children[i].textContent = shown;
  });
  while (box.children.length > parts.length) box.lastChild.remove();
}

const plural = (n, word) => `${n.toLocaleString("en")} ${word}${n === 1 ? "" : "s"}`;

function usageLine(usage, times) {
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const parts = [
    `${plural(usage.prompt_tokens, "prompt token")}, ${cached.toLocaleString("en")} cached`,
    plural(usage.completion_tokens, "output token"),
  ];
  if (times.first) {
    parts.push(`first after ${Math.round(times.first - times.sent)} ms`);
    const seconds = (times.last - times.first) / 1000;
    if (usage.completion_tokens > 1 && seconds > 0) {
      parts.push(`${((usage.completion_tokens - 1) / seconds).toFixed(1)} per second`);
    }
  }
  return parts.join(" · ");
}

// One question with its answer, and where they stand on the page.
class Turn {
  constructor(question) {
    this.question = question;
    this.text = "";
    this.reasoning = "";
    this.node = element("div", "turn");
    const asked = element("div", "message user");
    asked.append(element("h3", "sr", "You"), element("div", "text"));
    showText(asked.lastChild, question);
    this.answer = element("div", "message assistant");
    this.node.append(asked, this.answer);
    this.reset();
  }

  reset() {
    this.text = this.reasoning = "";
    this.thoughts = element("details", "reasoning");
    this.thoughts.hidden = true;
    this.thoughts.append(element("summary", "", "Thinking"), element("div"));
    this.body = element("div", "text");
    this.foot = element("div", "foot");
    this.answer.replaceChildren(element("h3", "sr", "Answer"), this.thoughts, this.body, this.foot);
    this.answer.classList.add("waiting");
  }

  render() {
    this.thoughts.hidden = this.reasoning === "";
    this.thoughts.firstChild.textContent = this.text ? "Reasoning" : "Thinking";
    if (!this.thoughts.hidden) showText(this.thoughts.lastChild, this.reasoning.trim());
    showText(this.body, this.text);
    this.answer.classList.toggle("waiting", !this.text && this.answer.ariaBusy === "true");
  }

  note(className, text) {
    this.foot.append(element("p", className, text));
  }
}

export function startChat({ onActivity }) {
  const log = id("log");
  const question = id("question");
  let turns = [];
  let running = null;  // {turn, abort}
  let model = null;
  let following = true;

  async function findModel() {
    if (model) return model;
    const found = (await getJson("/v1/models")).data[0];
    model = found.id;
    id("model").textContent = model;
    if (found.max_model_len) id("max-tokens").max = found.max_model_len;
    return model;
  }

  // Turns without an answer are left out: a template may insist on roles that alternate.
  function messages(last) {
    const list = [];
    const system = id("system").value.trim();
    if (system) list.push({ role: "system", content: system });
    for (const turn of turns) {
      if (turn === last) break;
      if (!turn.text) continue;
      list.push({ role: "user", content: turn.question });
      list.push({ role: "assistant", content: turn.text });
    }
    list.push({ role: "user", content: last.question });
    return list;
  }

  async function body(turn) {
    const fields = {
      model: await findModel(),
      messages: messages(turn),
      stream: true,
      stream_options: { include_usage: true },
    };
    const temperature = id("temperature").valueAsNumber;
    const maxTokens = id("max-tokens").valueAsNumber;
    if (!Number.isNaN(temperature)) fields.temperature = temperature;
    if (!Number.isNaN(maxTokens)) fields.max_tokens = maxTokens;
    return JSON.stringify(fields);
  }

  // Whoever has scrolled up to read is left there.
  function follow() {
    if (following) log.scrollTop = log.scrollHeight;
  }

  async function read(turn, abort) {
    const times = { sent: performance.now() };
    let frame = 0;
    let usage = null;
    let finish = null;
    const render = () => {
      frame = 0;
      turn.render();
      follow();
    };
    try {
      const response = await request("/v1/chat/completions", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: await body(turn),
        signal: abort.signal,
      });
      onActivity();
      for await (const data of events(response.body)) {
        if (data === "[DONE]") return { usage, finish, times };
        const event = JSON.parse(data);
        if (event.error) throw new Error(event.error.message);
        usage = event.usage ?? usage;
        const choice = event.choices?.[0];
        if (!choice) continue;
        finish = choice.finish_reason ?? finish;
        const { content, reasoning_content: thought } = choice.delta ?? {};
        if (!content && !thought) continue;
        times.last = performance.now();
        times.first ??= times.last;
        turn.text += content ?? "";
        turn.reasoning += thought ?? "";
        frame ||= requestAnimationFrame(render);
      }
      throw new Error("the connection ended before the answer did");
    } finally {
      cancelAnimationFrame(frame);
    }
  }

  function setRunning(next) {
    running = next;
    id("send").hidden = running !== null;
    id("stop").hidden = running === null;
  }

  async function run(turn) {
    const abort = new AbortController();
    turn.reset();
    turn.answer.ariaBusy = "true";
    setRunning({ turn, abort });
    following = true;
    follow();
    let result = null;
    let failure = null;
    try {
      result = await read(turn, abort);
    } catch (error) {
      failure = error;
    }
    turn.answer.ariaBusy = "false";
    turn.render();
    if (abort.signal.aborted) turn.note("note", "Stopped.");
    else if (failure) showError(turn, failure);
    else showResult(turn, result);
    follow();
    if (running?.turn === turn) setRunning(null);
    onActivity();
  }

  function showResult(turn, { usage, finish, times }) {
    if (finish === "length") turn.note("note", "Ended at the limit of tokens.");
    else if (finish !== "stop") turn.note("note", `Ended: ${finish}.`);
    if (usage) turn.note("usage", usageLine(usage, times));
  }

  function showError(turn, error) {
    turn.note("error", error.status ? `${error.message} (${error.status})` : error.message);
    turn.foot.lastChild.role = "alert";
    const again = element("button", "quiet", "Try again");
    again.type = "button";
    again.onclick = () => running === null && run(turn);
    turn.foot.append(again);
  }

  function showSettings(shown) {
    id("settings").hidden = !shown;
    id("settings-button").ariaExpanded = String(shown);
  }

  function send() {
    const text = question.value.trim();
    if (!text || running) return;
    const wrong = SETTINGS.map(id).find((input) => !input.checkValidity());
    if (wrong) {
      showSettings(true);
      wrong.reportValidity();
      return;
    }
    const turn = new Turn(text);
    turns.push(turn);
    id("welcome").hidden = true;
    log.append(turn.node);
    question.value = "";
    fit();
    run(turn);
  }

  function fit() {
    question.style.height = "auto";
    question.style.height = `${Math.min(question.scrollHeight + 2, 200)}px`;
  }

  log.onscroll = () => {
    following = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  };
  new ResizeObserver(follow).observe(log);
  id("composer").onsubmit = (event) => {
    event.preventDefault();
    send();
  };
  question.oninput = fit;
  question.onkeydown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  id("stop").onclick = () => {
    running?.abort.abort();
    question.focus();
  };
  id("new").onclick = () => {
    running?.abort.abort();
    setRunning(null);
    for (const turn of turns) turn.node.remove();
    turns = [];
    id("welcome").hidden = false;
    question.focus();
  };
  id("settings-button").onclick = () => showSettings(id("settings").hidden);
  for (const name of SETTINGS) {
    id(name).value = localStorage.getItem(`quire-${name}`) ?? "";
    id(name).onchange = () => localStorage.setItem(`quire-${name}`, id(name).value);
  }
  findModel().catch(() => {});  // Said when something is sent.
}
