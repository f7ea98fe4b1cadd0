// One answer of /v1/chat/completions: what is asked, and the message that grows while it streams.

import { events, request } from "/api.js";

export const newAnswer = () => ({ role: "assistant", content: "", reasoning: "", tool_calls: [] });

const isAnswered = (message, messages) => message.tool_calls.every((call) =>
  messages.some((other) => other.role === "tool" && other.tool_call_id === call.id));

// The messages as the API has them. Questions without an answer are left out, but for the last one: a
// template may insist on roles that alternate. So are calls of tools that nobody answered.
export function forModel(messages, system) {
  const list = system ? [{ role: "system", content: system }] : [];
  messages.forEach((message, i) => {
    if (message.role !== "assistant") {
      const { role, content, tool_call_id: call } = message;
      const reply = messages[i + 1];
      const isLost = role === "user" && reply
        && (reply.role !== "assistant" || (!reply.content && !reply.tool_calls.length));
      if (!isLost) list.push(role === "tool" ? { role, content, tool_call_id: call } : { role, content });
    } else if (message.tool_calls.length && isAnswered(message, messages)) {
      const { role, content, tool_calls } = message;
      list.push({ role, content, tool_calls });
    } else if (message.content) {
      list.push({ role: message.role, content: message.content });
    }
  });
  return list;
}

function addCall(calls, { index = 0, id, function: part = {} }) {
  const call = calls[index] ??= { id: "", type: "function", function: { name: "", arguments: "" } };
  call.id ||= id ?? "";
  call.function.name += part.name ?? "";
  call.function.arguments += part.arguments ?? "";
}

// Adds a piece to `answer`, and its tokens to `tokens`, {content, reasoning}. False if there was nothing.
function addPiece(answer, tokens, { delta = {}, logprobs }) {
  const { content, reasoning_content: thought, tool_calls: calls } = delta;
  answer.content += content ?? "";
  answer.reasoning += thought ?? "";
  for (const call of calls ?? []) addCall(answer.tool_calls, call);
  (thought ? tokens.reasoning : tokens.content).push(...logprobs?.content ?? []);
  return Boolean(content || thought || calls?.length);
}

// Reads into `answer` until it has ended; onStart when the server has taken the request, onPiece
// whenever something came. Throws what went wrong; then `answer` has what came before.
export async function readAnswer(fields, answer, tokens, { signal, onStart, onPiece }) {
  const times = { sent: performance.now() };
  const response = await request("/v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...fields, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  onStart();
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    if (event.error) throw new Error(event.error.message);
    if (event.usage) answer.usage = usageLine(event.usage, times);
    const choice = event.choices?.[0];
    if (!choice) continue;
    answer.finish = choice.finish_reason ?? answer.finish;
    if (!addPiece(answer, tokens, choice)) continue;
    times.last = performance.now();
    times.first ??= times.last;
    onPiece();
  }
  throw new Error("the connection ended before the answer did");
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
