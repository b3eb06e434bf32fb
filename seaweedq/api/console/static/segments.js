// The segments of a topic: their ranges of the key space, owners, rates.

import { Chart } from "./chart.js";
import { age, count, counted, KEY_SPACE, NONE, rate, share, size } from "./format.js";
import { html, Name, Table, useMemo, usePages, useState } from "./ui.js";

const PAGE = 100;

export function Segments({ map, rates }) {
  const [withSealed, show] = useState(false);
  const segments = useMemo(() => sorted(map.segments, withSealed), [map, withSealed]);
  const [rows, buttons] = usePages(segments, PAGE);
  const sealed = map.segments.length - map.segments.filter((one) => one.state === "open").length;
  const columns = [
    { title: "Id", of: (one) => one.id },
    { title: "Key range", of: (one) => html`<${Range} of=${one} />` },
    { title: "State", of: (one) => html`${one.state}${one.hot_key && html` <span class="mark" title=${`hash ${one.hot_key.hash}`}>hot key: ${Math.round(one.hot_key.share * 100)}%</span>`}` },
    { title: "Messages/s", number: true, of: (one) => (one.rates ? rate(one.rates.messages_per_s[0]) : NONE) },
    { title: "Bytes/s", number: true, of: (one) => (one.rates ? size(one.rates.bytes_per_s[0]) : NONE) },
    { title: "Nearest split", of: (one) => (one.next_split ? nearestSplit(one.next_split) : NONE) },
    { title: "From", number: true, of: (one) => count(one.start_offset) },
    { title: "In files up to offset", number: true, of: (one) => count(one.flushed_offset) },
    { title: "To", number: true, of: (one) => count(one.end_offset) },
    { title: "Owner", of: (one) => (one.owner && html`<${Name} of=${one.owner} />`) || (one.state === "open" ? html`<span class="mark bad">unassigned</span>` : NONE) },
    { title: "Age", number: true, of: (one) => age(one.created_at) },
    { title: "Successors", of: (one) => one.successors.join(", ") || NONE },
  ];
  return html`
    <h2>Messages per second</h2>
    <${Chart} data=${rates} label="Messages per second since this page was opened, for at most half an hour" />
    <h2>Segments</h2>
    <label><input type="checkbox" role="switch" checked=${withSealed} onChange=${(event) => show(event.target.checked)} />Show ${counted(sealed, "sealed segment")}</label>
    <${Table} label="Segments" columns=${columns} rows=${rows} keyOf=${(one) => one.id} />${buttons}`;
}

/** Says of the average that is nearest to a split how far it is from that. */
function nearestSplit({ measure, window_s, splits_at, now, held_by }) {
  const [shown, unit] = measure === "messages_per_s" ? [count, ""] : [size, "/s"];
  const over = window_s < 60 ? `${window_s} s` : `${window_s / 60} min`;
  return `splits at ${shown(splits_at)}${unit}, now ${shown(Math.floor(now))}${unit} (${over})${held_by ? `, held by ${held_by}` : ""}`;
}

function sorted(segments, withSealed) {
  const shown = segments.filter((one) => withSealed || one.state === "open");
  return shown.sort((a, b) => a.low - b.low || a.id - b.id);
}

function Range({ of: one }) {
  const x = (one.low / KEY_SPACE) * 100;
  const width = Math.max(1, ((one.high - one.low) / KEY_SPACE) * 100);
  return html`<svg class="range" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label=${`hashes ${one.low} to ${one.high}`}>
    <rect class="all" width="100" height="8" /><rect class="part" x=${Math.min(x, 99)} width=${width} height="8" /></svg> ${share(one.low, one.high)}`;
}
