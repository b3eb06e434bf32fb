// The versions of a typed topic's schema: the fields and the warnings of each, and a form that makes the next one.

import { call, path } from "./api.js";
import { NONE } from "./format.js";
import { whyInvalid } from "./json.js";
import { submits } from "./topic_forms.js";
import { Failure, Field, html, Polled, Select, Table, useAction, usePolled, useState } from "./ui.js";

export function Schema({ topic, onChanged }) {
  const url = path`v1/topics/${topic.name}/schemas`;
  const [chosen, choose] = useState(undefined);
  const versions = usePolled((signal) => call(url, { signal }), 0, [topic.name, topic.schema_id]);
  const number = chosen ?? topic.schema_id;
  const version = usePolled((signal) => call(`${url}/${number}`, { signal }), 0, [topic.name, number]);
  return html`
    <${Polled} of=${versions}>${({ schema_ids: ids }) => html`<${Select} label="Version" value=${String(number)}
      onValue=${(value) => choose(Number(value))} options=${ids.toReversed().map((one) => [String(one), one === topic.schema_id ? `${one} (newest)` : String(one)])} />`}<//>
    <${Polled} of=${version}>${(found) => html`<${Fields} of=${found.schema.fields} /><${Warnings} of=${found.warnings} />`}<//>
    <h2>Next version</h2>
    <${NextVersion} key=${topic.schema_id} topic=${topic} onChanged=${() => { choose(undefined); onChanged(); }} />`;
}

function Fields({ of: fields }) {
  const columns = [
    { title: "ID", number: true, of: (one) => one.id },
    { title: "Field", of: (one) => html`<code>${one.name}</code>` },
    { title: "Type", of: (one) => one.type },
    { title: "Required", of: (one) => (one.required ? "yes" : "no") },
    { title: "Earlier names", of: (one) => (one.aliases ? one.aliases.join(", ") : NONE) },
    { title: "Description", of: (one) => one.doc || NONE },
  ];
  return html`<${Table} label="Fields" columns=${columns} rows=${fields} keyOf=${(one) => one.id} />`;
}

function Warnings({ of: warnings }) {
  return warnings.length > 0 && html`<ul aria-label="Warnings">${warnings.map((one) => html`<li>${one}</li>`)}</ul>`;
}

/** A form that checks or makes the next version. It states the version that it shows, so that fields can go. */
function NextVersion({ topic, onChanged }) {
  const [text, edit] = useState(JSON.stringify(topic.schema, null, 2));
  const [checked, tell] = useState(null);
  const why = whyInvalid(text);
  const send = (query) => call(path`v1/topics/${topic.name}` + query, {
    method: "PATCH",
    body: JSON.stringify({ schema: JSON.parse(text), if_schema_id: topic.schema_id }),
  });
  const [check, isChecking, checkError] = useAction(async () => {
    tell(null);
    tell(await send("?dry_run=true"));
  });
  const [change, isRunning, error] = useAction(async () => {
    tell(null);
    await send("");
    onChanged();
  });
  return html`<form onSubmit=${submits(change)}>
    <${Field} label="Iceberg schema, as JSON" help=${why ? `Not JSON: ${why}` : "A field keeps its id when you rename it. A field that you leave out is dropped."}>${(id, helpId) => html`<textarea id=${id}
      rows="12" required spellcheck="false" class="mono" value=${text} aria-invalid=${why ? "true" : undefined} aria-describedby=${helpId}
      onInput=${(event) => { edit(event.target.value); tell(null); }} />`}<//>
    <${Failure} error=${error || checkError} />
    <div role="status">${checked && html`<p>${checked.schema_id === topic.schema_id ? "This is the newest version." : `This would become version ${checked.schema_id}.`}</p>
      <${Warnings} of=${checked.warnings} />`}</div>
    <div class="buttons">
      <button type="button" class="outline" disabled=${!!why || isChecking} aria-busy=${isChecking} onClick=${check}>Check</button>
      <button type="submit" disabled=${!!why || isRunning} aria-busy=${isRunning}>Change</button>
    </div>
  </form>`;
}
