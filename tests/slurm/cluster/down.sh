#!/usr/bin/env bash
# Stop what up.sh started, jobs first. The folder stays, so that logs can be read and the next start is quick.
set -euo pipefail
. "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/common.sh"

no_jobs() {
  [ -z "$(timeout 3 squeue -h -o %i || echo unknown)" ]
}

kill_leftovers() { # job steps, and processes that have left their job's tree
  local folder pid
  for folder in /proc/[0-9]*; do
    pid=${folder#/proc/}
    [ "$pid" != $$ ] || continue
    tr '\0' '\n' 2>/dev/null <"$folder/environ" | grep -qxF "SLURM_CONF=$SLURM_CONF" || continue
    if tr '\0' '\n' 2>/dev/null <"$folder/environ" | grep -q '^SLURM_JOB_ID=' ||
      [ "$(cat "$folder/comm" 2>/dev/null)" = slurmstepd ]; then
      kill -KILL "$pid" 2>/dev/null || true
    fi
  done
}

[ -d "$LAB/run" ] || exit 0
if pid_of slurmctld >/dev/null; then
  timeout 5 scancel --user="$(id -un)" 2>/dev/null || true
  wait_for 15 no_jobs || true
fi
daemons=(slurmctld)
for file in "$LAB"/run/slurmd.*.pid; do
  [ ! -e "$file" ] || daemons+=("$(basename "$file" .pid)")
done
stop TERM "${daemons[@]}"
kill_leftovers
stop TERM slurmdbd
stop TERM mariadbd munged
