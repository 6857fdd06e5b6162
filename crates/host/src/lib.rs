//! The NVMe-oF/TCP host: discovery, controllers, queue pairs; gives a block device.
