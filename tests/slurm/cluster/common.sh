# Sourced by the other scripts: where things are, and how a daemon is found alive and stopped (by pid file).
# shellcheck shell=bash
# Knobs: SLURM_LAB (the folder), SLURM_LAB_PORT (first port), SLURM_LAB_DBD=0 (no database: sacct is then off).

LAB="${SLURM_LAB:-${TMPDIR:-/tmp}/slurm-lab}"
PORT="${SLURM_LAB_PORT:-36817}"
DBD="${SLURM_LAB_DBD:-1}"
NODES=(n1 n2)
export SLURM_CONF="$LAB/etc/slurm.conf"
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

fail() {
  echo "slurm lab: $1" >&2
  exit 1
}

pid_file() { # name of a daemon -> its pid file
  echo "$LAB/run/$1.pid"
}

pid_of() { # name of a daemon -> its pid if it lives. A pid that another program has got since does not count.
  local pid
  [ -s "$(pid_file "$1")" ] || return 1
  pid=$(<"$(pid_file "$1")")
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "${1%%.*}" ] || return 1
  echo "$pid"
}

wait_for() { # seconds command...: true as soon as the command succeeds
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.1
  done
}

gone() { # name pid
  [ "$(cat "/proc/$2/comm" 2>/dev/null)" != "${1%%.*}" ]
}

stop() { # signal names...: signal all of them, then wait for each
  local signal=$1 name pid
  local -A pids=()
  shift
  for name in "$@"; do
    pid=$(pid_of "$name") || continue
    pids[$name]=$pid
    kill "-$signal" "$pid" 2>/dev/null || true
  done
  for name in "${!pids[@]}"; do
    wait_for 20 gone "$name" "${pids[$name]}" || kill -KILL "${pids[$name]}" 2>/dev/null || true
    rm -f "$(pid_file "$name")"
  done
}
