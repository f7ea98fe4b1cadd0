export const id = (name) => document.getElementById(name);

// Text, of a model above all, goes into the page as text, never as markup.
export function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

export function button(className, text, onclick) {
  const node = element("button", className, text);
  node.type = "button";
  node.onclick = onclick;
  return node;
}

async function copy(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Browsers hide the clipboard from pages that came by plain HTTP from another machine.
  const area = element("textarea", "sr");
  area.value = text;
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("the browser did not let the page copy");
}

// A button that copies what `text` returns when it is pressed, and says whether it could.
export function copyButton(label, text) {
  const node = button("quiet copy", "Copy", async () => {
    node.textContent = await copy(text()).then(() => "Copied", () => "Not copied");
    setTimeout(() => { node.textContent = "Copy"; }, 1500);
  });
  node.ariaLabel = label;
  return node;
}
