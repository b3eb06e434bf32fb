// The messages of a topic: the newest, from a time on, from an offset on, of a key.

import { Download } from "./access.js";
import { call, path } from "./api.js";
import { count, counted, size, time } from "./format.js";
import { pretty } from "./json.js";
import { fromOffset, fromTime, newest, ofKey } from "./reading.js";
import { submits } from "./topic_forms.js";
import { Code, Fragment, html, Input, Name, Polled, Scroll, Select, usePolled, useState } from "./ui.js";

const MODES = [["newest", "The newest"], ["time", "From a time on"], ["offset", "From an offset on"], ["key", "Of a key"]];
const LIMITS = [["20", "20"], ["50", "50"], ["100", "100"], ["500", "500"]];
const DEPTH = 10_000; // messages that a search for a key looks at, to begin with
const PREVIEW = 200;

export function Messages({ topic, map, place: [segment, offset] }) {
  const at = segment === undefined ? { mode: "newest" } : { mode: "offset", segment, offset };
  return html`<${Search} key=${`${segment}/${offset}`} topic=${topic} first=${{ limit: "50", segment: String(anOpen(map)), offset: "0", key: "", time: anHourAgo(), ...at }} />`;
}

function Search({ topic, first }) {
  const [form, set] = useState(first);
  const [wanted, want] = useState({ ...first, depth: DEPTH });
  const put = (name) => (value) => set({ ...form, [name]: value });
  const found = usePolled((signal) => look(topic.name, wanted, signal), 0, [wanted]);
  const more = (changed) => { // of what is shown, whatever was typed since
    set({ ...wanted, ...changed });
    want({ ...wanted, ...changed });
  };
  return html`
    <form onSubmit=${submits(() => want({ ...form, depth: DEPTH }))} class="search">
      <${Select} label="Messages" value=${form.mode} onValue=${put("mode")} options=${MODES} />
      ${form.mode === "time" && html`<${Input} label="Local time" type="datetime-local" step="1" required value=${form.time} onValue=${put("time")} />`}
      ${form.mode === "offset" && html`<${Input} label="Segment" type="number" min="0" required value=${form.segment} onValue=${put("segment")} />
        <${Input} label="Offset" type="number" min="0" required value=${form.offset} onValue=${put("offset")} />`}
      ${form.mode === "key" && html`<${Input} label="Key" required value=${form.key} onValue=${put("key")} autocomplete="off" spellcheck="false" />`}
      <${Select} label="At most" value=${form.limit} onValue=${put("limit")} options=${LIMITS} />
      <button type="submit">Show</button>
    </form>
    <${Polled} of=${found}>${(data) => html`
      <${Notes} of=${data} wanted=${wanted} more=${more} />
      ${data.messages.length === 0 ? html`<p>No messages found.</p>` : html`<${List} topic=${topic} messages=${data.messages} />`}
      ${wanted.mode === "offset" && !data.isEnd && html`<button type="button" class="outline" onClick=${() => more({ offset: String(data.next) })}>Next messages</button>`}
    `}<//>`;
}

async function look(topic, wanted, signal) {
  const limit = Number(wanted.limit);
  if (wanted.mode === "offset") return fromOffset(topic, Number(wanted.segment), Number(wanted.offset), limit, signal);
  const map = await call(path`v1/topics/${topic}/segments`, { signal }); // as it is now, and not at the page's last poll
  if (wanted.mode === "time") return fromTime(topic, map, new Date(wanted.time).toISOString(), limit, signal);
  if (wanted.mode === "key") return ofKey(topic, map, wanted.key, limit, wanted.depth, signal);
  return newest(topic, map, limit, signal);
}

function Notes({ of: data, wanted, more }) {
  return html`<${Fragment}>
    ${data.older > 0 && html`<p>The newest ${count(data.messages.length)} messages; about ${count(data.older)} older messages are not shown.</p>`}
    ${data.isCut && html`<p>${wanted.mode === "key" ? "The newest" : "The first"} ${counted(data.messages.length, "message")}; more messages are not shown.</p>`}
    ${data.leftOut > 0 && html`<p>${counted(data.leftOut, "more segment")} not searched.</p>`}
    ${data.searched !== undefined && html`<p>${counted(data.searched, "message")} searched${data.isWhole ? ": no other message can have this key" : html`: the newest messages that can have this key.
      <button type="button" class="outline small" onClick=${() => more({ depth: wanted.depth * 10 })}>Search further back</button>`}</p>`}
    ${data.successors?.length > 0 && html`<p>This segment is sealed; ${data.successors.map((id) => html`<button type="button" class="outline small" onClick=${() => more({ segment: String(id), offset: "0" })}>segment ${id}</button> `)} follows.</p>`}
  <//>`;
}

function List({ topic, messages }) {
  const [opened, open] = useState(null);
  return html`<${Scroll} label="Messages">
    <table class="messages">
      <thead><tr><th scope="col">Message</th><th scope="col">Time</th><th scope="col">Key</th><th scope="col">Value</th></tr></thead>
      <tbody>${messages.map((one) => html`<${Row} key=${one.id} topic=${topic} message=${one} isOpen=${opened === one.id}
        onOpen=${() => open(opened === one.id ? null : one.id)} />`)}</tbody>
    </table>
  <//>`;
}

function Row({ topic, message, isOpen, onOpen }) {
  return html`<${Fragment}>
    <tr class=${isOpen ? "opened" : ""}>
      <th scope="row"><button type="button" class="link" aria-expanded=${isOpen} onClick=${onOpen}>${message.id}</button></th>
      <td class="nowrap"><time datetime=${message.timestamp} title=${message.timestamp}>${time(message.timestamp)}</time></td>
      <td class="nowrap"><${Name} of=${message.key} /></td>
      <td class="preview"><code>${preview(message)}</code></td>
    </tr>
    ${isOpen && html`<tr><td colspan="4"><${Whole} topic=${topic} message=${message} /></td></tr>`}
  <//>`;
}

function Whole({ topic, message }) {
  const headers = Object.entries(message.headers || {});
  const reference = message.reference;
  return html`<div class="whole">
    ${message.key != null && html`<h4>Key</h4><p><code class="break">${message.key}</code></p>`}
    ${headers.length > 0 && html`<h4>Headers</h4><dl class="headers">${headers.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`}
    ${reference
      ? html`<h4>Payload</h4><p>${reference.content_type || "no content type"}, ${size(reference.size)}.
          <${Download} url=${path`v1/topics/${topic.name}/segments/${message.segment}/messages/${message.offset}/payload`} name=${`${topic.name}-${message.id}`}>Download<//></p>
          <p><code class="break">${reference.uri}</code></p>`
      : html`<h4>Value</h4><${Code} text=${valueOf(message, 2)} label=${`value of ${message.id}`} />`}
  </div>`;
}

/** Returns the value as text: JSON, or the bytes, as text if they are some. */
function valueOf(message, indent) {
  if (message.value_base64 == null) return pretty(message.value, indent);
  const bytes = Uint8Array.from(atob(message.value_base64), (one) => one.charCodeAt(0));
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return `${count(bytes.length)} bytes, in base64: ${message.value_base64}`;
  }
}

function preview(message) {
  const text = message.reference ? `payload of ${size(message.reference.size)}` : valueOf(message);
  return text.length > PREVIEW ? `${text.slice(0, PREVIEW)}…` : text;
}

function anOpen(map) {
  return map.segments.find((one) => one.state === "open")?.id ?? 0;
}

function anHourAgo() {
  const at = new Date(Date.now() - 3_600_000);
  return new Date(at - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19);
}
