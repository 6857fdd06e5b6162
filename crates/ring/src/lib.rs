//! A thin reactor on io_uring: operations, buffers, timers, a small executor, mailboxes between cores; and its simulated twin.
