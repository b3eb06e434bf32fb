// Forms about a topic's configuration: create, change, delete.

import { call, path } from "./api.js";
import { count, size } from "./format.js";
import { whyInvalid } from "./json.js";
import { Dialog, Failure, Field, html, Input, Select, useAction, useState } from "./ui.js";

export function CreateTopic({ onClose, onDone }) {
  const [form, set] = useState({ name: "", format: "json", key: "", segments: "1", schema: "" });
  const put = (name) => (value) => set({ ...form, [name]: value });
  const isTyped = form.format === "typed";
  const [create, isRunning, error] = useAction(async () => {
    const config = { format: form.format, initial_segments: Number(form.segments) };
    if (form.key) config.key_field = form.key;
    if (isTyped && whyInvalid(form.schema)) throw new Error(`The schema is not JSON: ${whyInvalid(form.schema)}`);
    if (isTyped) config.schema = JSON.parse(form.schema);
    await call(path`v1/topics/${form.name}`, { method: "PUT", body: JSON.stringify(config) });
    onDone();
  });
  return html`<${Dialog} title="Create a topic" onClose=${onClose}>
    <form onSubmit=${submits(create)}>
      <${Input} label="Name" value=${form.name} onValue=${put("name")} required autocomplete="off" />
      <${Select} label="Format" value=${form.format} onValue=${put("format")} help="The format cannot be changed later."
        options=${[["json", "json: any JSON value"], ["bytes", "bytes: any bytes"], ["typed", "typed: columns of a schema"]]} />
      ${isTyped && html`<${Field} label="Iceberg schema, as JSON">${(id) => html`<textarea id=${id} rows="5" required value=${form.schema} onInput=${(event) => put("schema")(event.target.value)} />`}<//>`}
      ${form.format !== "bytes" && html`<${Input} label="Key field (optional)" value=${form.key} onValue=${put("key")} help="The top-level field of the value that contains the message's key. Messages with the same key stay in order." autocomplete="off" />`}
      <${Input} label="Initial segments" type="number" min="1" max="1024" required value=${form.segments} onValue=${put("segments")} help="Segments split and merge automatically." />
      <${Failure} error=${error} />
      <${Buttons} onClose=${onClose} isRunning=${isRunning} text="Create" />
    </form>
  <//>`;
}

export function DeleteTopic({ name, onClose, onDone }) {
  const [typed, type] = useState("");
  const [remove, isRunning, error] = useAction(async () => {
    await call(path`v1/topics/${name}`, { method: "DELETE" });
    onDone();
  });
  return html`<${Dialog} title=${`Delete ${name}`} onClose=${onClose}>
    <form onSubmit=${submits(remove)}>
      <p>This permanently deletes the topic's messages, files, payloads and subscriptions.</p>
      <${Input} label=${`Type ${name} to confirm`} value=${typed} onValue=${type} autocomplete="off" spellcheck="false" />
      <${Failure} error=${error} />
      <${Buttons} onClose=${onClose} isRunning=${isRunning} isOff=${typed !== name} text="Delete" kind="danger" />
    </form>
  <//>`;
}

function Buttons({ onClose, isRunning, isOff = false, text, kind = "" }) {
  return html`<footer class="buttons">
    <button type="button" class="secondary outline" onClick=${onClose}>Cancel</button>
    <button type="submit" class=${kind} disabled=${isOff || isRunning} aria-busy=${isRunning}>${text}</button>
  </footer>`;
}

/** The members that can be changed: [group, member, label, kind]. An empty field is the default. */
const MEMBERS = [
  ["flush", "max_age_s", "Write a file at this age (seconds)", "float"],
  ["flush", "min_bytes", "Keep tails below this size for up to 15 minutes, unless an age is set (bytes)", "int"],
  ["flush", "max_bytes", "Write a file at this size (bytes)", "int"],
  ["retention", "max_age_s", "Delete messages older than (seconds)", "float"],
  ["retention", "max_bytes", "Delete the oldest messages when the topic exceeds (bytes)", "int"],
  ["retention", "grace_s", "Keep deleted files for (seconds)", "float"],
  ["retention", "keep_unread", "Keep messages until every subscription has acked them", "bool"],
  ["retention", "delete_read", "Delete messages that every subscription has acked", "bool"],
  ["scaling", "enabled", "Split and merge segments automatically", "bool"],
  ["scaling", "target_messages_per_s", "Split a segment above (messages per second)", "int"],
  ["scaling", "target_bytes_per_s", "Split a segment above (bytes per second)", "int"],
  ["scaling", "min_segments", "Minimum segments", "int"],
  ["scaling", "max_segments", "Maximum segments", "int"],
  ["scaling", "cool_down_s", "Merge idle segments after (seconds)", "float"],
  ["", "ndjson", "Each NDJSON line is", [["envelope", "envelope: a message with its key and headers"], ["bare", "bare: the value itself"]]],
  ["", "compatibility", "Accepted changes of the schema", [["backward", "backward"], ["forward", "forward"], ["full", "full"], ["none", "none"]]],
  ["", "max_payload_bytes", "Maximum payload size (bytes)", "int"],
  ["limits", "requests", "Requests per second", "float"],
  ["limits", "messages", "Published messages per second", "float"],
  ["limits", "bytes_in", "Inbound bytes per second", "float"],
  ["limits", "bytes_out", "Outbound bytes per second", "float"],
  ["limits", "changes", "Changes per second", "float"],
  ["limits", "waiting_pulls", "Open long polls", "int"],
  ["limits", "open_uploads", "Open uploads", "int"],
];
const GROUPS = { flush: "Files", retention: "Retention", scaling: "Scaling", "": "Messages", limits: "Limits for all clients together" };

