// The settings of an answer: kept in this browser, shown with the server's defaults.

import { getJson } from "/api.js";
import { id } from "/dom.js";

// Each is the id of an element, and with "_" for "-" the name of a field of the request.
const NUMBERS = ["temperature", "top-p", "top-k", "min-p", "repetition-penalty", "presence-penalty",
                 "frequency-penalty", "max-tokens", "seed"];
const TEXTS = ["system", "stop-texts", "tools"];
const ALL = [...NUMBERS, ...TEXTS];
const TOP_TOKENS = 5;

const fieldName = (name) => name.replaceAll("-", "_");

// One to a line; "\n" and "\t" stand for what cannot be typed into a line.
const stops = () => id("stop-texts").value.split("\n").filter(Boolean)
  .map((line) => line.replace(/\\([nt\\])/g, (_, c) => ({ n: "\n", t: "\t", "\\": "\\" })[c]));

function checkTools() {
  const input = id("tools");
  let problem = "";
  try {
    const tools = JSON.parse(input.value.trim() || "[]");
    if (!Array.isArray(tools)) problem = "Expected an array of tools.";
  } catch (error) {
    problem = error.message;
  }
  input.setCustomValidity(problem);
}

export function showSettings(shown) {
  id("settings").hidden = !shown;
  id("settings-button").ariaExpanded = String(shown);
}

// Whether all can be sent; if not, shows the one that cannot.
export function checkSettings() {
  checkTools();
  const wrong = ALL.map(id).find((input) => !input.checkValidity());
  if (!wrong) return true;
  showSettings(true);
  wrong.reportValidity();
  return false;
}

export const systemMessage = () => id("system").value.trim();

// The fields of a request: those that are set.
export function settingsFields() {
  const fields = {};
  for (const name of NUMBERS) {
    const value = id(name).valueAsNumber;
    if (!Number.isNaN(value)) fields[fieldName(name)] = value;
  }
  if (stops().length) fields.stop = stops();
  if (id("tools").value.trim()) fields.tools = JSON.parse(id("tools").value);
  if (id("probabilities").checked) Object.assign(fields, { logprobs: true, top_logprobs: TOP_TOKENS });
  return fields;
}

function keep(name) {
  const input = id(name);
  const property = input.type === "checkbox" ? "checked" : "value";
  const kept = localStorage.getItem(`quire-${name}`);
  if (kept !== null) input[property] = property === "checked" ? kept === "true" : kept;
  input.onchange = () => localStorage.setItem(`quire-${name}`, String(input[property]));
}

export function startSettings() {
  const kept = [...ALL, "probabilities"];
  kept.forEach(keep);
  id("settings-button").onclick = () => showSettings(id("settings").hidden);
  id("defaults").onclick = () => {
    for (const name of kept) {
      localStorage.removeItem(`quire-${name}`);
      if (id(name).type === "checkbox") id(name).checked = false;
      else id(name).value = "";
    }
  };
}

// The model's name. Shows it, and what holds where nothing is set; asks again until the model is there.
let model = null;
export async function findModel() {
  if (model) return model;
  const found = (await getJson("/v1/models")).data[0];
  id("model").textContent = found.id;
  if (!found.max_model_len) return found.id;  // while it is loaded
  id("max-tokens").max = found.max_model_len;
  const { sampling_defaults: defaults } = await getJson("/server_info");
  for (const name of NUMBERS) {
    const value = defaults[fieldName(name)];
    if (value !== undefined) id(name).placeholder = value;
  }
  model = found.id;
  return model;
}
