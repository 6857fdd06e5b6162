#!/bin/sh
# Epilog of slurm.conf: removes all that a job's pools have on this node, whoever made them: the prolog as root, or the
# job's user with `tsumugi up` in the job, with or without --slurm. Pools of other jobs are left alone.
#
# It runs as root on each node when the job has ended, was cancelled, has met its time limit, or is requeued. What a
# user made is taken down with that user's rights. A status that is not 0 makes Slurm drain the node.
PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
# The node whose prolog has made the pool ends it on all nodes: the epilog of another may have come before its prolog's
# work. What cannot be reached takes itself down when Slurm reports that the job is over.
[ -d "/run/tsumugi/$SLURM_JOB_ID" ] && tsumugi down --job "$SLURM_JOB_ID" --deadline 10s >&2
tsumugi down --slurm-job "$SLURM_JOB_ID" --deadline 10s >&2
status=$?
# 3: all is gone, but something had to be killed.
[ $status = 3 ] && status=0
exit $status
