#!/bin/sh
# A SLURM cluster on this machine, for tests: munge, slurmctld and slurmd, without cgroups or accounting.
#
#   tests/services/slurm.sh start DIR    starts it; afterwards: export SLURM_CONF=DIR/slurm.conf
#   tests/services/slurm.sh stop DIR     ends it
#
# SLURM_NODES=2 makes it one of two nodes, each a slurmd that says it has all cores of this machine.
# Needs Debian's slurm-wlm and munge, and the right to start them: root.
set -eu

usage() {
    sed -n '2,9p' "$0" | cut -c3-
    exit 2
}

[ $# -eq 2 ] || usage
mkdir -p "$2"
dir=$(cd "$2" && pwd)
ports=$(dirname "$0")/../ports.py
nodes=$(seq -f node%g "${SLURM_NODES:-1}")

configure() {
    mkdir -p "$dir/state" "$dir/spool" "$dir/munge"
    chmod 755 "$dir" "$dir/munge"
    # A key of our own, so that a munge that runs already stays as it is.
    [ -s "$dir/munge/key" ] || head -c 1024 /dev/urandom > "$dir/munge/key"
    chmod 600 "$dir/munge/key"
    host=$(hostname -s)
    cat > "$dir/slurm.conf" << END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$(python3 "$ports")
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/%n.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerParameters=batch_sched_delay=0,sched_interval=1
KillWait=5
MinJobAge=60
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE OverSubscribe=NO State=UP
END
    for node in $nodes; do
        echo "NodeName=$node NodeHostname=$host NodeAddr=127.0.0.1 Port=$(python3 "$ports")" \
            "CPUs=$(getconf _NPROCESSORS_ONLN) State=UNKNOWN" >> "$dir/slurm.conf"
    done
}

start() {
    for program in munged slurmctld slurmd sinfo; do
        command -v "$program" > /dev/null || { echo "$program is not installed: apt-get install slurm-wlm munge" >&2; exit 3; }
    done
    [ "$(id -u)" -eq 0 ] || { echo "only root can start slurmd" >&2; exit 3; }
    configure
    munged --force --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
        --log-file="$dir/munge/log" --seed-file="$dir/munge/seed"
    export SLURM_CONF="$dir/slurm.conf"
    slurmctld -f "$SLURM_CONF"
    for node in $nodes; do
        slurmd -f "$SLURM_CONF" -N "$node"
    done
    for _ in $(seq 60); do
        [ "$(sinfo --noheader --Node --format=%t 2> /dev/null | grep -c idle)" = "$(echo "$nodes" | wc -l)" ] && return
        sleep 0.5
    done
    echo "a node did not come up; see $dir/slurmctld.log and $dir/node1.log" >&2
    tail -n 5 "$dir/slurmctld.log" "$dir/node1.log" >&2
    stop
    exit 1
}

# A job that is left alone outlives the cluster that started it.
cancel_jobs() {
    SLURM_CONF="$dir/slurm.conf" scancel --full --user "$(id -un)" 2> /dev/null || return 0
    for _ in $(seq 40); do
        [ -n "$(SLURM_CONF="$dir/slurm.conf" squeue --noheader 2> /dev/null)" ] || return 0
        sleep 0.25
    done
}

stop() {
    cancel_jobs
    for file in "$dir"/node*.pid "$dir/slurmctld.pid" "$dir/munge/pid"; do
        [ -s "$file" ] || continue
        process=$(cat "$file")
        kill "$process" 2> /dev/null || true
        for _ in $(seq 40); do
            kill -0 "$process" 2> /dev/null || break
            sleep 0.25
        done
        kill -KILL "$process" 2> /dev/null || true
        rm -f "$file"
    done
}

case $1 in
    start) start ;;
    stop) stop ;;
    *) usage ;;
esac
