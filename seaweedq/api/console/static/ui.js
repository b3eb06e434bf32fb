// The parts that all pages share: polling, states of loading, tables, dialogs.

import { createElement, Fragment } from "./vendor/preact.js";
import { useEffect, useId, useRef, useState } from "./vendor/hooks.js";
import htm from "./vendor/htm.js";
import { NONE } from "./format.js";

export { Fragment, useEffect, useId, useRef, useState };
export { useMemo } from "./vendor/hooks.js";
const REST = 19; // times as long as a load took, no other one begins
const LONGEST_MS = 30_000;
const LONG = 32; // characters of a name
export const html = htm.bind(createElement);

/**
 * Loads something now, and each `everyMs` (0: never) while the page is seen, or less often if that takes long: nineteen
 * parts of twenty of the time are left to the page and its broker. Returns the newest `data`, the `error` of
 * the last try, `at`, the time of the data, and `reload`. Whatever `deps` name anew begins anew.
 */
export function usePolled(load, everyMs, deps) {
  const [state, set] = useState({});
  const again = useRef(() => {});
  useEffect(() => {
    let timer = 0;
    let current = new AbortController();
    let isOver = false;
    const turn = async () => {
      clearTimeout(timer);
      current.abort();
      const mine = (current = new AbortController());
      const began = performance.now();
      if (!document.hidden) await once(load, mine.signal, set);
      const pause = Math.max(everyMs, REST * (performance.now() - began));
      if (!isOver && mine === current && everyMs) timer = setTimeout(turn, Math.min(pause, LONGEST_MS));
    };
    const seen = () => document.hidden || turn();
    again.current = turn;
    set({});
    turn();
    document.addEventListener("visibilitychange", seen);
    return () => {
      isOver = true;
      clearTimeout(timer);
      current.abort();
      document.removeEventListener("visibilitychange", seen);
    };
  }, deps);
  return { ...state, reload: () => again.current() };
}

async function once(load, signal, set) {
  try {
    const data = await load(signal);
    if (!signal.aborted) set({ data, at: new Date() });
  } catch (error) {
    if (!signal.aborted) set((before) => ({ ...before, error }));
  }
}

/** Calls `act` whenever the page's colours change; returns what ends that. */
export function onTheme(act) {
  const [chosen, system] = [new MutationObserver(act), matchMedia("(prefers-color-scheme: dark)")];
  chosen.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  system.addEventListener("change", act);
  return () => {
    chosen.disconnect();
    system.removeEventListener("change", act);
  };
}

/** Runs what a button asks for; returns [run, whether it runs, its error]. */
export function useAction(act) {
  const [state, set] = useState({ isRunning: false, error: null });
  const run = async (...given) => {
    set({ isRunning: true, error: null });
    try {
      await act(...given);
      set({ isRunning: false, error: null });
    } catch (error) {
      set({ isRunning: false, error });
    }
  };
  return [run, state.isRunning, state.error];
}

/** An error: what it says, and its hint. */
export function Failure({ error, title }) {
  if (!error) return null;
  return html`<div class="failure" role="alert">
    <strong>${title || (error.status === 0 ? "No answer" : "Request failed")}</strong>
    <p>${error.message}${error.hint && html`<br />${error.hint}`}</p>
    ${error.errors?.length > 0 && html`<ul>${error.errors.slice(0, 5).map((one) => html`<li>Message ${one.index}: ${one.reason}</li>`)}</ul>`}
  </div>`;
}

/** Shows the data of a poll by `children`, which takes them; beside them the error of the last try, or that it loads. */
export function Polled({ of, children }) {
  const { data, error, at, reload } = of;
  if (data === undefined && !error) return html`<p aria-busy="true">Loading</p>`;
  return html`<${Fragment}>
    ${error && html`<${Failure} error=${error} title=${data === undefined ? "" : `Not up to date: these figures are from ${at.toLocaleTimeString()}`} />
      <p><button type="button" class="outline" onClick=${reload}>Try again</button></p>`}
    ${data !== undefined && children(data)}
  <//>`;
}

/** A place for a table wider than the screen: it scrolls by itself, by keys too. */
export function Scroll({ label, children }) {
  return html`<div class="scroll" role="region" aria-label=${label} tabindex="0">${children}</div>`;
}

