#!/usr/bin/env bash
# Ships the lines of a log, each a JSON object, as messages, with curl alone.
#
#     examples/log_shipper.sh app.log             # what is there
#     examples/log_shipper.sh app.log --follow    # and what comes
#
# No line is lost, and none comes twice: a line's number is its sequence, and a request that is repeated, because its
# answer was lost or this script was killed, changes nothing. A repeat must be the same request, so FILE.shipped has two
# numbers: how many lines were taken, and how many the request has that was begun after them.
set -euo pipefail

file=${1:?usage: log_shipper.sh FILE [--follow]}
follow=${2:-}
url=${SEAWEEDQ_URL:-http://127.0.0.1:8080}
topic=logs
producer=shipper-$(realpath "$file" | cksum | cut -d' ' -f1)
batch=$(mktemp)
trap 'rm -f "$batch"' EXIT

call() {
  curl --silent --show-error --fail-with-body --retry 8 --retry-connrefused "$@"
}

# With "ndjson": "bare" each line is itself the value of a message.
call -X PUT "$url/v1/topics/$topic" -H 'content-type: application/json' -d '{"ndjson": "bare"}' > /dev/null

note() {
  echo "$1 $2" > "$file.shipped.new"
  mv "$file.shipped.new" "$file.shipped"
}

shipped=0 begun=0
[ ! -e "$file.shipped" ] || read -r shipped begun < "$file.shipped"
while :; do
  tail -n "+$((shipped + 1))" "$file" | head -n "$((begun ? begun : 1000))" > "$batch" || true
  # A last line without its newline is still being written.
  if [ -s "$batch" ] && [ -n "$(tail -c 1 "$batch")" ]; then
    sed -i '$d' "$batch"
  fi
  lines=$(wc -l < "$batch")
  if [ "$lines" -gt 0 ]; then
    note "$shipped" "$lines"
    call "$url/v1/topics/$topic/messages" -H 'content-type: application/x-ndjson' \
      -H "Producer-Id: $producer" -H "Producer-Sequence: $shipped" --data-binary "@$batch" > /dev/null
    shipped=$((shipped + lines)) begun=0
    note "$shipped" 0
  elif [ "$follow" = --follow ]; then
    sleep 1
  else
    break
  fi
done
echo "$shipped lines of $file are in the topic $topic"
