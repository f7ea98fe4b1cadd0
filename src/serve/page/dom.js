export const id = (name) => document.getElementById(name);

// Text, of a model above all, goes into the page as text, never as markup.
export function element(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}
