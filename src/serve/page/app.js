import { askForKey } from "/api.js";
import { startChat } from "/chat.js";
import { id } from "/dom.js";
import { startLive } from "/live.js";

const live = startLive();
startChat({ onActivity: live.poll });

const views = document.querySelectorAll("[data-show]");
for (const button of views) {
  button.onclick = () => {
    document.body.dataset.view = button.dataset.show;
    for (const other of views) other.ariaPressed = String(other === button);
  };
}

id("key-button").onclick = async () => {
  if (await askForKey(false)) live.poll();
};
