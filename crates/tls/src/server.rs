//! The keys of the accepting side.

use crate::error::Error;
use crate::hello;
use crate::key::{Psk, shown};
use crate::library::{configuration, library};
use s2n_tls::callbacks::{ClientHelloCallback, ConnectionFuture};
use s2n_tls::config::Config;
use s2n_tls::connection::Connection;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

/// The keys of the peers that may connect.
pub trait Keys: Send + Sync + 'static {
    /// Returns the key for this identity, which a stranger may have chosen.
    fn find(&self, identity: &[u8]) -> Option<Psk>;
}

impl<F: Fn(&[u8]) -> Option<Psk> + Send + Sync + 'static> Keys for F {
    fn find(&self, identity: &[u8]) -> Option<Psk> {
        self(identity)
    }
}

/// The state that all accepting [`Session`](crate::Session)s of a port share; clones are cheap.
#[derive(Clone)]
pub struct Server {
    pub(crate) config: Config,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    /// Returns a server for peers that know a key of `keys`, by the identity that they send.
    ///
    /// # Errors
    /// [`Error::Library`].
    pub fn new(keys: impl Keys) -> Result<Self, Error> {
        let mut builder = configuration()?;
        builder.set_client_hello_callback(Door(Arc::new(keys))).map_err(|error| library(&error))?;
        Ok(Self { config: builder.build().map_err(|error| library(&error))? })
    }
}

/// The result of the first message, stored with the connection.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// The first identity that the peer sent, if any.
    pub(crate) named: Option<String>,
    /// The first identity with a key.
    pub(crate) found: Option<String>,
}

/// Looks keys up when the first message has been received.
struct Door(Arc<dyn Keys>);

impl ClientHelloCallback for Door {
    fn on_client_hello(
        &self,
        connection: &mut Connection,
    ) -> Result<Option<Pin<Box<dyn ConnectionFuture>>>, s2n_tls::error::Error> {
        let message = connection.client_hello()?.raw_message()?;
        let mut asked = Asked::default();
        let mut known: Vec<&[u8]> = Vec::new();
        for identity in hello::identities(&message) {
            asked.named.get_or_insert_with(|| shown(identity));
            // The library refuses a key that it already has.
            if known.contains(&identity) {
                continue;
            }
            if let Some(psk) = self.0.find(identity).filter(|psk| psk.identity() == identity) {
                connection.append_psk(&psk.to_library()?)?;
                known.push(identity);
                asked.found.get_or_insert_with(|| shown(identity));
            }
        }
        connection.set_application_context(asked);
        Ok(None)
    }
}
