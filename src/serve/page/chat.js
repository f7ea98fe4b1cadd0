// The conversation on the page: asking, stopping, editing, asking again.

import { findConversation, keepConversation, newConversation } from "/conversations.js";
import { element, id } from "/dom.js";
import { startHistory } from "/history.js";
import { AnswerView, questionView, toolResultView } from "/message.js";
import { checkSettings, findModel, settingsFields, startSettings, systemMessage } from "/settings.js";
import { forModel, newAnswer, readAnswer } from "/stream.js";

const OPEN = "quire-open";  // of this tab: the conversation that a reload shows again

// onActivity is called when the engine begins or ends something, onShow when the chat is to be seen.
export function startChat({ onActivity, onShow }) {
  const log = id("log");
  const question = id("question");
  const tokens = new WeakMap();  // of answers since the page was loaded, if they were asked for
  let conversation = findConversation(sessionStorage.getItem(OPEN)) ?? newConversation();
  let views = [];      // one for each message; null but for answers
  let running = null;  // {answer, abort}
  let following = true;

  // ---- Showing ----

  // Whoever has scrolled up to read is left there.
  function follow() {
    if (following) log.scrollTop = log.scrollHeight;
  }

  function addView(message) {
    if (message.role === "user") log.append(element("div", "turn"));
    let view = null;
    let node = null;
    if (message.role === "assistant") {
      view = new AnswerView(message, tokens.get(message), {
        onAgain: () => askAgain(message),
        onResults: (texts) => sendResults(message, texts),
      });
      ({ node } = view);
    } else if (message.role === "tool") {
      node = toolResultView(message);
    } else {
      node = questionView(message, {
        canEdit: () => running === null,
        onEdit: (text) => ask(text, conversation.messages.indexOf(message)),
      });
    }
    log.lastChild.append(node);
    views.push(view);
  }

  // All but the answer that is being read: only the last one can be asked for again.
  function renderViews() {
    views.forEach((view, i) => {
      if (running?.answer !== conversation.messages[i]) view?.render(false, i + 1 === views.length);
    });
  }

  function draw() {
    for (const turn of log.querySelectorAll(".turn")) turn.remove();
    views = [];
    conversation.messages.forEach(addView);
    renderViews();
    id("welcome").hidden = conversation.messages.length > 0;
    following = true;
    follow();
  }

  function keep() {
    conversation.updated = Date.now();
    id("storage-full").hidden = keepConversation(conversation);
    sessionStorage.setItem(OPEN, conversation.id);
    past.draw();
  }

  // ---- Asking ----

  function setRunning(next) {
    running = next;
    id("send").hidden = running !== null;
    id("stop").hidden = running === null;
  }

  // Answers what the conversation ends with.
  async function run() {
    const { messages } = conversation;
    const answer = newAnswer();
    const read = { content: [], reasoning: [] };
    const asked = conversation;
    const abort = new AbortController();
    const fields = settingsFields();
    if (fields.logprobs) tokens.set(answer, read);
    fields.messages = forModel(messages, systemMessage());
    messages.push(answer);
    setRunning({ answer, abort });
    addView(answer);
    renderViews();
    const view = views.at(-1);
    view.render(true, true);
    id("welcome").hidden = true;
    // What was pressed may be gone.
    if (document.activeElement === document.body) log.focus({ preventScroll: true });
    following = true;
    follow();
    keep();
    let frame = 0;
    const render = () => {
      frame = 0;
      view.render(true, true);
      follow();
    };
    try {
      fields.model = await findModel();
      await readAnswer(fields, answer, read, {
        signal: abort.signal,
        onStart: onActivity,
        onPiece: () => { frame ||= requestAnimationFrame(render); },
      });
    } catch (error) {
      if (abort.signal.aborted) answer.stopped = true;
      else answer.error = error.status ? `${error.message} (${error.status})` : error.message;
    }
    cancelAnimationFrame(frame);
    onActivity();
    if (conversation !== asked) return;  // Whoever left it has kept it.
    setRunning(null);
    view.render(false, true);
    follow();
    keep();
  }

  // Asks `text` in the place of message `index` and all behind it, or behind all of them.
  function ask(text, index = conversation.messages.length) {
    if (running || !checkSettings()) return false;
    conversation.messages.splice(index, Infinity, { role: "user", content: text });
    draw();
    run();
    return true;
  }

  function askAgain(answer) {
    if (running || !checkSettings()) return;
    conversation.messages.splice(conversation.messages.indexOf(answer), Infinity);
    draw();
    run();
  }

  function sendResults(answer, texts) {
    if (running || !checkSettings()) return;
    answer.tool_calls.forEach((call, i) => conversation.messages.push(
      { role: "tool", tool_call_id: call.id, content: texts[i] }));
    draw();
    run();
  }

  function stop() {
    running?.abort.abort();
  }

  // Ends what runs, and keeps what came of it.
  function leave() {
    if (!running) return;
    running.answer.stopped = true;
    keep();
    stop();
    setRunning(null);
  }

  function open(other) {
    leave();
    conversation = other;
    sessionStorage.setItem(OPEN, conversation.id);
    draw();
    past.draw();
    onShow();
    question.focus();
  }

  // ---- The form ----

  function send() {
    const text = question.value.trim();
    if (!text || !ask(text)) return;
    question.value = "";
    fit();
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
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.isComposing && !document.querySelector("dialog[open]")) stop();
  });
  id("stop").onclick = () => {
    stop();
    question.focus();
  };
  id("new").onclick = () => open(newConversation());
  for (const example of document.querySelectorAll(".example")) {
    example.onclick = () => ask(example.textContent);
  }
  addEventListener("pagehide", leave);

  startSettings();
  const past = startHistory({
    current: () => conversation,
    onOpen: (name) => name === conversation.id ? onShow() : open(findConversation(name)),
    onDelete: (name) => {
      if (name !== conversation.id) return;
      stop();
      setRunning(null);
      open(newConversation());
    },
  });
  draw();
  findModel().catch(() => {});  // Said when something is sent.
}
