"""The parts of tools/demo: cluster, containers, job, measurements."""
