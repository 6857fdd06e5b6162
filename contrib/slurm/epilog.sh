#!/bin/sh
# Epilog of slurm.conf: removes everything that a job's pools have on this node, both pools that the prolog made as root
# and pools of the job's user by `tsumugi up` in the job, with or without --slurm. Leaves pools of other jobs alone.
#
# It runs as root on each node when the job has ended, was cancelled, has reached its time limit, or is requeued. It
# takes a user's pools down with that user's rights. A status that is not 0 makes Slurm drain the node.
PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
# The node with the prolog that made the pool ends it on all nodes: another node's epilog may have run before the prolog
# finished. Unreachable nodes take their part down themselves when Slurm reports that the job is over.
[ -d "/run/tsumugi/$SLURM_JOB_ID" ] && tsumugi down --job "$SLURM_JOB_ID" --deadline 10s >&2
tsumugi down --slurm-job "$SLURM_JOB_ID" --deadline 10s >&2
status=$?
# 3: everything is gone, but a process had to be killed.
[ $status = 3 ] && status=0
exit $status
