#!/usr/bin/env bash
# Install what up.sh starts, from the distribution's packages. Does nothing when all of it is there.
set -euo pipefail

# The *-core packages are MariaDB without the service set-up of mariadb-server, which takes half a minute.
PACKAGES=(munge slurmctld slurmd slurm-client slurmdbd mariadb-server-core mariadb-client-core)
COMMANDS=(munged slurmctld slurmd sbatch slurmdbd mariadbd mariadb-install-db)
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"
LOG="${TMPDIR:-/tmp}/slurm-install.$(id -u).log"

fail() {
  echo "slurm install: $1" >&2
  exit 1
}

missing=()
for command in "${COMMANDS[@]}"; do
  command -v "$command" >/dev/null || missing+=("$command")
done
[ "${#missing[@]}" -gt 0 ] || exit 0

command -v apt-get >/dev/null || fail "${missing[*]} not found and there is no apt-get here (Debian or Ubuntu is needed)"
[ "$(id -u)" = 0 ] || fail "${missing[*]} not found and installing needs root: run this script once as root"

# Keep the packages from starting services of their own, without leaving a trace of it.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
  trap 'rm -f "$policy"' EXIT
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq >"$LOG" 2>&1 || fail "apt-get update failed: $(tail -n 1 "$LOG") (all of it: $LOG)"
apt-get install -y -qq --no-install-recommends -o DPkg::Lock::Timeout=120 "${PACKAGES[@]}" >>"$LOG" 2>&1 ||
  fail "apt-get install failed: $(tail -n 1 "$LOG") (all of it: $LOG)"
