#!/usr/bin/env bash
# Ships the lines of a log, each a JSON object, as messages, with curl alone.
#
#     examples/log_shipper.sh app.log             # what is there
#     examples/log_shipper.sh app.log --follow    # and what comes, over rotations
#
# No line is lost, and none comes twice: a line's number is its sequence, and a request that is repeated, because its
# answer was lost or this script was killed, changes nothing. A repeat must be the same request, so FILE.shipped has
# which log it is, its producer id, how many lines were taken, and how many the request has that was begun after them.
#
# A log that was renamed (FILE.1, FILE-20260131) is shipped to its end before the new one, which has an id of its own.
# One that is compressed, deleted or truncated (logrotate's copytruncate) before that takes its last lines with it.
set -euo pipefail

file=${1:?usage: log_shipper.sh FILE [--follow]}
follow=${2:-}
url=${SEAWEEDQ_URL:-http://127.0.0.1:8080}
topic=logs
[ -e "$file" ] || [ "$follow" = --follow ] || { echo "there is no file $file" >&2 && exit 1; }
batch=$(mktemp)
trap 'rm -f "$batch"' EXIT

# Shows the answer of a broker that refuses, which names the line, and ends.
call() {
  answer=$(curl --silent --show-error --fail-with-body --retry 8 --retry-connrefused "$@") ||
    { echo "$answer" >&2 && exit 1; }
}

# A file system gives the number of a deleted file to a new one, so the first line belongs to the identity.
identity() {
  echo "$(stat -c %i "$1").$(head -n 1 "$1" | cksum | cut -d' ' -f1)"
}

# Prints the path that the log has now; nothing if it is gone.
place() {
  for one in "$file" "$file".* "$file"-*; do
    if [ -f "$one" ] && [ "$(identity "$one")" = "$log" ]; then echo "$one" && break; fi
  done
}

note() {
  echo "$log $producer $1 $2" > "$file.shipped.new"
  mv "$file.shipped.new" "$file.shipped"
}

# With "ndjson": "bare" each line is itself the value of a message.
call -X PUT "$url/v1/topics/$topic" -H 'content-type: application/json' -d '{"ndjson": "bare"}'

log='' producer='' shipped=0 begun=0
[ ! -e "$file.shipped" ] || read -r log producer shipped begun < "$file.shipped"
while :; do
  path=$(place)
  if [ -z "$path" ] && [ -f "$file" ] && [ "$(wc -l < "$file")" -gt 0 ]; then
    path=$file log=$(identity "$file") producer=shipper-$(cat /proc/sys/kernel/random/uuid) shipped=0 begun=0
  fi
  : > "$batch"
  [ -z "$path" ] || tail -n "+$((shipped + 1))" "$path" | head -n "$((begun ? begun : 1000))" > "$batch" || true
  # A last line without its newline is still being written.
  if [ -s "$batch" ] && [ -n "$(tail -c 1 "$batch")" ]; then
    sed -i '$d' "$batch"
  fi
  lines=$(wc -l < "$batch")
  if [ "$lines" -gt 0 ]; then
    note "$shipped" "$lines"
    call "$url/v1/topics/$topic/messages" -H 'content-type: application/x-ndjson' \
      -H "Producer-Id: $producer" -H "Producer-Sequence: $shipped" --data-binary "@$batch"
    shipped=$((shipped + lines)) begun=0
    note "$shipped" 0
  elif [ -n "$path" ] && [ "$path" != "$file" ] && [ -s "$file" ]; then
    log='' # the rotated one is at its end
  elif [ "$follow" = --follow ]; then
    sleep 1
  else
    break
  fi
done
echo "$shipped lines of $file are in the topic $topic"
