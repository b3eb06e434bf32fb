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

/** Returns what opens a topic's directory, by the reader's name. A renamed field is the first of its names that a row
 * has; SQL ignores case. */
export function lines(topic) {
  const place = topic.path.replace(/^file:\/\//, "").replace(/\/$/, "");
  const files = `${place}/**/*.parquet`;
  const versions = topic.schema_id !== null; // of a schema, so that files may have different columns
  const byName = versions ? ", union_by_name = true" : "";
  const renamed = versions ? topic.schema.fields.flatMap(({ name, aliases = [] }) => {
    const others = new Map(aliases.map((one) => [one.toLowerCase(), one]));
    others.delete(name.toLowerCase());
    return others.size ? [[name, [...others.values()]]] : [];
  }) : [];
  const gone = renamed.flatMap(([, others]) => others);
  const pairs = renamed.flatMap(([name, others]) => others.map((one) => [name, one]));
  const first = ([name, others]) => `coalesce(${[name, ...others].map(inSql).join(", ")}) AS ${inSql(name)}`;
  const shown = gone.length ? `* EXCLUDE (${gone.map(inSql).join(", ")}) REPLACE (${renamed.map(first).join(", ")})` : "*";
  const parquet = `read_parquet('${files.replaceAll("'", "''")}', hive_partitioning = true${byName})`;
  const nulls = gone.map((one) => `NULL AS ${inSql(one)}`).join(", "); // retention may delete all files with such a column
  const inDuckdb = `SELECT ${shown} FROM ${gone.length ? `(FROM ${parquet} UNION ALL BY NAME SELECT ${nulls} WHERE false)` : parquet};`;
  const cast = 'cast_options=pl.ScanCastOptions(integer_cast="upcast", float_cast="upcast")';
  const options = `hive_partitioning=True${versions ? `, missing_columns="insert", extra_columns="ignore", ${cast}` : ""}`;
  const polars = [`import polars as pl\n`, `rows = pl.scan_parquet(${quoted(files)}, ${options})`];
  const inSpark = quoted(place.replace(/^s3:/, "s3a:"));
  const spark = [`rows = spark.read.parquet(${inSpark})`];
  if (gone.length) {
    const kinds = pairs.map(([name, one]) => `${quoted(one)}: kinds[${quoted(name)}]`).join(", ");
    const firsts = renamed.map(([name, others]) => `pl.coalesce(${[name, ...others].map(quoted).join(", ")}).alias(${quoted(name)})`);
    polars.push("kinds = rows.collect_schema()", `both = pl.scan_parquet(${quoted(files)}, schema={**kinds, ${kinds}}, ${options})`);
    polars.push(`rows = both.with_columns(${firsts.join(", ")}).select(*kinds)`);
    const more = pairs.map(([name, one]) => `.add(${quoted(one)}, rows.schema[${quoted(name)}].dataType)`).join("");
    const columns = renamed.map(([name, others]) => `${quoted(name)}: coalesce(${[name, ...others].map(quoted).join(", ")})`);
    spark.unshift("from pyspark.sql.functions import coalesce\n");
    spark.push("names = rows.columns", `both = spark.read.schema(rows.schema${more}).parquet(${inSpark})`);
    spark.push(`rows = both.withColumns({${columns.join(", ")}}).select(names)`);
  }
  const pandas = gone.length ? [] : [["pandas", `import pandas as pd\n\nrows = pd.read_parquet(${quoted(place)})`]];
  return [["DuckDB", inDuckdb], ["Polars", polars.join("\n")], ...pandas, ["Spark", spark.join("\n")]];
}

function inSql(name) {
  return `"${name.replaceAll('"', '""')}"`;
}

function quoted(text) {
  return JSON.stringify(text); // which Python reads as it is
}
