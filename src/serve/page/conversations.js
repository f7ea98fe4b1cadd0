// Conversations, kept in this browser: {id, title, updated, messages}, one entry of its storage each.

const PREFIX = "quire-conversation-";
const TITLE_LENGTH = 60;

const keyOf = (conversation) => PREFIX + conversation.id;

function read(key) {
  try {
    return JSON.parse(localStorage.getItem(key));
  } catch {
    return null;
  }
}

export const newConversation = () =>
  ({ id: `${Date.now().toString(36)}-${Math.random().toString(36).slice(2, 8)}`, title: "", messages: [] });

export const findConversation = (name) => read(PREFIX + name);

// The one that was used last comes first.
export function allConversations() {
  return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX)).map(read).filter(Boolean)
    .sort((a, b) => b.updated - a.updated);
}

// False if the browser has no room for it.
export function keepConversation(conversation) {
  const first = conversation.messages[0]?.content.trim().split("\n")[0] ?? "";
  conversation.title ||= first.length > TITLE_LENGTH ? `${first.slice(0, TITLE_LENGTH - 1)}…` : first;
  try {
    localStorage.setItem(keyOf(conversation), JSON.stringify(conversation));
    return true;
  } catch {
    return false;
  }
}

export function forgetConversation(conversation) {
  localStorage.removeItem(keyOf(conversation));
}

// ---- Files ----

export function asMarkdown({ title, messages }) {
  const parts = [`# ${title}`];
  const names = { user: "You", assistant: "Answer", tool: "Result of a tool" };
  for (const message of messages) {
    parts.push(`## ${names[message.role]}`);
    if (message.reasoning) parts.push(message.reasoning.trim().replace(/^/gm, "> "));
    if (message.content) parts.push(message.content.trim());
    for (const { function: call } of message.tool_calls ?? []) {
      parts.push(`Call of \`${call.name}\`:\n\n\`\`\`json\n${call.arguments}\n\`\`\``);
    }
    if (message.error) parts.push(`*${message.error}*`);
  }
  return `${parts.join("\n\n")}\n`;
}

export const asJson = ({ title, messages }) => `${JSON.stringify({ title, messages }, null, 2)}\n`;

export function saveFile(name, type, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);  // when the browser has taken it
}
