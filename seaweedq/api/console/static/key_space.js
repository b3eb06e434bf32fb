// A topic's key space over time: a picture to point at and to zoom into, and the same as tables.

import { call, path } from "./api.js";
import { age, count, duration, KEY_SPACE, NONE, rate, share, size, time } from "./format.js";
import { coloursOf, fitted, paint, point, projection } from "./key_space_canvas.js";
import { ALL_KEYS, boxAt, cellsOf, changesOf, colourOf, livesOf, moved, presentOf, scaleOf, shadeOf, within, zoomed } from "./key_space_view.js";
import { Field, Figures, Fragment, html, Name, onTheme, Polled, Table, useEffect, useMemo, usePages, usePolled, useRef, useState } from "./ui.js";

const POLL_MS = 10_000;
const HOUR_MS = 3_600_000;
const SHORT_MS = 120_000; // a history that has just begun is not drawn wider
const MOST_CELLS = 8_000;
const SPANS = [[0, "All recorded time"], [300_000, "The last 5 minutes"], [900_000, "The last 15 minutes"], [HOUR_MS, "The last hour"]];
const STEP = 1 / 40; // of the picture, by an arrow
const HELP = "Arrow keys move the cross, and with Shift the picture. Plus and minus zoom, 0 resets the zoom, and Page up and Page down go to the next segment.";

export function KeySpace({ topic, map }) {
  const [zoom, setZoom] = useState(null); // the part that was chosen; null follows the present
  const [span, setSpan] = useState(0);
  const [asTable, setTable] = useState(false);
  const asked = zoom && `${Math.floor(zoom.since / 1000)} ${Math.ceil(zoom.until / 1000)}`;
  const polled = usePolled((signal) => call(url(topic.name, zoom), { signal }), POLL_MS, [topic.name, asked]);
  const last = useRef(null);
  if (polled.data) last.current = polled.data;
  const of = { ...polled, data: polled.data || last.current || undefined, at: polled.at || new Date() };
  return html`
    <div class="search">
      <${Field} label="Time">${(id) => html`<select id=${id} value=${zoom ? "" : span} onChange=${(event) => { setZoom(null); setSpan(Number(event.target.value)); }}>
        ${zoom && html`<option value="">Zoomed in</option>`}${SPANS.map(([one, text]) => html`<option value=${one}>${text}</option>`)}</select>`}<//>
      <label><input type="checkbox" role="switch" checked=${asTable} onChange=${(event) => setTable(event.target.checked)} />As tables</label>
    </div>
    <${Polled} of=${of}>${(history) => html`<${Shown} topic=${topic} map=${map} history=${history} span=${span} zoom=${zoom} setZoom=${setZoom} asTable=${asTable} />`}<//>`;
}

function url(topic, zoom) {
  const part = zoom ? `&since=${new Date(zoom.since).toISOString()}&until=${new Date(zoom.until).toISOString()}` : "";
  return `${path`v1/topics/${topic}/history`}?cells=${MOST_CELLS}${part}`;
}

function Shown({ topic, map, history, span, zoom, setZoom, asTable }) {
  const past = useMemo(() => cellsOf(history), [history]);
  const data = useMemo(() => dataOf(map, history, topic, past), [map, past]);
  const bounds = { since: data.first, until: data.now };
  const part = zoom || { ...bounds, since: span ? Math.max(bounds.since, data.now - span) : bounds.since, ...ALL_KEYS };
  const choose = (next) => setZoom(next && within(next, bounds));
  const view = asTable ? html`<${Tables} data=${data} part=${part} />` : html`<${Picture} data=${data} part=${part} bounds=${bounds} choose=${choose} isAll=${!zoom} />`;
  return html`${view}
    <p><small>The leader, ${history.leader}, has recorded the inbound messages since ${time(history.from)}${history.cells.length === 0 && ": none in this time"}.</small></p>`;
}

/** Returns all that is drawn. Before `begin` nothing was recorded; segments that lived then are known if they are not removed. */
function dataOf(map, history, topic, past) {
  const now = Date.now();
  const [begin, end] = [Date.parse(history.from), Date.parse(history.until)];
  const first = Math.max(now - HOUR_MS, Math.min(begin, now - SHORT_MS, Math.max(Date.parse(topic.created_at), now - HOUR_MS)));
  const boxes = [...past, ...presentOf(map.segments, Math.max(end, begin), now)];
  return {
    now, begin, first, boxes, scale: scaleOf(boxes),
    lives: livesOf(map.segments, first, now, now),
    changes: changesOf(map.segments, first, now),
    segments: new Map(map.segments.map((one) => [one.id, one])),
  };
}

