# Files, topics and a dead letter for test_command_examples.py.
printf '%s\n' 'carrier,delay' 'UA,12' 'DL,-3' > flights.csv
printf '%s\n' '{"key": "a", "value": {"n": 1}}' > events.ndjson
printf '%s\n' '{"n": 1}' 'no JSON' > app.ndjson
echo film | tee one.mp4 > two.mp4
echo 'port = 8080' | tee broker.log > broker.toml
cat > rides.json <<'SCHEMA'
{"type": "struct", "schema-id": 0, "fields": [{"id": 1, "name": "city", "type": "string", "required": true}]}
SCHEMA
cat > wider.json <<'SCHEMA'
{"fields": [{"name": "city", "type": "string"}, {"name": "fare", "type": "double"}]}
SCHEMA
python <<'PARQUET'
import pyarrow
import pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.table({"value": ['{"carrier": "B6"}']}), "flights.parquet")
PARQUET

seaweedq topic create flights --key-field carrier --max-segments 64
seq -f '{"carrier": "UA", "delay": %g}' 100 | seaweedq publish flights
echo '{"n": 1}' | seaweedq publish app.logs

printf '%s\n' '{"to": "nobody"}' '{"to": "somebody"}' | seaweedq publish mails
seaweedq subscription create mails sender --start earliest --dead-letter-topic lost
sender=$SEAWEEDQ_URL/v1/topics/mails/subscriptions/sender
curl $sender/pull -H 'content-type: application/json' -d '{"lease": "first"}'
curl $sender/nack -H 'content-type: application/json' -d '{"lease": "first", "reject": true}'