/** A table. A column has `title`, `of(row)`, and `number` if its cells are numbers. */
export function Table({ label, columns, rows, keyOf }) {
  return html`<${Scroll} label=${label}>
    <table>
      <thead><tr>${columns.map((one) => html`<th scope="col" class=${one.number ? "number" : ""}>${one.title}</th>`)}</tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${keyOf(row)}>${columns.map((one, i) => cell(one, row, i))}</tr>`)}</tbody>
    </table>
  <//>`;
}

function cell(column, row, i) {
  const kind = column.number ? "number" : "";
  return i ? html`<td class=${kind}>${column.of(row)}</td>` : html`<th scope="row" class=${kind}>${column.of(row)}</th>`;
}

/** A name, cut in the middle if it would push what is beside it out of sight. The whole one is told on pointing, and
 * read aloud. */
export function Name({ of: name }) {
  const letters = [...(name ?? NONE)];
  if (letters.length <= LONG) return letters.join("");
  return html`<span class="cut" title=${name}><span aria-hidden="true">${letters.slice(0, LONG - 12).join("")}…${letters.slice(-11).join("")}</span><span class="hidden">${name}</span></span>`;
}

/** What this broker cannot read, and so does not show. */
export function Unreadable({ of: names, thing }) {
  return names?.length > 0 && html`<p class="failure">A newer broker is needed to read these ${thing}, which are not shown: ${names.join(", ")}.</p>`;
}

/** Figures with their names. */
export function Figures({ of }) {
  return html`<dl class="figures">${of.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** Pages of a long list: returns [the rows of the page, the buttons]. */
export function usePages(rows, size) {
  const [page, go] = useState(0);
  const last = Math.max(0, Math.ceil(rows.length / size) - 1);
  const at = Math.min(page, last);
  const buttons = last > 0 && html`<nav class="pages" aria-label="Pages">
    <button type="button" class="outline" disabled=${at === 0} onClick=${() => go(at - 1)}>Previous</button>
    <span>${at * size + 1} to ${Math.min(rows.length, (at + 1) * size)} of ${rows.length}</span>
    <button type="button" class="outline" disabled=${at === last} onClick=${() => go(at + 1)}>Next</button>
  </nav>`;
  return [rows.slice(at * size, (at + 1) * size), buttons];
}

/** A labelled input, select or textarea: `children` gets its id, and that of its help if there is any. */
export function Field({ label, help, children }) {
  const id = useId();
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${children(id, help ? `${id}-help` : undefined)}
    ${help && html`<small id=${`${id}-help`}>${help}</small>`}
  </div>`;
}

/** An input whose value the caller holds. */
export function Input({ label, help, value, onValue, type = "text", ...more }) {
  return html`<${Field} label=${label} help=${help}>${(id, helpId) => html`<input id=${id} type=${type} value=${value}
    aria-describedby=${helpId} onInput=${(event) => onValue(event.target.value)} ...${more} />`}<//>`;
}

/** A choice of [value, text] pairs. */
export function Select({ label, help, value, onValue, options }) {
  return html`<${Field} label=${label} help=${help}>${(id, helpId) => html`<select id=${id} value=${value} aria-describedby=${helpId}
    onChange=${(event) => onValue(event.target.value)}>${options.map(([one, text]) => html`<option value=${one}>${text}</option>`)}</select>`}<//>`;
}

/** A modal dialog, open for as long as it is there; Escape closes it. */
export function Dialog({ title, onClose, children }) {
  const ref = useRef(null);
  const id = useId();
  useEffect(() => {
    const back = document.activeElement;
    ref.current.showModal();
    return () => back?.focus?.();
  }, []);
  return html`<dialog ref=${ref} aria-labelledby=${id} onClose=${onClose}>
    <article><header><h2 id=${id}>${title}</h2></header>${children}</article>
  </dialog>`;
}

/** Text to paste, with a button that copies it. */
export function Code({ text, label }) {
  const [told, tell] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      tell("Copied");
    } catch {
      tell("Select the text, and copy it");
    }
    setTimeout(() => tell(""), 2000);
  };
  return html`<div class="code">
    <pre tabindex="0" aria-label=${label}><code>${text}</code></pre>
    <button type="button" class="outline" onClick=${copy} aria-label=${`Copy: ${label}`}>${told || "Copy"}</button>
    <span role="status" class="hidden">${told}</span>
  </div>`;
}