function Picture({ data, part, bounds, choose, isAll }) {
  const [at, pointAt] = useState(null);
  const plane = useRef(null);
  const [shown, draw] = useCanvas(plane, data, part, at);
  const box = at && boxOf(data, at);
  const zoomAt = (factor) => choose(zoomed(part, factor, at || centreOf(part), bounds));
  const key = (event) => {
    const next = keyed(event, part, at || centreOf(part), bounds, data);
    if (!next) return;
    event.preventDefault();
    if (next.part !== undefined) choose(next.part);
    if (next.at) pointAt(next.at);
  };
  usePointer(plane, shown, part, pointAt, choose, draw);
  return html`
    <div class="buttons">
      ${[["Zoom in", { time: 0.5, keys: 0.5 }], ["Zoom out", { time: 2, keys: 2 }], ["Less time", { time: 0.5, keys: 1 }], ["Fewer keys", { time: 1, keys: 0.5 }]].map(([text, factor]) => html`<button type="button" class="outline small" onClick=${() => zoomAt(factor)}>${text}</button>`)}
      <button type="button" class="outline small" disabled=${isAll} onClick=${() => choose(null)}>Reset to live</button>
    </div>
    <div ref=${plane} class="plane" tabindex="0" role="application" aria-label="Key space over time" aria-describedby="plane-help" onKeyDown=${key}>
      <canvas aria-hidden="true"></canvas><canvas aria-hidden="true"></canvas>
    </div>
    <${Legend} scale=${data.scale} />
    <p id="plane-help"><small>${HELP} To zoom with a mouse, drag over a part, or turn the wheel with Ctrl. <em>As tables</em> shows the same data as text.</small></p>
    <div role="status" class="place">${at ? html`<${Place} at=${at} box=${box} data=${data} />` : html`<p>Point at a position to see its segment, owner, rates and history.</p>`}</div>`;
}

function centreOf(part) {
  return { time: (part.since + part.until) / 2, key: Math.floor((part.low + part.high) / 2) };
}

/** Returns what a key does: the part to show then, and the place to point at. Null: nothing. */
function keyed({ key, shiftKey, ctrlKey, metaKey, altKey }, part, at, bounds, data) {
  if (ctrlKey || metaKey || altKey) return null;
  const [ms, keys] = [(part.until - part.since) * STEP, (part.high - part.low) * STEP];
  const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[key];
  if (way && shiftKey) return { part: moved(part, way[0] / 8, way[1] / 8, bounds) };
  if (way) return { at: inside({ time: at.time + way[0] * ms, key: at.key + way[1] * keys }, part) };
  if (key === "+" || key === "=") return { part: zoomed(part, { time: 0.5, keys: 0.5 }, at, bounds), at };
  if (key === "-") return { part: zoomed(part, { time: 2, keys: 2 }, at, bounds), at };
  if (key === "0") return { part: null };
  if (key === "PageUp" || key === "PageDown") return { at: inside(next(data, at, key === "PageUp" ? 1 : -1), part) };
  return null;
}

function inside({ time: when, key }, part) {
  return { time: Math.max(part.since, Math.min(part.until - 1, when)), key: Math.round(Math.max(part.low, Math.min(part.high - 1, key))) };
}

/** Returns the middle of the next segment up or down the keys. */
function next(data, at, way) {
  const here = boxAt(data.lives, at);
  const key = here ? (way > 0 ? here.high : here.low - 1) : at.key;
  const found = boxAt(data.lives, { time: at.time, key });
  return { time: at.time, key: found ? (found.low + found.high) / 2 : at.key };
}

function boxOf(data, at) {
  return boxAt(data.boxes, at) || boxAt(data.lives, at);
}

/** Draws whenever something has changed; returns [the size, a function that draws the pointer]. */
function useCanvas(plane, data, part, at) {
  const [shown, setShown] = useState({ width: 0, height: 0, theme: 0 });
  useEffect(() => {
    const place = plane.current; // which is no more in `plane` when this ends
    const measure = () => setShown((before) => ({ width: place.clientWidth, height: place.clientHeight, theme: before.theme + 1 }));
    const [fit, forget] = [new ResizeObserver(measure), onTheme(measure)];
    fit.observe(place);
    return () => {
      fit.disconnect();
      forget();
    };
  }, []);
  const colours = useMemo(() => plane.current && coloursOf(plane.current), [shown]);
  useEffect(() => {
    if (!shown.width) return;
    paint(fitted(plane.current.firstChild, shown.width, shown.height), shown, part, data, colours);
  }, [shown, data, part.since, part.until, part.low, part.high]);
  const overlay = useRef(null);
  useEffect(() => {
    overlay.current = shown.width ? fitted(plane.current.lastChild, shown.width, shown.height) : null;
  }, [shown]);
  const draw = (place, drag) => overlay.current && point(overlay.current, shown, part, place, place && boxOf(data, place), drag, colours);
  useEffect(() => draw(at, null), [at, shown, data, part.since, part.until, part.low, part.high]);
  return [shown, draw];
}

