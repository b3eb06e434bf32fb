// Subscriptions: how far behind each is, in all and by segment.

import { call, gather, pages, path, Problem } from "./api.js";
import { count, duration, NONE, size } from "./format.js";
import { Failure, Fragment, html, Input, Polled, Scroll, Table, usePages, usePolled, useState } from "./ui.js";

const LIST_MS = 10_000;
const SHOWN_MS = 4_000;
const PAGE = 20; // topics whose subscriptions are asked for

export function Subscriptions({ topic }) {
  const [filter, setFilter] = useState(topic || "");
  const list = usePolled((signal) => pages("v1/topics", "topics", signal), LIST_MS, []);
  return html`<h1>Subscriptions</h1>
    <${Input} label="Filter by topic" type="search" value=${filter} onValue=${setFilter} autocomplete="off" />
    <${Polled} of=${list}>${(topics) => {
      const shown = topics.filter((one) => (filter === topic ? one.name === topic : one.name.includes(filter.trim())));
      return shown.length === 0 ? html`<p>There is no such topic.</p>` : html`<${List} topics=${shown} />`;
    }}<//>`;
}

function List({ topics }) {
  const [rows, buttons] = usePages(topics, PAGE);
  const names = rows.map((one) => one.name);
  const found = usePolled((signal) => gather(names, (name) => ofTopic(name, signal)), SHOWN_MS, [names.join()]);
  return html`<${Polled} of=${found}>${(parts) => {
    const subscriptions = parts.flatMap((one) => one.subscriptions);
    return html`
      ${parts.filter((one) => one.error).map((one) => html`<${Failure} error=${one.error} title=${one.name} />`)}
      ${parts.filter((one) => one.unreadable).map((one) => html`<p class="failure">A newer broker is needed to read these subscriptions of ${one.name}: ${one.unreadable.join(", ")}.</p>`)}
      ${subscriptions.length === 0
        ? html`<article><p>No subscription yet. The first pull creates one:</p><pre tabindex="0"><code>seaweedq pull ${names[0]} --subscription mine --start earliest</code></pre></article>`
        : html`<${All} subscriptions=${subscriptions} />`}`;
  }}<//>${buttons}`;
}

function All({ subscriptions }) {
  const [opened, open] = useState(null);
  return html`<${Scroll} label="Subscriptions"><table>
    <thead><tr><th scope="col">Subscription</th><th scope="col">Topic</th><th scope="col">Mode</th>
      ${["Behind", "Bytes behind", "Oldest unacked", "In flight", "Waiting", "Delayed", "Dying", "Consumers"].map((one) => html`<th scope="col" class="number">${one}</th>`)}
      <th scope="col">State</th></tr></thead>
    <tbody>${subscriptions.map((one) => {
      const id = `${one.topic}/${one.name}`;
      return html`<${Row} key=${id} of=${one} isOpen=${opened === id} onOpen=${() => open(opened === id ? null : id)} />`;
    })}</tbody>
  </table><//>`;
}

function Row({ of: one, isOpen, onOpen }) {
  const lag = one.lag_total;
  const figures = [count(lag.messages), size(lag.bytes), lag.messages ? duration(lag.seconds) : NONE, count(lag.in_flight), count(lag.waiting), count(lag.delayed), count(lag.dying), consumers(one)];
  return html`<${Fragment}>
    <tr class=${isOpen ? "opened" : ""}>
      <th scope="row"><button type="button" class="link" aria-expanded=${isOpen} onClick=${onOpen}>${one.name}</button></th>
      <td><a href=${`#/topics/${encodeURIComponent(one.topic)}`}>${one.topic}</a></td><td>${one.mode}</td>
      ${figures.map((text) => html`<td class="number">${text}</td>`)}
      <td>${stateOf(one)}</td>
    </tr>
    ${isOpen && html`<tr><td colspan="12"><${Whole} of=${one} /></td></tr>`}
  <//>`;
}

function consumers(one) {
  return one.idle_consumers ? `${count(one.consumers)} (${count(one.idle_consumers)} idle)` : count(one.consumers);
}

function stateOf(one) {
  const marks = [one.paused && "paused", one.lag_total.stalled && one.lag_total.stalled !== "paused" && `stalled: ${one.lag_total.stalled}`, one.lag_total.skipped > 0 && `${count(one.lag_total.skipped)} lost to retention`];
  const shown = marks.filter(Boolean);
  return shown.length ? shown.map((text) => html`<span class="mark bad">${text}</span> `) : "delivers";
}

function Whole({ of: one }) {
  const most = Math.max(1, ...one.lag.map((lag) => lag.messages));
  const columns = [
    { title: "Segment", of: (lag) => lag.segment },
    { title: "Behind", of: (lag) => html`<svg class="range" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="all" width="100" height="8" /><rect class="part" width=${(lag.messages / most) * 100} height="8" /></svg> ${count(lag.messages)}` },
    { title: "Bytes behind", number: true, of: (lag) => size(lag.bytes) },
    { title: "Oldest unacked", number: true, of: (lag) => (lag.messages ? duration(lag.seconds) : NONE) },
    { title: "Acked to", number: true, of: (lag) => count(lag.acked_to) },
    { title: "End", number: true, of: (lag) => count(lag.end_offset) },
    { title: "In flight", number: true, of: (lag) => count(lag.in_flight) },
    { title: "Waiting", number: true, of: (lag) => count(lag.waiting) },
    { title: "Delayed", number: true, of: (lag) => count(lag.delayed) },
    { title: "Dying", number: true, of: (lag) => count(lag.dying) },
    { title: "State", of: (lag) => (lag.stalled ? html`<span class="mark bad">stalled: ${lag.stalled}</span>` : "delivers") },
  ];
  const settings = [
    ["Ack deadline", duration(one.ack_deadline_s)], ["Attempts", one.max_attempts || "without end"], ["Dead letters to", one.dead_letter_topic ? html`<a href=${`#/topics/${encodeURIComponent(one.dead_letter_topic)}`}>${one.dead_letter_topic}</a>` : NONE],
    ["Pauses between attempts", one.backoff_s.length ? one.backoff_s.map(duration).join(", ") : NONE], ["Filter", one.filter ? html`<code>${JSON.stringify(one.filter)}</code>` : "all messages"],
    ["Most in flight", count(one.max_in_flight)], ["Pulls that wait", count(one.waiting_pulls)], ["Expires after", duration(one.expires_after_s)],
  ];
  const rows = [...one.lag].sort((a, b) => b.messages - a.messages);
  return html`<div class="whole"><dl class="figures small">${settings.map(([name, text]) => html`<div><dt>${name}</dt><dd>${text}</dd></div>`)}</dl>
    ${rows.length === 0 ? html`<p>All segments are acked to their ends.</p>` : html`<${Segments} rows=${rows} columns=${columns} name=${one.name} />`}</div>`;
}

function Segments({ rows, columns, name }) {
  const [shown, buttons] = usePages(rows, 50);
  return html`<${Table} label=${`Lag of ${name} by segment`} columns=${columns} rows=${shown} keyOf=${(lag) => lag.segment} />${buttons}`;
}

async function ofTopic(name, signal) {
  try {
    const { subscriptions, unreadable } = await call(path`v1/topics/${name}/subscriptions`, { signal });
    return { name, subscriptions, unreadable };
  } catch (error) {
    if (!(error instanceof Problem) || error.status === 0) throw error;
    return { name, subscriptions: [], error };
  }
}
