// The token that requests show: a form to give it, a button to forget it, and downloads, whose links could not show it.

import { bytesOf, forgetToken, giveToken, hasToken } from "./api.js";
import { submits } from "./topic_forms.js";
import { Failure, Fragment, html, Input, useAction, useState } from "./ui.js";

const HELP = "The first token is in the file admin-token in the broker's data folder (with embedded coordination), or in the file that "
  + "admin_token_file names. To issue more tokens, run seaweedq token create. This page keeps the token only in memory: a reload forgets it.";

/** Asks for a token; `onGiven` is called once the broker has taken it. */
export function TokenForm({ onGiven }) {
  const [text, type] = useState("");
  const [give, isRunning, error] = useAction(async () => {
    await giveToken(text.trim());
    onGiven();
  });
  return html`<h1>This broker requires a token</h1>
    <form onSubmit=${submits(give)} class="narrow">
      <${Input} label="Token" type="password" help=${HELP} value=${text} onValue=${type} required autofocus autocomplete="off" spellcheck="false" />
      ${!isSecureContext && html`<p>This page was loaded without TLS: anyone who can read the network traffic can read the token.</p>`}
      <${Failure} error=${error} />
      <button type="submit" disabled=${isRunning} aria-busy=${isRunning}>Use token</button>
    </form>`;
}

/** A button that forgets the token, if there is one. */
export function ForgetToken({ onForgotten }) {
  const forget = () => {
    forgetToken();
    onForgotten();
  };
  return hasToken() && html`<button type="button" class="outline small" onClick=${forget}>Forget the token</button>`;
}

/** A link that saves what is at `url` under `name`. With a token the browser fetches all of it first, then saves it. */
export function Download({ url, name, children }) {
  const [save, isRunning, error] = useAction(async () => {
    const found = URL.createObjectURL(await bytesOf(url));
    Object.assign(document.createElement("a"), { href: found, download: name }).click();
    setTimeout(() => URL.revokeObjectURL(found), 60_000); // by then the browser has begun to save it
  });
  if (!hasToken()) return html`<a href=${url} download=${name}>${children}</a>`;
  return html`<${Fragment}>
    <button type="button" class="link" disabled=${isRunning} aria-busy=${isRunning} onClick=${save}>${children}</button>
    <${Failure} error=${error} />
  <//>`;
}