/** Mouse and touch: a move or a tap points, a drag of a mouse chooses a part, the wheel with Ctrl zooms. */
function usePointer(plane, shown, part, pointAt, choose, draw) {
  const now = useRef({});
  now.current = { shown, part, pointAt, choose, draw };
  useEffect(() => {
    const place = plane.current;
    let [drag, due] = [null, 0];
    const on = () => projection(now.current.part, now.current.shown.width, now.current.shown.height);
    const here = ({ clientX, clientY }) => {
      const { left, top } = place.getBoundingClientRect();
      return [clientX - left, clientY - top];
    };
    const move = (event) => {
      const [x, y] = here(event);
      if (drag) Object.assign(drag, { toX: x, toY: y });
      cancelAnimationFrame(due);
      due = requestAnimationFrame(() => (drag ? now.current.draw(null, drag) : now.current.pointAt(on().placeOf(x, y))));
    };
    const down = (event) => {
      const [x, y] = here(event);
      if (event.pointerType === "mouse" && event.button === 0) drag = { x, y, toX: x, toY: y };
      else now.current.pointAt(on().placeOf(x, y));
    };
    const up = (event) => {
      const done = drag;
      drag = null;
      if (!done) return;
      cancelAnimationFrame(due);
      const [from, to] = [on().placeOf(done.x, done.y), on().placeOf(...here(event))];
      if (Math.abs(done.toX - done.x) < 6 || Math.abs(done.toY - done.y) < 6) now.current.pointAt(to);
      else now.current.choose({ since: Math.min(from.time, to.time), until: Math.max(from.time, to.time), low: Math.min(from.key, to.key), high: Math.max(from.key, to.key) });
    };
    const wheel = (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      const factor = event.deltaY > 0 ? 1.25 : 0.8;
      now.current.choose(zoomed(now.current.part, { time: factor, keys: factor }, on().placeOf(...here(event)), { since: -Infinity, until: Infinity }));
    };
    const all = { pointermove: move, pointerdown: down, wheel };
    for (const [name, act] of Object.entries(all)) place.addEventListener(name, act, { passive: false });
    addEventListener("pointerup", up);
    return () => {
      for (const [name, act] of Object.entries(all)) place.removeEventListener(name, act);
      removeEventListener("pointerup", up);
      cancelAnimationFrame(due);
    };
  }, []);
}

/** The facts about a place: its segment, then and now. */
function Place({ at, box, data }) {
  const one = box && box.segment != null ? data.segments.get(box.segment) : data.segments.get(boxAt(data.lives, at)?.id);
  const took = box && box.rate !== undefined;
  const then = took ? `${rate(box.messages_per_s)} messages/s, ${size(box.bytes_per_s)}/s` : at.time < data.begin ? "not recorded" : one ? "no messages" : NONE;
  const hot = (took && box.hot_key) || one?.hot_key;
  return html`<${Figures} of=${[
    ["At", `${time(at.time)}, key hash ${count(at.key)} (${share(0, at.key)})`],
    ["Segment", one ? one.id : took ? "several segments, too small to show" : "unknown or removed"],
    [took && box.isNow ? "Now" : "Then", then],
    ...(took ? [["Range", `${share(0, box.low)} to ${share(0, box.high)}, for ${duration((box.until - box.since) / 1000)}`]] : []),
    ...(hot ? [["Hot key", `hash ${hot.hash}: ${Math.round(hot.share * 100)}%`]] : []),
    ...(one ? lifeOf(one) : []),
  ]} />`;
}

function lifeOf(one) {
  const from = one.predecessors.length ? ` of ${one.predecessors.join(", ")}` : "";
  const found = [["Lifetime", `since ${time(one.created_at)}${from}${one.sealed_at ? `, until ${time(one.sealed_at)}, then ${one.successors.join(", ")}` : `, ${age(one.created_at)}`}`]];
  if (one.state !== "open") return [...found, ["Messages", count(one.end_offset)]];
  return [...found, ["Owner", one.owner || "unassigned"], ["Messages", count(one.end_offset)],
    ["Messages/s over 10 s, 1 min and 10 min", one.rates ? one.rates.messages_per_s.slice(0, 3).map(rate).join(", ") : NONE]];
}

