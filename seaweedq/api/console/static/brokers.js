// The cluster: its level, its store, what each broker holds and owns, and what brokers that are gone have left.

import { call, pages, path } from "./api.js";
import { count, duration, KEY_SPACE, NONE, rate, share, size, time } from "./format.js";
import { Failure, Field, Figures, html, Name, Polled, Table, Unreadable, useMemo, usePolled, useState } from "./ui.js";

const POLL_MS = 3_000;
const LIST_MS = 30_000;
const MOST_RANGES = 400; // of one broker that are drawn apart

export function Brokers() {
  const cluster = usePolled((signal) => call("v1/cluster", { signal }), POLL_MS, []);
  return html`<h1>Brokers</h1><${Polled} of=${cluster}>${(data) => html`<${Cluster} of=${data} />`}<//>`;
}

function Cluster({ of: cluster }) {
  const columns = [
    { title: "Broker", of: (one) => html`<${Name} of=${one.id} />` },
    { title: "State", of: stateOf },
    { title: "Segments", number: true, of: (one) => count(one.segments) },
    { title: "Messages/s", number: true, of: (one) => rate(one.messages_per_s) },
    { title: "Bytes/s", number: true, of: (one) => size(one.bytes_per_s) },
    { title: "Memory", of: (one) => html`<${Memory} of=${one} />` },
    { title: "Not in files yet", number: true, of: (one) => size(one.tail_bytes) },
    { title: "Age of the oldest message", number: true, of: (one) => (one.tail_bytes ? duration(one.oldest_tail_s) : NONE) },
    { title: "Journal", number: true, of: (one) => size(one.unreleased_journal_bytes) },
    { title: "Zone", of: (one) => html`<${Name} of=${one.zone || "none"} />` },
    { title: "Version", of: (one) => one.version || "too old for levels" },
    { title: "Supported levels", of: (one) => `${one.lowest_level} to ${one.highest_level}` },
    { title: "URL", of: (one) => html`<code><${Name} of=${one.url} /></code>` },
  ];
  return html`
    <${Figures} of=${[["Brokers", count(cluster.brokers.length)], ["Brokers needed by the load", cluster.brokers_wanted === null ? NONE : count(cluster.brokers_wanted)], ["Leader", cluster.leader || html`<span class="mark bad">none</span>`], ["Level", levelOf(cluster)], ["Cluster", cluster.cluster]]} />
    <p>Store: <code class="break">${cluster.store}</code></p>
    ${cluster.too_old.length > 0 && html`<p>These brokers prevent level ${cluster.level_newest}: ${cluster.too_old.join(", ")}.</p>`}
    <${Unreadable} of=${cluster.unreadable} thing="brokers" />
    <${Table} label="Brokers" columns=${columns} rows=${cluster.brokers} keyOf=${(one) => one.id} />
    <p><small><em>Not in files yet</em>: acknowledged messages that are only in memory and in the journal. <em>Age of the oldest message</em>: the age of the oldest message that is not in a file yet. <em>Journal</em>: the bytes that a recovery would read after a crash.</small></p>
    <${Left} of=${cluster.left_behind} />
    <${Owners} brokers=${cluster.brokers} />`;
}

function levelOf(cluster) {
  if (cluster.level_written < cluster.level) return `${cluster.level}, being upgraded from ${cluster.level_written}`;
  return cluster.level_possible > cluster.level ? `${cluster.level}, upgrade to ${cluster.level_possible} possible` : String(cluster.level);
}

function stateOf(one) {
  const state = one.starting ? "starting" : one.draining ? "draining" : one.tail_bytes === null ? "no answer" : "ready";
  return html`${state === "ready" ? state : html`<span class="mark bad">${state}</span>`}${one.leader && html` <span class="mark">leader</span>`}`;
}

function Memory({ of: one }) {
  if (one.memory_bytes === null) return NONE;
  return html`<${Bar} ranges=${[[0, one.memory_bytes / one.memory_budget_bytes]]} label="" /> ${size(one.memory_bytes)} of ${size(one.memory_budget_bytes)}`;
}

/** Parts of a whole, from 0 to 1. Without a label it only repeats what the text beside it says. */
function Bar({ ranges, label }) {
  const named = label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" };
  return html`<svg class="range" viewBox="0 0 100 8" preserveAspectRatio="none" ...${named}><rect class="all" width="100" height="8" />
    ${ranges.map(([low, high]) => html`<rect class="part" x=${low * 100} width=${Math.max(0.4, (Math.min(1, high) - low) * 100)} height="8" />`)}</svg>`;
}

