// Subscriptions: how far behind each is, in all and by segment.

import { call, gather, pages, path, Problem } from "./api.js";
import { count, duration, NONE, size } from "./format.js";
import { Failure, Fragment, html, Input, Name, Polled, Scroll, Table, Unreadable, usePages, usePolled, useState } from "./ui.js";

const LIST_MS = 10_000;
const SHOWN_MS = 4_000;
const PAGE = 20; // of these alone more than the name is asked for
const LAG = "Sealed segments whose messages are all acked are not listed. Bytes behind are an estimate: messages in files count as stored, other messages "
  + "as in memory, so a flush also lowers the figure.";

export function Subscriptions({ topic }) {
  const [filter, setFilter] = useState(topic || "");
  const list = usePolled((signal) => pages("v1/subscriptions", "subscriptions", signal), LIST_MS, []);
  const isShown = (one) => (filter === topic ? one.topic === topic : one.topic.includes(filter.trim()));
  return html`<h1>Subscriptions</h1>
    <${Input} label="Filter by topic" type="search" value=${filter} onValue=${setFilter} autocomplete="off" />
    <${Polled} of=${list}>${({ all, unreadable }) => {
      const shown = all.filter(isShown);
      return html`<${Unreadable} of=${unreadable.filter(isShown).map((one) => `${one.topic}/${one.name}`)} thing="subscriptions" />
        ${shown.length === 0 ? html`<${None} filter=${filter.trim()} topic=${filter === topic ? topic : ""} />` : html`<${List} names=${shown} />`}`;
    }}<//>`;
}

function None({ filter, topic }) {
  if (filter && !topic) return html`<p>No topic that matches this filter has a subscription.</p>`;
  return html`<article><p>No subscription${topic && ` of ${topic}`} yet. The first pull creates one:</p>
    <pre tabindex="0"><code>seaweedq pull ${topic || "TOPIC"} --subscription mine --start earliest</code></pre></article>`;
}

function List({ names }) {
  const [rows, buttons] = usePages(names, PAGE);
  const found = usePolled(async (signal) => (await gather(rows, (one) => detail(one, signal))).filter(Boolean), SHOWN_MS, [rows.map(idOf).join()]);
  return html`<${Polled} of=${found}>${(parts) => html`
    ${parts.filter((one) => one.error).map((one) => html`<${Failure} error=${one.error} title=${idOf(one)} />`)}
    <${All} subscriptions=${parts.filter((one) => !one.error)} />`}<//>${buttons}`;
}

function idOf(one) {
  return `${one.topic}/${one.name}`;
}

function All({ subscriptions }) {
  const [opened, open] = useState(null);
  return html`<${Scroll} label="Subscriptions"><table>
    <thead><tr><th scope="col">Subscription</th><th scope="col">Topic</th><th scope="col">Mode</th>
      ${["Behind", "Bytes behind", "Oldest unacked", "In flight", "Waiting", "Delayed", "Dying", "Consumers"].map((one) => html`<th scope="col" class="number">${one}</th>`)}
      <th scope="col">State</th></tr></thead>
    <tbody>${subscriptions.map((one) => {
      const id = idOf(one);
      return html`<${Row} key=${id} of=${one} isOpen=${opened === id} onOpen=${() => open(opened === id ? null : id)} />`;
    })}</tbody>
  </table><//>`;
}

function Row({ of: one, isOpen, onOpen }) {
  const lag = one.lag_total;
  const figures = [count(lag.messages), size(lag.bytes), lag.messages ? duration(lag.seconds) : NONE, count(lag.in_flight), count(lag.waiting), count(lag.delayed), count(lag.dying), consumers(one)];
  return html`<${Fragment}>
    <tr class=${isOpen ? "opened" : ""}>
      <th scope="row"><button type="button" class="link" aria-expanded=${isOpen} onClick=${onOpen}><${Name} of=${one.name} /></button></th>
      <td><a href=${`#/topics/${encodeURIComponent(one.topic)}`}><${Name} of=${one.topic} /></a></td><td>${one.mode}</td>
      ${figures.map((text) => html`<td class="number">${text}</td>`)}
      <td><${State} of=${one} lag=${lag} lost=${lag.skipped} /></td>
    </tr>
    ${isOpen && html`<tr><td colspan="12"><${Whole} of=${one} /></td></tr>`}
  <//>`;
}

function consumers(one) {
  return one.idle_consumers ? `${count(one.consumers)} (${count(one.idle_consumers)} idle)` : count(one.consumers);
}

/** The state of a subscription, or of one segment of its `lag`. */
function State({ of: subscription, lag, lost = 0 }) {
  const marks = marksOf(subscription, lag, lost);
  return marks.length ? marks.map((text) => html`<span class="mark bad">${text}</span> `) : wayOf(lag);
}

/** Returns what keeps messages from being delivered, or has lost some. */
function marksOf(subscription, lag, lost) {
  const stall = lag.stalled && lag.stalled !== "paused" && `stalled: ${lag.stalled}`;
  const isAlone = lag.messages > 0 && subscription.consumers === 0;
  return [subscription.paused && "paused", stall, isAlone && "no consumers", lost > 0 && `${count(lost)} lost to retention`].filter(Boolean);
}

/** Returns where the messages are that a consumer has not acked, by the part that moves first. */
function wayOf(lag) {
  if (lag.messages === 0) return "all acked";
  if (lag.waiting > 0) return "delivering";
  if (lag.in_flight > 0) return "all in flight";
  return lag.dying > 0 ? "writing dead letters" : lag.delayed > 0 ? "delayed" : "waiting";
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
    { title: "State", of: (lag) => html`<${State} of=${one} lag=${lag} />` },
  ];
  const settings = [
    ["Ack deadline", duration(one.ack_deadline_s, true)], ["Maximum attempts", one.max_attempts || "unlimited"], ["Dead-letter topic", one.dead_letter_topic ? html`<a href=${`#/topics/${encodeURIComponent(one.dead_letter_topic)}`}><${Name} of=${one.dead_letter_topic} /></a>` : NONE],
    ["Backoff", one.backoff_s.length ? one.backoff_s.map((each) => duration(each, true)).join(", ") : NONE], ["Filter", one.filter ? html`<code class="break">${JSON.stringify(one.filter)}</code>` : "all messages"],
    ["Maximum in flight", count(one.max_in_flight)], ["Open long polls", count(one.waiting_pulls)], ["Expires after", duration(one.expires_after_s, true)],
  ];
  const rows = [...one.lag].sort((a, b) => b.messages - a.messages);
  return html`<div class="whole"><dl class="figures small">${settings.map(([name, text]) => html`<div><dt>${name}</dt><dd>${text}</dd></div>`)}</dl>
    ${rows.length === 0 ? html`<p>All messages are acked.</p>` : html`<${Segments} rows=${rows} columns=${columns} name=${one.name} />`}
    <p><small>${LAG}</small></p></div>`;
}

function Segments({ rows, columns, name }) {
  const [shown, buttons] = usePages(rows, 50);
  return html`<${Table} label=${`Lag of ${name} by segment`} columns=${columns} rows=${shown} keyOf=${(lag) => lag.segment} />${buttons}`;
}

/** Returns a subscription, its error, or null if it is gone by now. */
async function detail({ topic, name }, signal) {
  try {
    return await call(path`v1/topics/${topic}/subscriptions/${name}`, { signal });
  } catch (error) {
    if (!(error instanceof Problem) || error.status === 0) throw error;
    return error.status === 404 ? null : { topic, name, error }; // one's trouble hides no other
  }
}
