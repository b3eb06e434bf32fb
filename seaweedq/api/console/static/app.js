// The frame of all pages: navigation, and which page a place is. Places are behind #, as in `#/topics/orders/files`.

import { render } from "./vendor/preact.js";
import { Download, ForgetToken, TokenForm } from "./access.js";
import { hasToken, onRefused } from "./api.js";
import { Brokers } from "./brokers.js";
import { Subscriptions } from "./subscriptions.js";
import { Topic } from "./topic.js";
import { Topics } from "./topics.js";
import { html, useEffect, useRef, useState } from "./ui.js";

const PAGES = [["topics", "Topics"], ["subscriptions", "Subscriptions"], ["brokers", "Brokers"]];
const THEMES = [["", "System"], ["light", "Light"], ["dark", "Dark"]];

function here() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  try {
    return parts.map(decodeURIComponent);
  } catch {
    return parts;
  }
}

function titleOf([page, name]) {
  return [name, (PAGES.find(([one]) => one === (page || "topics")) || [])[1], "seaweedq"].filter(Boolean).join(" · ");
}

function App() {
  const [place, go] = useState(here());
  const [access, know] = useState({ isRefused: false, tokens: 0 });
  const main = useRef(null);
  const seen = useRef(null);
  useEffect(() => {
    const moved = () => go(here());
    addEventListener("hashchange", moved);
    return () => removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => onRefused(() => know((before) => ({ ...before, isRefused: true }))), []);
  const begin = () => { // what was loaded by other rights goes, and the page loads anew
    know((before) => ({ isRefused: false, tokens: before.tokens + 1 }));
    main.current.focus();
  };
  const subject = place.slice(0, 2).join("/");
  useEffect(() => {
    document.title = titleOf(place);
    if (seen.current !== null && seen.current !== subject) {
      scrollTo(0, 0);
      main.current.focus(); // so that a screen reader begins at the new page
    }
    seen.current = subject;
  }, [subject]);
  return html`<div>
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to content</a>
    <header class="container top">
      <a href="#/topics" class="brand"><img src="console/icon.svg" alt="" width="24" height="24" /> seaweedq</a>
      <nav aria-label="Pages of the console"><ul>${PAGES.map(([page, title]) => html`<li>
        <a href=${`#/${page}`} aria-current=${(place[0] || "topics") === page ? "page" : undefined}>${title}</a>
      </li>`)}</ul></nav>
      <${ForgetToken} onForgotten=${begin} />
      <${Theme} />
    </header>
    <main id="main" ref=${main} class="container" tabindex="-1">
      ${access.isRefused ? html`<${TokenForm} onGiven=${begin} />` : html`<${Page} key=${access.tokens} place=${place} />`}
    </main>
    <footer class="container"><small><a href="docs">API</a> · <a href="openapi.json">OpenAPI</a> · ${hasToken()
      ? html`<${Download} url="metrics" name="metrics.txt">Metrics<//>` : html`<a href="metrics">Metrics</a>`}</small></footer>
  </div>`;
}

function Page({ place: [page, name, tab, ...more] }) {
  if (!page || (page === "topics" && !name)) return html`<${Topics} />`;
  if (page === "topics") return html`<${Topic} key=${name} name=${name} tab=${tab} place=${more} />`;
  if (page === "subscriptions") return html`<${Subscriptions} key=${name} topic=${name} />`;
  if (page === "brokers") return html`<${Brokers} />`;
  return html`<h1>Page not found</h1><p>The console has no such page. <a href="#/topics">Topics</a></p>`;
}

function Theme() {
  const [theme, set] = useState(kept());
  useEffect(() => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    keep(theme);
  }, [theme]);
  return html`<label class="theme"><span class="hidden">Colours</span>
    <select value=${theme} onChange=${(event) => set(event.target.value)}>${THEMES.map(([one, text]) => html`<option value=${one}>${text}</option>`)}</select>
  </label>`;
}

function kept() {
  try {
    return localStorage.getItem("seaweedq.theme") || "";
  } catch {
    return ""; // a browser may refuse
  }
}

function keep(theme) {
  try {
    localStorage.setItem("seaweedq.theme", theme);
  } catch {
    // then it is as the system says, the next time
  }
}

render(html`<${App} />`, document.body);
