"""Functions of Slurm's batch scripts, for bash. They share a folder, `$FOLDER`, whose file `ended` ends the run.

`ended` has the exit status and the name of the process with which the run ended; it is empty at the usual end.
"""

from __future__ import annotations

KEEP = """
keep() { # starts a process again when it fails, but not after status 2, which only a person can cure
  local failures=0 begun status child
  ending=
  trap 'ending=yes; kill -TERM $child 2> /dev/null' TERM # Slurm ends this job: the process gives back what it holds
  until [ -n "$ending" ] || [ -e "$FOLDER/ended" ]; do
    begun=$SECONDS
    "$@" &
    child=$!
    wait $child
    status=$?
    while [ -n "$ending" ] && kill -0 $child 2> /dev/null; do
      wait $child
      status=$?
    done
    if [ -n "$ending" ] || [ $status = 0 ] || [ $status = 2 ]; then return $status; fi
    if [ $((SECONDS - begun)) -gt 60 ]; then failures=0; fi
    failures=$((failures + 1))
    if [ $failures -ge 10 ]; then return $status; fi
    echo "$1 ended with status $status: starting it again in $((failures * 3)) s" >&2
    sleep $((failures * 3)) &
    wait $!
  done
}
""".splitlines()

WATCH = """
watch() { # ends this job $2 seconds after the run ended: with $1 -s by a process of it, with -e in any way
  until [ $1 "$FOLDER/ended" ]; do
    sleep 2 &
    wait $!
  done
  sleep $2 &
  wait $!
  kill -TERM $$
}
""".strip().splitlines()

WORK = """
work() { # keeps a worker, named $2; the run ends when $3 of its role have ended with status 2
  rm -f "$FOLDER/failed/$2"
  watch -s 0 &
  local watchers=$! status
  # A worker that started when the broker had just left would wait for it. The trainer may save for a long time.
  if [ $1 != trainer ]; then watch -e 30 & watchers="$watchers $!"; fi
  keep $1
  status=$?
  kill $watchers 2> /dev/null
  if [ $status = 2 ] && [ -z "$ending" ]; then
    mkdir -p "$FOLDER/failed" && touch "$FOLDER/failed/$2"
    local failed=$(ls "$FOLDER/failed" | grep -c "^$1-")
    if [ $failed -ge $3 ] && [ ! -e "$FOLDER/ended" ]; then echo "2 $2" > "$FOLDER/ended"; fi
  fi
  return $status
}
""".strip().splitlines()

BESIDE = """
beside() { # keeps a process, with which the run ends when it cannot be kept
  keep $1
  local status=$?
  if [ -n "$ending" ] || [ $status = 0 ]; then return 0; fi
  if [ $status != 2 ] && [ $1 = uploader ]; then return 0; fi # the run continues without a copy
  echo "$status $1" > "$FOLDER/ended"
}
""".strip().splitlines()
