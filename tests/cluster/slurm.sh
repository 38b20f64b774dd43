#!/usr/bin/env bash
# A real Slurm of one node on this machine, for trying the workflow: Debian's slurm-wlm and munge, as root.
#
#     apt-get install slurm-wlm munge
#     tests/cluster/slurm.sh start [folder]     then: sinfo, sbatch, ...
#     tests/cluster/slurm.sh stop [folder]
#
# It has no accounting database (so snakemake needs --slurm-status-command squeue) and no second node: that a job survives the loss of its node cannot be tried here.
set -euo pipefail
folder=${2:-${TMPDIR:-/tmp}/one-node-slurm}

start() {
    mkdir -p "$folder"/{state,spool,log} /run/munge
    chown munge: /run/munge
    cpus=$(nproc)
    memory=$(awk '/MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
    cat > "$folder/slurm.conf" <<CONF
ClusterName=one-node
SlurmctldHost=$(hostname)
SlurmUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/log/slurmctld
SlurmdLogFile=$folder/log/slurmd
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
AccountingStorageType=accounting_storage/none
MinJobAge=600
NodeName=$(hostname) CPUs=$cpus RealMemory=$memory State=UNKNOWN
PartitionName=local Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
    mkdir -p /etc/slurm
    ln -sf "$folder/slurm.conf" /etc/slurm/slurm.conf # where jobs look that Snakemake submits
    pgrep -x munged > /dev/null || runuser -u munge -- munged
    slurmctld
    slurmd
    for _ in $(seq 30); do
        sinfo --noheader --states=idle 2> /dev/null | grep -q . && break
        sleep 1
    done
    sinfo
}

stop() {
    for daemon in slurmd slurmctld; do
        [ -f "$folder/$daemon.pid" ] && kill "$(cat "$folder/$daemon.pid")"
    done
}

"${1:?start or stop}"
