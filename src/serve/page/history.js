// The list of conversations: open, rename, delete, export.

import { allConversations, asJson, asMarkdown, forgetConversation, keepConversation, saveFile }
  from "/conversations.js";
import { button, element, id } from "/dom.js";

const fileName = (title) => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 40)
  || "conversation";

// `current()` is the conversation on the page; onOpen is called with another, onDelete with one that
// is no more.
export function startHistory({ current, onOpen, onDelete }) {
  function rename(item, conversation) {
    const input = element("input");
    input.ariaLabel = "Title";
    input.value = conversation.title;
    let done = false;
    const end = (title) => {
      if (done) return;  // taking the field away takes its focus too
      done = true;
      if (title) {
        conversation.title = title;
        keepConversation(conversation);
        if (current().id === conversation.id) current().title = title;
      }
      draw();
      [...id("conversations").children].find((node) => node.dataset.id === conversation.id)
        ?.querySelector(".rename").focus();
    };
    input.onblur = () => end(input.value.trim());
    input.onkeydown = (event) => {
      if (event.key === "Enter" && !event.isComposing) end(input.value.trim());
      if (event.key !== "Escape") return;
      event.stopPropagation();
      end("");
    };
    item.replaceChildren(input);
    input.select();
  }

  function row(conversation) {
    const { title } = conversation;
    const item = element("li");
    item.dataset.id = conversation.id;
    const open = button("title", title, () => onOpen(conversation.id));
    if (conversation.id === current().id) open.ariaCurrent = "true";
    const edit = button("quiet rename", "✎", () => rename(item, conversation));
    edit.ariaLabel = edit.title = `Rename ${title}`;
    const remove = button("quiet delete", "✕", () => {
      if (remove.dataset.sure) {
        forgetConversation(conversation);
        onDelete(conversation.id);
        draw();
        return;
      }
      remove.dataset.sure = "yes";
      remove.textContent = "Delete?";
      remove.ariaLabel = `Really delete ${title}`;
    });
    remove.ariaLabel = remove.title = `Delete ${title}`;
    remove.onblur = () => {
      delete remove.dataset.sure;
      remove.textContent = "✕";
      remove.ariaLabel = `Delete ${title}`;
    };
    item.append(open, edit, remove);
    return item;
  }

  function draw() {
    const all = allConversations();
    id("conversations").replaceChildren(...all.map(row));
    id("no-conversations").hidden = all.length > 0;
    for (const name of ["export-markdown", "export-json"]) {
      id(name).disabled = current().messages.length === 0;
    }
  }

  id("export-markdown").onclick = () =>
    saveFile(`${fileName(current().title)}.md`, "text/markdown", asMarkdown(current()));
  id("export-json").onclick = () =>
    saveFile(`${fileName(current().title)}.json`, "application/json", asJson(current()));
  addEventListener("storage", draw);  // another tab of this browser
  draw();
  return { draw };
}
