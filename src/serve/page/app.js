// Starts the page: the views, the chat, the live view.

import { askForKey } from "/api.js";
import { startChat } from "/chat.js";
import { id } from "/dom.js";
import { startLive } from "/live.js";

// Where there is no room for all of them, one view at a time.
const views = document.querySelectorAll("[data-show]");
function show(name) {
  document.body.dataset.view = name;
  for (const button of views) button.ariaPressed = String(button.dataset.show === name);
}
for (const button of views) button.onclick = () => show(button.dataset.show);

const live = startLive();
startChat({ onActivity: live.poll, onShow: () => show("chat") });

id("key-button").onclick = async () => {
  if (await askForKey(false)) live.poll();
};
