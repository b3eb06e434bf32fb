// The cluster: its level, its store, and what each broker holds.

import { call } from "./api.js";
import { count, size } from "./format.js";
import { Figures, html, Polled, Table, usePolled } from "./ui.js";

const POLL_MS = 3_000;

export function Brokers() {
  const cluster = usePolled((signal) => call("v1/cluster", { signal }), POLL_MS, []);
  return html`<h1>Brokers</h1><${Polled} of=${cluster}>${(data) => html`<${Cluster} of=${data} />`}<//>`;
}

function Cluster({ of: cluster }) {
  const columns = [
    { title: "Broker", of: (one) => one.id },
    { title: "State", of: stateOf },
    { title: "Segments", number: true, of: (one) => count(one.segments) },
    { title: "In memory", number: true, of: (one) => size(one.tail_bytes) },
    { title: "In the journal", number: true, of: (one) => size(one.unreleased_journal_bytes) },
    { title: "Zone", of: (one) => one.zone || "none" },
    { title: "Version", of: (one) => one.version || "before levels" },
    { title: "Reads levels", of: (one) => `${one.lowest_level} to ${one.highest_level}` },
    { title: "URL", of: (one) => html`<code>${one.url}</code>` },
  ];
  return html`
    <${Figures} of=${[["Brokers", count(cluster.brokers.length)], ["Leader", cluster.leader || html`<span class="mark bad">none</span>`], ["Level", levelOf(cluster)], ["Cluster", cluster.cluster]]} />
    <p>Store: <code class="break">${cluster.store}</code></p>
    ${cluster.too_old.length > 0 && html`<p>These keep the cluster from level ${cluster.level_newest}: ${cluster.too_old.join(", ")}.</p>`}
    ${cluster.unreadable && html`<p class="failure">The records of these brokers need a newer broker: ${cluster.unreadable.join(", ")}.</p>`}
    <${Table} label="Brokers" columns=${columns} rows=${cluster.brokers} keyOf=${(one) => one.id} />
    <p><small><em>In memory</em> are acknowledged messages that are in no file yet; <em>in the journal</em> is what a start after a crash would read.</small></p>`;
}

function levelOf(cluster) {
  if (cluster.level_written < cluster.level) return `${cluster.level}, rising from ${cluster.level_written}`;
  return cluster.level_possible > cluster.level ? `${cluster.level}, could be ${cluster.level_possible}` : String(cluster.level);
}

function stateOf(one) {
  const state = one.starting ? "starting" : one.draining ? "draining" : one.tail_bytes === null ? "no answer" : "ready";
  return html`${state === "ready" ? state : html`<span class="mark bad">${state}</span>`}${one.leader && html` <span class="mark">leader</span>`}`;
}
