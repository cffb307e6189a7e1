# Sourced by up.sh: writes the configuration files.
# shellcheck shell=bash

CPUS=16
GPUS=4

slurm_at_least() { # 23.11 -> is this Slurm that new?
  local have
  have=$(slurmctld -V | awk '{print $2}')
  [ "$(printf '%s\n' "$1" "$have" | sort -V | head -n 1)" = "$1" ]
}

write_slurm_conf() {
  local host address n=0 node
  host=$(hostname -s)
  # With the two No...InAddrAny below the daemons listen on what the host name means, mostly 127.0.0.1 or 127.0.1.1.
  address=$(getent ahostsv4 "$host" | awk 'NR == 1 {print $1}')
  [ -n "$address" ] || fail "the host name $host has no address: add '127.0.0.1 $host' to /etc/hosts"
  cat <<CONF
ClusterName=lab
SlurmctldHost=$host($address)
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmctldPort=$PORT
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# cred_expire is also how long a requeued job waits (default 120)
AuthInfo=socket=$LAB/run/munge.sock,cred_expire=5
SlurmctldPidFile=$LAB/run/slurmctld.pid
SlurmdPidFile=$LAB/run/slurmd.%n.pid
SlurmctldLogFile=$LAB/log/slurmctld.log
SlurmdLogFile=$LAB/log/slurmd.%n.log
StateSaveLocation=$LAB/state
SlurmdSpoolDir=$LAB/spool/%n
# No cgroups: memory limits are not enforced and a process that leaves the job's tree outlives it.
ProctrackType=proctrack/linuxproc
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
MpiDefault=none
MailProg=/bin/true
# More CPUs than the machine has
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=64
GresTypes=gpu
# Quick answers. A real cluster has KillWait=30, SlurmdTimeout=300.
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,sched_min_interval=10000,bf_interval=2,batch_sched_delay=0
KillWait=5
SlurmctldTimeout=30
SlurmdTimeout=20
MinJobAge=300
ReturnToService=2
MaxArraySize=1001
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# Without it a preempted job gets SIGTERM only, and never the signal that it asked for with --signal.
SlurmctldParameters=preempt_send_user_signal
CONF
  for node in "${NODES[@]}"; do
    n=$((n + 1))
    echo "NodeName=$node NodeHostname=$host NodeAddr=$address Port=$((PORT + 10 + n)) CPUs=$CPUS Boards=1" \
      "SocketsPerBoard=1 CoresPerSocket=$CPUS ThreadsPerCore=1 RealMemory=16000 Gres=gpu:fake:$GPUS State=UNKNOWN"
  done
  cat <<CONF
PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10 PriorityTier=10 PreemptMode=OFF
PartitionName=short Nodes=ALL MaxTime=2 DefaultTime=1 PriorityTier=10 PreemptMode=OFF
PartitionName=low Nodes=ALL MaxTime=INFINITE DefaultTime=10 PriorityTier=1 PreemptMode=REQUEUE GraceTime=15
PartitionName=high Nodes=ALL MaxTime=INFINITE DefaultTime=10 PriorityTier=100 PreemptMode=OFF
CONF
  [ "$DBD" = 1 ] || return 0
  # AccountingStoragePass is the munge socket here; without it slurmctld asks the default socket and dies.
  cat <<CONF
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=$address
AccountingStoragePort=$((PORT + 1))
AccountingStoragePass=$LAB/run/munge.sock
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
CONF
}

write_slurmdbd_conf() {
  local host
  host=$(hostname -s)
  cat <<CONF
AuthType=auth/munge
AuthInfo=socket=$LAB/run/munge.sock
DbdHost=$host
DbdAddr=$(getent ahostsv4 "$host" | awk 'NR == 1 {print $1}')
DbdPort=$((PORT + 1))
CommunicationParameters=NoInAddrAny
SlurmUser=root
PidFile=$LAB/run/slurmdbd.pid
LogFile=$LAB/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$((PORT + 2))
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
CONF
}

write_configuration() {
  write_slurm_conf >"$LAB/etc/slurm.conf"
  echo "Name=gpu Type=fake File=$LAB/dev/nvidia[0-$((GPUS - 1))]" >"$LAB/etc/gres.conf"
  # Debian 13 has 24.11, where cgroups can be switched off (since 23.11); Debian 12 has 22.05, where v1 is not looked at
  # as long as no plugin asks for cgroups. The 24.11 half is written from its manual and not yet tried.
  if slurm_at_least 23.11; then
    echo "CgroupPlugin=disabled" >"$LAB/etc/cgroup.conf"
  else
    echo "CgroupPlugin=cgroup/v1" >"$LAB/etc/cgroup.conf"
  fi
  (umask 077 && write_slurmdbd_conf >"$LAB/etc/slurmdbd.conf")
}