function Legend({ scale }) {
  const isDark = useDark();
  const steps = [0, 1, 2, 3, 4].map((n) => scale.low + ((scale.high - scale.low) * n) / 4);
  return html`<p class="legend"><span>Messages/s:</span>
    <span><svg viewBox="0 0 10 10" aria-hidden="true"><rect class="all" width="10" height="10" /></svg> none</span>
    ${steps.map((one) => html`<span><svg viewBox="0 0 10 10" aria-hidden="true"><rect fill=${colourOf(shadeOf(10 ** one, scale), isDark)} width="10" height="10" /></svg> ${rate(10 ** one)}</span>`)}
    <span><svg viewBox="0 0 10 10" aria-hidden="true"><path class="change" d="M5 0V10M3 5L8 2V8Z" /></svg> split, merge</span>
    <span><svg viewBox="0 0 10 10" aria-hidden="true"><path class="hot" d="M0 5H4M6 5H10" /></svg> hot key</span></p>`;
}

function useDark() {
  const [isDark, set] = useState(false);
  useEffect(() => {
    const look = () => set(coloursOf(document.body).isDark);
    look();
    return onTheme(look);
  }, []);
  return isDark;
}

function Tables({ data, part }) {
  const segments = useMemo(() => inWords(data, part), [data, part.since, part.until]);
  const changes = data.changes.filter((one) => one.time >= part.since && one.time < part.until).reverse();
  const [rows, buttons] = usePages(segments, 50);
  const [events, more] = usePages(changes, 50);
  const columns = [
    { title: "Segment", of: (one) => one.name },
    { title: "Keys", of: (one) => `${share(0, one.low)} to ${share(0, one.high)}` },
    { title: "From", of: (one) => time(one.since) },
    { title: "To", of: (one) => (one.isOpen ? "now" : time(one.until)) },
    { title: "Messages/s, mean", number: true, of: (one) => rate(one.mean) },
    { title: "Highest", number: true, of: (one) => rate(one.most) },
    { title: "Messages", number: true, of: (one) => count(Math.round(one.messages)) },
    { title: "Hot key", of: (one) => (one.hot ? `hash ${one.hot.hash}: ${Math.round(one.hot.share * 100)}%` : NONE) },
    { title: "Owner", of: (one) => html`<${Name} of=${one.owner} />` },
  ];
  const changed = [
    { title: "Time", of: (one) => time(one.time) },
    { title: "Change", of: (one) => one.kind },
    { title: "Segments", of: (one) => `${one.sealed.join(", ")} → ${one.successors.join(", ")}` },
    { title: "Keys", of: (one) => `${share(0, one.low)} to ${share(0, one.high)}` },
  ];
  return html`<${Fragment}>
    <h2>Messages received by each segment</h2>
    <${Table} label="Segments in this time" columns=${columns} rows=${rows} keyOf=${(one) => one.name} />${buttons}
    <h2>Splits, merges and rolls</h2>
    ${changes.length === 0 ? html`<p>No changes in this time.</p>` : html`<${Table} label="Changes in this time" columns=${changed} rows=${events} keyOf=${(one) => one.successors.join()} />${more}`}
  <//>`;
}

/** Returns a row for each segment that lived in the time: what its cells say together. */
function inWords(data, part) {
  const lives = livesOf([...data.segments.values()], part.since, part.until, data.now);
  const found = new Map(lives.map((one) => [one.id, rowOf(one.id, { ...data.segments.get(one.id), ...one })]));
  for (const one of data.boxes) {
    if (one.until <= part.since || one.since >= part.until) continue;
    const name = one.segment ?? `several, ${share(0, one.low)} to ${share(0, one.high)}`;
    if (!found.has(name)) found.set(name, rowOf(name, one));
    const row = found.get(name);
    const seconds = (one.until - one.since) / 1000;
    row.messages += one.rate * seconds;
    row.most = Math.max(row.most, one.rate);
    row.hot = one.hot_key || row.hot;
  }
  const rows = [...found.values()].map((one) => {
    const lived = (Math.min(one.until, part.until) - Math.max(one.since, part.since, data.begin)) / 1000;
    return { ...one, mean: lived > 0 ? one.messages / lived : null };
  });
  return rows.sort((a, b) => b.messages - a.messages || a.low - b.low);
}

function rowOf(name, { low, high, since, until, state, owner }) {
  return { name, low, high, since, until, owner, isOpen: state === "open", messages: 0, most: 0, hot: null };
}
