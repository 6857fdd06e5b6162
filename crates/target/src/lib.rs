//! The NVMe-oF/TCP target: subsystems, controllers, queue pairs, discovery, admission.