/** Segments without an owner, and journals that are still to be recovered. */
function Left({ of: left }) {
  const columns = [
    { title: "Broker", of: (one) => html`<${Name} of=${one.broker || "none yet"} />` },
    { title: "State", of: (one) => html`<span class="mark bad">${one.state}</span>${one.since && ` since ${time(one.since)}`}` },
    { title: "Segments", number: true, of: (one) => count(one.segments) },
    { title: "Topics (at most 20)", of: (one) => one.topics.map((name) => html`<a href=${`#/topics/${encodeURIComponent(name)}/segments`}><${Name} of=${name} /></a> `) },
    { title: "Why", of: (one) => one.why },
  ];
  return html`<h2>Waiting for an owner or a recovery</h2>
    ${left.length === 0
      ? html`<p>Nothing: every segment has a running owner, and no journal needs recovery.</p>`
      : html`<${Table} label="Left behind by dead brokers" columns=${columns} rows=${left} keyOf=${(one) => one.broker || ""} />`}`;
}

/** Which keys of a topic each broker owns. */
function Owners({ brokers }) {
  const [chosen, choose] = useState("");
  const list = usePolled((signal) => pages("v1/topics", "topics", signal), LIST_MS, []);
  const names = (list.data?.all || []).map((one) => one.name);
  const topic = names.includes(chosen) ? chosen : names[0] || "";
  if (!list.data) return list.error ? html`<${Failure} error=${list.error} />` : html`<p aria-busy="true">Loading</p>`;
  if (!topic) return null;
  return html`<h2>Owners of the key space</h2>
    <${Field} label="Topic">${(id) => html`<select id=${id} class="short" value=${topic} onChange=${(event) => choose(event.target.value)}>${names.map((one) => html`<option value=${one}>${one}</option>`)}</select>`}<//>
    <${OwnersOf} key=${topic} topic=${topic} brokers=${brokers} />`;
}

function OwnersOf({ topic, brokers }) {
  const map = usePolled((signal) => call(path`v1/topics/${topic}/segments`, { signal }), POLL_MS, [topic]);
  return html`<${Polled} of=${map}>${(data) => html`<${Owned} segments=${data.segments} brokers=${brokers} />`}<//>`;
}

function Owned({ segments, brokers }) {
  const rows = useMemo(() => ownedBy(segments, brokers.map((one) => one.id)), [segments, brokers]);
  const columns = [
    { title: "Broker", of: (one) => (one.owner && html`<${Name} of=${one.owner} />`) || html`<span class="mark bad">unassigned</span>` },
    { title: "Keys", of: (one) => html`<span class="wide"><${Bar} ranges=${one.ranges.slice(0, MOST_RANGES)} label=${`${count(one.ranges.length)} key ranges`} /></span>${one.ranges.length > MOST_RANGES && ` the first ${MOST_RANGES} of ${count(one.ranges.length)} ranges`}` },
    { title: "Share", number: true, of: (one) => share(0, one.keys) },
    { title: "Segments", number: true, of: (one) => count(one.segments) },
    { title: "Messages/s", number: true, of: (one) => rate(one.rate) },
  ];
  return html`<${Table} label="Owners" columns=${columns} rows=${rows} keyOf=${(one) => one.owner || ""} />`;
}

/** Returns for each broker, living or not, its ranges (neighbours as one), their keys and what comes in. */
function ownedBy(segments, living) {
  const rows = new Map(living.map((owner) => [owner, { owner, ranges: [], keys: 0, segments: 0, rate: 0 }]));
  const open = segments.filter((one) => one.state === "open").sort((a, b) => a.low - b.low);
  for (const one of open) {
    const row = rows.get(one.owner) || { owner: one.owner, ranges: [], keys: 0, segments: 0, rate: 0 };
    rows.set(one.owner, row);
    const [low, high, last] = [one.low / KEY_SPACE, one.high / KEY_SPACE, row.ranges.at(-1)];
    if (last && last[1] === low) last[1] = high;
    else row.ranges.push([low, high]);
    row.keys += one.high - one.low;
    row.segments += 1;
    row.rate += one.rates ? one.rates.messages_per_s[0] : 0;
  }
  return [...rows.values()];
}
