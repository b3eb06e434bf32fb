// One topic: its figures, and what each of its tabs shows.

import { call, path } from "./api.js";
import { age, count, rate, size } from "./format.js";
import { Files } from "./files.js";
import { KeySpace } from "./key_space.js";
import { Messages } from "./messages.js";
import { Publish } from "./publish.js";
import { Schema } from "./schema.js";
import { Segments } from "./segments.js";
import { cameIn, newest } from "./topics.js";
import { DeleteTopic, Settings } from "./topic_forms.js";
import { Figures, html, Polled, Unreadable, useEffect, usePolled, useRef, useState } from "./ui.js";

const POLL_MS = 3_000;
const KEPT = 600; // points of the rates' chart: half an hour
const TABS = [["messages", "Messages"], ["keys", "Key space"], ["publish", "Publish"], ["segments", "Segments"], ["files", "Files"], ["schema", "Schema"], ["settings", "Settings"]];

export function Topic({ name, tab = "messages", place }) {
  const [isDeleting, setDeleting] = useState(false);
  const polled = usePolled(async (signal) => {
    const topic = await call(path`v1/topics/${name}`, { signal });
    const map = await call(path`v1/topics/${name}/segments`, { signal });
    return { topic, map };
  }, POLL_MS, [name]);
  const rates = useRates(polled);
  const at = `#/topics/${encodeURIComponent(name)}`;
  return html`
    <nav aria-label="Breadcrumb" class="crumbs"><a href="#/topics">Topics</a></nav>
    <h1>${name}</h1>
    <${Polled} of=${polled}>${({ topic, map }) => html`
      <${Figures} of=${[
        ["Messages", count(topic.messages)],
        ...removedOf(topic),
        ["Files", size(topic.bytes)],
        ["Not in files yet", size(topic.tail_bytes)],
        ["Messages/s", cameIn(map, "messages_per_s", rate)],
        ["Bytes/s", cameIn(map, "bytes_per_s", size)],
        ["Segments", count(topic.segments)],
        ["Hot keys", count(topic.hot_segments.length)],
        ["Newest file", topic.newest_file_at ? `${age(topic.newest_file_at)} old` : "none"],
        ["Format", topic.format],
      ]} />
      <${Unreadable} of=${map.unreadable} thing="segments" />
      <nav aria-label=${`Views of ${name}`} class="tabs"><ul>${TABS.filter(([one]) => one !== "schema" || topic.format === "typed").map(([one, title]) => html`<li>
        <a href=${`${at}/${one}`} aria-current=${one === tab ? "page" : undefined}>${title}</a></li>`)}
        <li><a href=${`#/subscriptions/${encodeURIComponent(name)}`}>Subscriptions</a></li></ul></nav>
      ${tab === "messages" && html`<${Messages} topic=${topic} map=${map} place=${place} />`}
      ${tab === "keys" && html`<${KeySpace} topic=${topic} map=${map} />`}
      ${tab === "publish" && html`<${Publish} topic=${topic} onPublished=${polled.reload} />`}
      ${tab === "segments" && html`<${Segments} map=${map} rates=${rates} />`}
      ${tab === "files" && html`<${Files} topic=${topic} />`}
      ${tab === "schema" && topic.schema && html`<${Schema} topic=${topic} onChanged=${polled.reload} />`}
      ${tab === "settings" && html`<${Settings} topic=${topic} onChanged=${polled.reload} onDelete=${() => setDeleting(true)} />`}
    `}<//>
    ${isDeleting && html`<${DeleteTopic} name=${name} onClose=${() => setDeleting(false)} onDone=${() => { location.hash = "#/topics"; }} />`}`;
}

/** Returns the figure of messages that retention has removed, which `messages` counts, if there are any. */
function removedOf(topic) {
  const removed = Object.values(topic.start_offsets).reduce((sum, one) => sum + one, 0);
  return removed ? [["Deleted by retention", count(removed)]] : [];
}

/** Keeps the rates that were polled, as the chart takes them: [times, messages a second]. */
function useRates({ data, at }) {
  const kept = useRef([[], []]);
  const [, drawn] = useState(0);
  useEffect(() => {
    if (!data) return;
    const [times, rates] = kept.current;
    kept.current = [[...times, at.getTime() / 1000].slice(-KEPT), [...rates, newest(data.map, "messages_per_s")].slice(-KEPT)];
    drawn(kept.current[0].at(-1));
  }, [at]);
  return kept.current;
}
