#!/bin/sh
# Prolog of slurm.conf: creates a pool for a job that asks for one with `--constraint=tsumugi`.
#
# It runs as root on each node. The first node of the job does all the work: it reaches the others by ssh as root.
# If nodes cannot reach one another so, jobs use `tsumugi up --slurm` instead. With PrologFlags=Alloc the pool exists
# before the job's first line runs. The pool's name is the job's number, and only the job's user can use the pool.
#
# If a prolog fails, Slurm drains the node and requeues the job; `scontrol show node` shows the reason.
case "&,${SLURM_JOB_CONSTRAINTS}&," in
*tsumugi*) ;;
*) exit 0 ;;
esac
PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
nodes=$(scontrol show hostnames "$SLURM_NODELIST" | paste -sd, -)
[ "$SLURMD_NODENAME" = "${nodes%%,*}" ] || exit 0
[ -r /etc/tsumugi/slurm.conf ] && . /etc/tsumugi/slurm.conf
# A requeued job has the number of its earlier run, and that run's epilog may have been lost with its node.
tsumugi down --slurm-job "$SLURM_JOB_ID" >&2
# shellcheck disable=SC2086 # options are several words
exec tsumugi up --nodes "$nodes" --job "$SLURM_JOB_ID" --owner "$SLURM_JOB_USER" \
    --owner-slurm-job "$SLURM_JOB_ID" --mount-base "/run/tsumugi/$SLURM_JOB_ID.mnt" --size "${size:-2G}" \
    ${device_dir:+--device-dir "$device_dir"} $options >&2
