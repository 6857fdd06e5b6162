#!/bin/sh
# TaskProlog of slurm.conf: each task of a job finds the pool that the prolog has made, in TSUMUGI_JOB and
# TSUMUGI_MOUNT. Slurm puts what is printed here into the task's environment.
mount=/run/tsumugi/$SLURM_JOB_ID.mnt
[ -n "$TSUMUGI_MOUNT" ] || [ ! -d "$mount" ] && exit 0
echo "export TSUMUGI_JOB=$SLURM_JOB_ID"
echo "export TSUMUGI_MOUNT=$mount"
