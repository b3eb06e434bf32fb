// All topics: what they hold and take, to create one, to delete one.

import { call, gather, pages, path, Problem } from "./api.js";
import { CreateTopic, DeleteTopic } from "./topic_forms.js";
import { age, count, rate, size, time, NONE } from "./format.js";
import { Failure, html, Input, Name, Polled, Table, Unreadable, usePages, usePolled, useState } from "./ui.js";

const LIST_MS = 10_000;
const SHOWN_MS = 5_000;
const PAGE = 25; // of these alone more than the name is asked for
const MANY = 1_000; // segments, whose map is too large to ask for beside 24 others

export function Topics() {
  const [filter, setFilter] = useState("");
  const [dialog, open] = useState(null);
  const list = usePolled((signal) => pages("v1/topics", "topics", signal), LIST_MS, []);
  const done = () => {
    open(null);
    list.reload();
  };
  return html`
    <div class="title"><h1>Topics</h1><button type="button" onClick=${() => open({ create: true })}>Create a topic</button></div>
    <${Polled} of=${list}>${(found) => html`<${Unreadable} of=${found.unreadable} thing="topics" />${found.all.length === 0
      ? html`<article><h2>No topics yet</h2><p>The first message creates a topic. You can also create one here:</p>
          <button type="button" onClick=${() => open({ create: true })}>Create the first topic</button></article>`
      : html`<${Input} label="Filter by name" type="search" value=${filter} onValue=${setFilter} autocomplete="off" />
          <${List} topics=${found.all.filter((one) => one.name.includes(filter.trim()))} onDelete=${(name) => open({ name })} />`}`}<//>
    ${dialog?.create && html`<${CreateTopic} onClose=${() => open(null)} onDone=${done} />`}
    ${dialog?.name && html`<${DeleteTopic} name=${dialog.name} onClose=${() => open(null)} onDone=${done} />`}`;
}

function List({ topics, onDelete }) {
  const [rows, buttons] = usePages(topics, PAGE);
  const names = rows.map((one) => one.name);
  const details = usePolled((signal) => gather(names, (name) => detail(name, signal)), SHOWN_MS, [names.join()]);
  const found = new Map((details.data || []).map((one) => [one.name, one]));
  const of = (row, what) => {
    const one = found.get(row.name);
    return one && !one.error ? what(one) : NONE;
  };
  const columns = [
    { title: "Name", of: (row) => html`<a href=${`#/topics/${encodeURIComponent(row.name)}`}><${Name} of=${row.name} /></a>${state(row, found.get(row.name))}` },
    { title: "Messages", number: true, of: (row) => of(row, (one) => count(one.messages)) },
    { title: "Files", number: true, of: (row) => of(row, (one) => size(one.bytes)) },
    { title: "Not in files yet", number: true, of: (row) => of(row, (one) => size(one.tail_bytes)) },
    { title: "Messages/s", number: true, of: (row) => of(row, (one) => ratesOf(one, "messages_per_s", rate)) },
    { title: "Bytes/s", number: true, of: (row) => of(row, (one) => ratesOf(one, "bytes_per_s", size)) },
    { title: "Segments", number: true, of: (row) => of(row, (one) => count(one.segments)) },
    { title: "Hot keys", number: true, of: (row) => of(row, (one) => (one.hot_segments.length ? html`<a class="mark bad" href=${`#/topics/${encodeURIComponent(row.name)}/keys`}>${count(one.hot_segments.length)}</a>` : 0)) },
    { title: "Newest file", number: true, of: (row) => of(row, (one) => (one.newest_file_at ? age(one.newest_file_at) : "none")) },
    { title: "Format", of: (row) => row.format },
    { title: "Created", of: (row) => time(row.created_at) },
    { title: "Actions", of: (row) => html`<span class="actions">
        <a role="button" class="outline" href=${`#/topics/${encodeURIComponent(row.name)}/settings`} aria-label=${`Change ${row.name}`}>Change</a>
        <button type="button" class="outline danger" onClick=${() => onDelete(row.name)} aria-label=${`Delete ${row.name}`}>Delete</button></span>` },
  ];
  if (topics.length === 0) return html`<p>No topic matches this filter.</p>`;
  return html`<${Failure} error=${details.error} />
    <${Table} label="Topics" columns=${columns} rows=${rows} keyOf=${(row) => row.name} />${buttons}`;
}

function state(row, found) {
  if (row.state !== "active") return html` <span class="mark">${row.state}</span>`;
  return found?.error && html` <span class="mark bad" title=${found.error.message}>${found.error.slug || "no answer"}</span>`;
}

async function detail(name, signal) {
  try {
    const topic = await call(path`v1/topics/${name}`, { signal });
    const map = topic.segments > MANY ? null : await call(path`v1/topics/${name}/segments`, { signal });
    return { ...topic, map };
  } catch (error) {
    if (!(error instanceof Problem) || error.status === 0) throw error;
    return { name, error }; // one topic's trouble hides no other
  }
}

function ratesOf({ map }, unit, shown) {
  return map ? cameIn(map, unit, shown) : html`<span title="the page of this topic shows the rates of its many segments">${NONE}</span>`;
}

/** Returns what comes in now, by the open segments' rates over 10 s, as a text: at least so much if some are not known. */
export function cameIn(map, unit, shown) {
  const isKnown = map.segments.every((one) => one.state !== "open" || one.rates);
  return isKnown && !map.unreadable ? shown(newest(map, unit)) : `≥ ${shown(newest(map, unit))}`;
}

/** Returns the sum of the open segments' rates over 10 s, of those that are known. */
export function newest(map, unit) {
  return map.segments.reduce((sum, one) => sum + (one.rates ? one.rates[unit][0] : 0), 0);
}
