#!/usr/bin/env bash
# Start a real Slurm of one machine: two nodes n1 and n2 with 16 pretended CPUs and 4 pretended GPUs each.
# All it writes stands under $SLURM_LAB. Starts only what does not run yet, so a second call changes nothing.
set -euo pipefail
HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
. "$HERE/common.sh"
. "$HERE/config.sh"

start_munged() {
  [ -s "$LAB/etc/munge.key" ] || (umask 077 && head -c 1024 /dev/urandom >"$LAB/etc/munge.key")
  munged --force --key-file="$LAB/etc/munge.key" --socket="$LAB/run/munge.sock" --pid-file="$(pid_file munged)" \
    --log-file="$LAB/log/munged.log" --seed-file="$LAB/run/munge.seed"
}

start_mariadbd() {
  if [ ! -d "$LAB/mysql/mysql" ]; then
    mariadb-install-db --no-defaults --user=root --datadir="$LAB/mysql" --auth-root-authentication-method=normal \
      --skip-test-db --skip-name-resolve >"$LAB/log/mariadb-install.log" 2>&1
  fi
  cat >"$LAB/run/init.sql" <<'SQL'
CREATE DATABASE IF NOT EXISTS slurm_acct_db;
CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'slurm';
GRANT ALL ON slurm_acct_db.* TO 'slurm'@'127.0.0.1';
SQL
  setsid mariadbd --no-defaults --user=root --datadir="$LAB/mysql" --socket="$LAB/run/mariadb.sock" --port=$((PORT + 2)) \
    --bind-address=127.0.0.1 --pid-file="$(pid_file mariadbd)" --log-error="$LAB/log/mariadbd.log" \
    --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 --innodb-flush-log-at-trx-commit=0 \
    --skip-name-resolve --init-file="$LAB/run/init.sql" </dev/null >/dev/null 2>&1 &
  wait_for 30 mariadb --no-defaults -h127.0.0.1 "-P$((PORT + 2))" -uslurm -pslurm slurm_acct_db -e 'SELECT 1'
}

start_slurmdbd() {
  slurmdbd
  wait_for 20 pid_of slurmdbd && wait_for 20 sacctmgr -n show cluster
}

nodes_idle() {
  [ "$(timeout 3 sinfo -h -N -p cpu -t idle,mixed,allocated -o %N | sort -u | wc -l)" = "${#NODES[@]}" ]
}

make_folders() {
  local gpu
  mkdir -p "$LAB"/{etc,run,log,state,spool,dev,mysql}
  chmod 755 "$LAB" "$LAB/run" "$LAB/etc"
  for ((gpu = 0; gpu < GPUS; gpu++)); do
    # Slurm takes device files only; these are copies of /dev/null.
    [ -e "$LAB/dev/nvidia$gpu" ] || mknod "$LAB/dev/nvidia$gpu" c 1 3
  done
}

ensure() { # name command...: run the command unless the daemon lives
  local name=$1
  shift
  pid_of "$name" >/dev/null || "$@" || fail "$name did not start; see $LAB/log"
}

check_ports() { # another lab's database would answer, too
  local port
  for port in "$PORT" $((PORT + 1)) $((PORT + 2)); do
    ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || fail "port $port is in use: set SLURM_LAB_PORT to another first port"
  done
}

none_lives() {
  local name
  for name in munged mariadbd slurmdbd slurmctld; do
    ! pid_of "$name" >/dev/null || return 1
  done
}

main() {
  local node
  [ "$(id -u)" = 0 ] || fail "starting it needs root"
  command -v slurmctld >/dev/null || fail "slurmctld not found: run $HERE/install.sh"
  make_folders
  ! none_lives || check_ports
  pid_of slurmctld >/dev/null || write_configuration
  ensure munged start_munged
  if [ "$DBD" = 1 ]; then
    ensure mariadbd start_mariadbd
    ensure slurmdbd start_slurmdbd
  fi
  ensure slurmctld slurmctld
  for node in "${NODES[@]}"; do
    ensure "slurmd.$node" slurmd -N "$node"
  done
  wait_for 40 nodes_idle || fail "the nodes did not come up: $(tail -qn 1 "$LAB"/log/slurm*.log | tr '\n' ' ')"
  echo "Slurm is up: export SLURM_CONF=$SLURM_CONF"
}

# One starter at a time; -o keeps the daemons from inheriting the lock.
if [ "${1:-}" != --locked ]; then
  mkdir -p "$LAB"
  exec flock -o "$LAB/up.lock" "${BASH_SOURCE[0]}" --locked
fi
main
