#!/usr/bin/env bash
# Stop slurmctld and start it again. --kill: SIGKILL in place of SIGTERM. --down N: leave it down for N seconds.
set -euo pipefail
. "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/common.sh"

signal=TERM
seconds=0
while [ $# -gt 0 ]; do
  case "$1" in
    --kill) signal=KILL ;;
    --down)
      seconds=${2:?"--down needs seconds"}
      shift
      ;;
    *) fail "unknown option $1 (known: --kill, --down N)" ;;
  esac
  shift
done

nodes_known() {
  [ -z "$(timeout 3 sinfo -h -t unknown -o %N || echo no answer)" ]
}

[ -s "$SLURM_CONF" ] || fail "no lab in $LAB: run up.sh first"
stop "$signal" slurmctld
sleep "$seconds"
slurmctld
wait_for 30 nodes_known || fail "slurmctld did not come back; see $LAB/log/slurmctld.log"
