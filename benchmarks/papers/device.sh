#!/bin/bash
# Reproduce all papers within some seconds, and go on where an earlier call on the same machine stopped.
#
#   benchmarks/papers/device.sh SECONDS FOLDER [EARLIER]
#
# FOLDER/records/<id>/ gets the compact record for the document, FOLDER/state/<id>/ what a later call needs to go on;
# EARLIER is the FOLDER of such a call. Every setting is run once first, long trainings after that, repeats last.
# $PYTHON is the interpreter, python3 if it is not set.
set -u
seconds=$1 folder=$2 earlier=${3:-}
python=${PYTHON:-python3}
begun=$(date +%s)
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"
work=reproductions-device
mkdir -p "$work" "$folder/state"
[ -n "$earlier" ] && [ -d "$earlier/state" ] && cp -rn "$earlier/state/." "$work/" && chmod -R u+w "$work"

run() { # a run takes a while to end, and the records have to be written: 20 s are left for that
  local left=$((seconds - 20 - $(date +%s) + begun))
  timeout -s INT "$((left + 10))" "$python" -m manyhands reproduce all --budget "$left" --out "$work" "$@" \
    > "$folder/tables.txt" 2> "$folder/progress.txt"
}

run --resume
status=$?
if grep -qE 'no unfinished|cannot be mixed' "$folder/progress.txt"; then
  run
  status=$?
fi
for state in "$work"/*/; do
  id=$(basename "$state")
  mkdir -p "$folder/state/$id"
  cp -f "$state"/*.json "$state"/*.jsonl "$folder/state/$id/"
  rm -f "$folder/state/$id/owner.json"
done
"$python" benchmarks/papers/keep.py "$work" "$folder/records"
tail -n 4 "$folder/progress.txt"
exit $status
