// Requests to the server: the key, errors in its words, and the events of a stream.

import { id } from "/dom.js";

const KEY = "quire-key";
let asking = null;  // the promise of an open dialog, so that it is shown once

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// Asks for the key; false if the dialog was closed without one.
export function askForKey(refused) {
  asking ??= new Promise((resolve) => {
    const dialog = id("key-dialog");
    const input = id("key");
    id("key-refused").hidden = !refused;
    id("key-button").hidden = false;
    input.value = "";
    id("key-form").onsubmit = (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, input.value.trim());
      dialog.close("key");
    };
    id("key-cancel").onclick = () => dialog.close("");
    dialog.onclose = () => {
      asking = null;
      resolve(dialog.returnValue === "key");
    };
    dialog.returnValue = "";
    dialog.showModal();
    input.focus();
  });
  return asking;
}

// The answer to a request that succeeded. Where a key is needed, asks for it and tries again.
export async function request(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = { ...options.headers };
    if (key) headers.Authorization = `Bearer ${key}`;
    const response = await fetch(path, { ...options, headers, cache: "no-store" });
    if (response.ok) return response;
    const error = new ApiError(await errorMessage(response), response.status);
    if (response.status !== 401) throw error;
    // Another request may have been given a key while this one was on its way.
    if (key === sessionStorage.getItem(KEY) && !await askForKey(key !== null)) throw error;
  }
}

export async function getJson(path, options) {
  return (await request(path, options)).json();
}

async function errorMessage(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.trim() || `the server answered ${response.status} ${response.statusText}`;
  }
}

// The data of each server-sent event of `stream`, as text, however its bytes were cut into pieces.
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;  // An event without its blank line is not complete.
      // A carriage return at the end may be half of a line's end: it waits for the next piece.
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
    }
  } finally {
    // Also when the consumer has seen enough: the server then stops computing.
    reader.cancel().catch(() => {});
  }
}
