//! Connections that carry the protocol.