/** The form that changes a topic: it sends what was changed alone. */
export function Settings({ topic, onChanged, onDelete }) {
  const [edited, edit] = useState({});
  const [told, tell] = useState("");
  const body = () => JSON.stringify(grouped(edited));
  const url = path`v1/topics/${topic.name}`;
  const [change, isRunning, error] = useAction(async () => {
    await call(url, { method: "PATCH", body: body() });
    edit({});
    tell("Topic updated.");
    onChanged();
  });
  const [preview, isCounting, previewError] = useAction(async () => {
    const found = await call(`${url}?dry_run=true`, { method: "PATCH", body: body() });
    tell(`This would delete ${count(found.files)} files (${size(found.bytes)}) with ${count(found.messages)} messages; at least one subscription has not acked ${count(found.unread)} of them.`);
  });
  const names = Object.keys(edited);
  const isRetention = names.length > 0 && names.every((one) => one.startsWith("retention."));
  return html`<form onSubmit=${submits(change)}>
    <p>Changes take effect on all brokers immediately. An empty field means the default.</p>
    ${Object.entries(GROUPS).map(([group, title]) => html`<fieldset class="group"><legend>${title}</legend>
      ${membersOf(group, topic).map((one) => html`<${Member} of=${one} topic=${topic} edited=${edited} edit=${(next) => { edit(next); tell(""); }} />`)}
    </fieldset>`)}
    <${Failure} error=${error || previewError} />
    <p role="status">${told}</p>
    <div class="buttons">
      <button type="submit" disabled=${names.length === 0 || isRunning} aria-busy=${isRunning}>Change</button>
      <button type="button" class="outline" disabled=${!isRetention || isCounting} onClick=${preview}>Preview deletion</button>
      <button type="button" class="outline danger" onClick=${onDelete}>Delete the topic</button>
    </div>
  </form>`;
}

/** Returns the members of a group that this topic has: lines of a topic of bytes have one meaning, and only typed
 * topics have a schema. */
function membersOf(group, topic) {
  const has = (name) => (name === "ndjson" ? topic.format !== "bytes" : name !== "compatibility" || topic.format === "typed");
  return MEMBERS.filter(([of, name]) => of === group && has(name));
}

function Member({ of: [group, name, label, kind], topic, edited, edit }) {
  const key = `${group}.${name}`;
  const now = (group ? topic[group] : topic)[name];
  const value = key in edited ? edited[key] : now;
  const put = (next) => {
    const { [key]: _, ...rest } = edited;
    edit(next === now ? rest : { ...rest, [key]: next });
  };
  if (kind === "bool") {
    return html`<label><input type="checkbox" role="switch" checked=${value} onChange=${(event) => put(event.target.checked)} />${label}</label>`;
  }
  if (Array.isArray(kind)) return html`<${Select} label=${label} value=${value} onValue=${put} options=${kind} />`;
  return html`<${Input} label=${label} type="number" step=${kind === "int" ? 1 : "any"} min="0" value=${value ?? ""}
    onValue=${(text) => put(text === "" ? null : Number(text))} />`;
}

function grouped(edited) {
  const body = {};
  for (const [key, value] of Object.entries(edited)) {
    const [group, name] = key.split(".");
    (group ? (body[group] ||= {}) : body)[name] = value;
  }
  return body;
}

/** Returns a handler of a form that sends nothing by itself. */
export function submits(act) {
  return (event) => {
    event.preventDefault();
    act();
  };
}
