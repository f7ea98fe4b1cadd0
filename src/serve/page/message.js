// How a message stands on the page.

import { button, copyButton, element } from "/dom.js";
import { showMarkdown, showPlain } from "/markdown.js";
import { showProbabilities } from "/probabilities.js";

// A question. onEdit is called with what it was changed to.
export function questionView(message, { canEdit, onEdit }) {
  const node = element("div", "message user");
  const text = element("div", "text");
  showPlain(text, message.content);
  const actions = element("div", "actions");

  function edit() {
    if (!canEdit()) return;
    const form = element("form", "edit");
    const input = element("textarea");
    input.ariaLabel = "Your message";
    input.value = message.content;
    input.rows = Math.min(12, message.content.split("\n").length + 1);
    const send = element("button", "primary", "Send");
    const row = element("div", "buttons");
    row.append(element("span", "dim grow", "What follows it is asked anew."), button("", "Cancel", close),
      send);
    form.append(input, row);
    form.onsubmit = (event) => {
      event.preventDefault();
      if (input.value.trim() && canEdit()) onEdit(input.value.trim());
    };
    form.onkeydown = (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === input) {
        event.preventDefault();
        form.requestSubmit();
      }
      if (event.key !== "Escape") return;
      event.stopPropagation();
      close();
    };
    text.replaceWith(form);
    actions.hidden = true;
    input.focus();
    function close() {
      form.replaceWith(text);
      actions.hidden = false;
      actions.querySelector(".change").focus();
    }
  }

  actions.append(button("quiet change", "Edit", edit),
    copyButton("Copy message", () => message.content));
  node.append(element("h3", "sr", "You"), text, actions);
  return node;
}

export function toolResultView(message) {
  const node = element("div", "message result");
  const text = element("pre", "", message.content);
  text.tabIndex = 0;
  node.append(element("h3", "dim", "Result"), text);
  return node;
}

// Arguments with line breaks once they are whole, and as they come until then.
function shownArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

// An answer, which may still grow. onAgain asks for it again; onResults is called with one text for each
// of its calls of tools.
export class AnswerView {
  #message;
  #onResults;
  #thoughts = element("details", "reasoning");
  #body = element("div", "text");
  #calls = element("div", "calls");
  #foot = element("div", "foot");
  #actions = element("div", "actions");
  #again;

  constructor(message, tokens, { onAgain, onResults }) {
    this.#message = message;
    this.#onResults = onResults;
    this.node = element("div", "message assistant");
    this.#thoughts.append(element("summary", "", "Thinking"), element("div"));
    this.#again = button("quiet again", "Regenerate", onAgain);
    this.#actions.append(copyButton("Copy answer", () => message.content), this.#again);
    this.node.append(element("h3", "sr", "Answer"), this.#thoughts, this.#body, this.#calls, this.#foot,
      this.#actions);
    if (tokens) {
      showProbabilities(this.#body, tokens.content, () => message.content);
      showProbabilities(this.#thoughts.lastChild, tokens.reasoning, () => message.reasoning);
    }
  }

  // While the answer comes, and once more when it has ended.
  render(isBusy, isLast) {
    const { content, reasoning, tool_calls: calls } = this.#message;
    this.node.ariaBusy = String(isBusy);
    this.#thoughts.hidden = reasoning.trim() === "";
    this.#thoughts.firstChild.textContent = content || !isBusy ? "Reasoning" : "Thinking";
    showMarkdown(this.#thoughts.lastChild, reasoning);
    showMarkdown(this.#body, content);
    calls.forEach((call, i) => this.#showCall(call, i));
    this.node.classList.toggle("waiting", isBusy && !content && !calls.length);
    this.#actions.hidden = isBusy;
    this.#again.hidden = !isLast;
    if (!isBusy) this.#end(isLast);
  }

  #showCall({ function: { name, arguments: text } }, i) {
    if (!this.#calls.children[i]) {
      const box = element("details", "call");
      box.open = true;
      box.append(element("summary"), element("pre"));
      box.lastChild.tabIndex = 0;
      this.#calls.append(box);
    }
    const [summary, shown] = this.#calls.children[i].children;
    summary.textContent = `Calls ${name}`;
    shown.textContent = shownArguments(text);
  }

  #end(isLast) {
    const { finish, usage, error, stopped, tool_calls: calls } = this.#message;
    const notes = [];
    if (stopped) notes.push(element("p", "note", "Stopped."));
    else if (error) {
      notes.push(element("p", "error", error));
      notes[0].role = "alert";
    } else if (finish === "length") {
      notes.push(element("p", "note", "Ended at the limit of tokens."));
    } else if (finish && finish !== "stop" && finish !== "tool_calls") {
      notes.push(element("p", "note", `Ended: ${finish}.`));
    }
    if (usage) notes.push(element("p", "usage", usage));
    if (calls.length && isLast && !stopped && !error) notes.push(this.#resultsForm(calls));
    this.#again.textContent = error ? "Try again" : "Regenerate";
    this.#foot.replaceChildren(...notes);
  }

  #resultsForm(calls) {
    const form = element("form", "results");
    const inputs = calls.map((call) => {
      const label = element("label", "", `Result of ${call.function.name}`);
      const input = element("textarea");
      input.rows = 2;
      label.append(input);
      form.append(label);
      return input;
    });
    form.append(element("button", "", "Send results"));
    form.onsubmit = (event) => {
      event.preventDefault();
      this.#onResults(inputs.map((input) => input.value));
    };
    return form;
  }
}
