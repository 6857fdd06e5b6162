//! The versioned messages between client, target agent and metadata service.
