// The Parquet files of a topic, and lines to paste that open its directory.

import { call, path } from "./api.js";
import { age, count, counted, NONE, size } from "./format.js";
import { Code, Failure, html, Polled, Table, useAction, usePages, usePolled, useState } from "./ui.js";

const PAGE = 50;

export function Files({ topic }) {
  const [more, add] = useState({ files: [], next: undefined });
  const url = path`v1/topics/${topic.name}/files`;
  const first = usePolled((signal) => call(url, { signal }), 0, [topic.name]);
  const next = more.next === undefined ? first.data?.next : more.next;
  const [load, isRunning, error] = useAction(async () => {
    const page = await call(`${url}?after=${encodeURIComponent(next)}`);
    add({ files: [...more.files, ...page.files], next: page.next || "" });
  });
  return html`
    <p>For each segment, these files contain all rows below <em>In files up to offset</em>. Directory: <code class="break">${topic.path}</code></p>
    ${lines(topic).map(([title, text]) => html`<h3>${title}</h3><${Code} text=${text} label=${`${topic.name} in ${title}`} />`)}
    <h2>Files</h2>
    <${Polled} of=${first}>${(data) => html`<${List} files=${[...data.files, ...more.files]} isAll=${!next} />
      <${Failure} error=${error} />
      ${next && html`<button type="button" class="outline" onClick=${load} disabled=${isRunning} aria-busy=${isRunning}>List more files</button>`}`}<//>`;
}

function List({ files, isAll }) {
  const [rows, buttons] = usePages(files, PAGE);
  if (files.length === 0 && isAll) return html`<p>No files yet: messages stay in memory and in the journal until the broker writes a file.</p>`;
  const columns = [
    { title: "Segment", of: (one) => one.segment },
    { title: "File", of: (one) => html`<code>segment=${one.segment}/${one.name}</code>` },
    { title: "Offsets", number: true, of: (one) => `${count(one.first_offset)} to ${count(one.next_offset - 1)}` },
    { title: "Size", number: true, of: (one) => size(one.bytes) },
    { title: "Newest message", number: true, of: (one) => (one.max_timestamp ? `${age(one.max_timestamp)} ago` : NONE) },
  ];
  return html`<p>${isAll ? "" : "The first "}${counted(files.length, "file")}, ${size(files.reduce((sum, one) => sum + one.bytes, 0))}${isAll ? "" : "; more files follow"}</p>
    <${Table} label="Files" columns=${columns} rows=${rows} keyOf=${(one) => `${one.segment}/${one.name}`} />${buttons}`;
}

/** Returns what opens a topic's directory, by the reader's name. */
export function lines(topic) {
  const place = topic.path.replace(/^file:\/\//, "").replace(/\/$/, "");
  const files = `${place}/**/*.parquet`;
  const versions = topic.schema_id !== null; // of a schema, so that files may have different columns
  const byName = versions ? ", union_by_name = true" : "";
  const inDuckdb = `FROM read_parquet('${files.replaceAll("'", "''")}', hive_partitioning = true${byName})`;
  const cast = 'cast_options=pl.ScanCastOptions(integer_cast="upcast", float_cast="upcast")';
  const inPolars = `${quoted(files)}, hive_partitioning=True${versions ? `, missing_columns="insert", ${cast}` : ""}`;
  return [
    ["DuckDB", `SELECT segment, count(*) ${inDuckdb} GROUP BY segment;`],
    ["Polars", `import polars as pl\n\nrows = pl.scan_parquet(${inPolars}).collect()`],
    ["pandas", `import pandas as pd\n\nrows = pd.read_parquet(${quoted(place)})`],
    ["Spark", `rows = spark.read.parquet(${quoted(place.replace(/^s3:/, "s3a:"))})`],
  ];
}

function quoted(text) {
  return JSON.stringify(text); // which Python reads as it is
}
