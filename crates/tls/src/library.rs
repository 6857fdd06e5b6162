//! The TLS library: its configuration, and its errors as ours.

use crate::error::Error;
use s2n_tls::config::{self, Config};
use s2n_tls::enums::SerializationVersion;
use s2n_tls::security::Policy;

/// TLS 1.3 only, forward secrecy, AES-GCM first. Numbered policies of the library never change.
const POLICY: &str = "AWS-CRT-SDK-TLSv1.3-2023";

/// Returns the configuration for both ends.
pub(crate) fn configuration() -> Result<config::Builder, Error> {
    let fail = |error: s2n_tls::error::Error| library(&error);
    let mut builder = Config::builder();
    builder.set_security_policy(&Policy::from_version(POLICY).map_err(fail)?).map_err(fail)?;
    // No peer can use a certificate.
    builder.with_system_certs(false).map_err(fail)?;
    // Records needs the export to continue after the handshake.
    builder.set_serialization_version(SerializationVersion::V1).map_err(fail)?;
    Ok(builder)
}

/// Converts an error of the library.
pub(crate) fn library(error: &s2n_tls::error::Error) -> Error {
    Error::Library(error.name())
}
