#!/bin/sh
# TaskProlog of slurm.conf: each task of a job gets the name and mount of the prolog's pool in TSUMUGI_JOB and
# TSUMUGI_MOUNT. Slurm adds the lines printed here to the task's environment.
mount=/run/tsumugi/$SLURM_JOB_ID.mnt
[ -n "$TSUMUGI_MOUNT" ] || [ ! -d "$mount" ] && exit 0
echo "export TSUMUGI_JOB=$SLURM_JOB_ID"
echo "export TSUMUGI_MOUNT=$mount"
