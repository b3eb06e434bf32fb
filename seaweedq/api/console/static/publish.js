// Publishes one message. The value goes into the request as it was typed, so that its numbers keep their digits.

import { call, path } from "./api.js";
import { whyInvalid } from "./json.js";
import { submits } from "./topic_forms.js";
import { Failure, Field, html, Input, useAction, useState } from "./ui.js";

export function Publish({ topic, onPublished }) {
  const [form, set] = useState({ key: "", value: "", headers: "" });
  const [id, tell] = useState("");
  const isBytes = topic.format === "bytes";
  const put = (name) => (value) => {
    set({ ...form, [name]: value });
    tell("");
  };
  const [publish, isRunning, error] = useAction(async () => {
    tell("");
    const answer = await call(path`v1/topics/${topic.name}/messages`, { method: "POST", body: bodyOf(form, isBytes) });
    tell(answer.ids[0]);
    onPublished();
  });
  const why = !isBytes && form.value && whyInvalid(form.value);
  const [segment, offset] = id.split("-");
  return html`<form onSubmit=${submits(publish)} class="narrow">
    ${topic.key_field
      ? html`<p>The key is the field <code>${topic.key_field}</code> of the value.</p>`
      : html`<${Input} label="Key (optional)" value=${form.key} onValue=${put("key")} autocomplete="off" />`}
    <${Field} label=${isBytes ? "Value, as text" : "Value, as JSON"} help=${why ? `Not JSON: ${why}` : undefined}>${(fieldId, helpId) => html`<textarea id=${fieldId}
      rows="8" required spellcheck="false" class="mono" value=${form.value} aria-invalid=${why ? "true" : undefined} aria-describedby=${helpId}
      onInput=${(event) => put("value")(event.target.value)} />`}<//>
    <${Field} label="Headers (optional)" help="One per line, as name: value">${(fieldId, helpId) => html`<textarea id=${fieldId} rows="2" spellcheck="false"
      class="mono" value=${form.headers} aria-describedby=${helpId} onInput=${(event) => put("headers")(event.target.value)} />`}<//>
    <${Failure} error=${error} />
    <p role="status">${id && html`Published as <a href=${`#/topics/${encodeURIComponent(topic.name)}/messages/${segment}/${offset}`}>${id}</a>.`}</p>
    <button type="submit" disabled=${isRunning || !!why} aria-busy=${isRunning}>Publish</button>
  </form>`;
}

function bodyOf({ key, value, headers }, isBytes) {
  const members = [isBytes ? `"value_base64": ${JSON.stringify(base64(value))}` : `"value": ${value}`];
  if (key) members.push(`"key": ${JSON.stringify(key)}`);
  if (headers.trim()) members.push(`"headers": ${JSON.stringify(headersOf(headers))}`);
  return `{"messages": [{${members.join(", ")}}]}`;
}

function headersOf(text) {
  const lines = text.split("\n").filter((line) => line.trim());
  return Object.fromEntries(lines.map((line) => {
    const at = line.indexOf(":");
    if (at < 1) throw new Error(`The header ${JSON.stringify(line)} has no name before a colon.`);
    return [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  }));
}

function base64(text) {
  return btoa(Array.from(new TextEncoder().encode(text), (one) => String.fromCharCode(one)).join(""));
}
