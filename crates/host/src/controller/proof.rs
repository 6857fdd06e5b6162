//! Mutual proofs of this host and a controller: DH-HMAC-CHAP on one queue pair (base 8.3.4).

use super::Controller;
use super::establish::run;
use crate::connection::Connection;
use crate::error::Error;
use crate::options::ConnectOptions;
use crate::queue_pair::{Data, Destination};
use auth::{Fault, Host, Judged, Names, TlsKey};
use nvme::auth::{Authentication, Message};
use reactor::Buffer;
use reactor::time;

/// Buffer for a message of the controller, of the same size as the Linux host's.
const MESSAGE_BYTES: usize = 4096;

impl Controller {
    /// Repeats the proofs of both sides on all queue pairs. Running commands continue meanwhile. A
    /// target that finds the proof wrong ends the connection.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] without a secret, and with secure channel concatenation;
    /// [`Error::Authentication`], and the errors of commands.
    pub async fn reauthenticate(&self) -> Result<(), Error> {
        let options = self.options();
        if options.concat {
            let why =
                "its connections are under a generated TLS key; connect again for another one";
            return Err(Error::InvalidOption { option: "concat", why });
        }
        if options.dhchap.is_none() {
            let why = "it is needed to authenticate";
            return Err(Error::InvalidOption { option: "dhchap_secret", why });
        }
        let link = self.link(None).await?;
        for connection in std::iter::once(&link.admin).chain(&link.io) {
            prove(connection, options).await?;
        }
        Ok(())
    }
}

/// Gives the proof that a Connect demands, if it demands one. A host that demands the controller's
/// proof does not continue without it. Discovery is an exception, because its answers are only
/// hints: each subsystem that it names proves itself.
pub(super) async fn satisfy(
    connection: &Connection,
    options: &ConnectOptions,
    is_required: bool,
) -> Result<(), Error> {
    let demands = options.dhchap.as_ref().is_some_and(|keys| keys.controller.is_some())
        && !options.subsystem_nqn.is_discovery();
    match (&options.dhchap, is_required) {
        (Some(_), true) => prove(connection, options).await.map(drop),
        (None, true) => Err(Error::SecretNeeded),
        (_, false) if demands => Err(Error::Authentication(Fault::Unproved)),
        (_, false) => Ok(()),
    }
}

/// Gives the proof that a Connect demands and that generates a TLS key. Returns the key.
pub(super) async fn concatenate(
    connection: &Connection,
    options: &ConnectOptions,
    is_required: bool,
) -> Result<TlsKey, Error> {
    if !is_required {
        return Err(Error::NothingToConcatenate);
    }
    prove(connection, options).await?.ok_or(Error::NothingToConcatenate)
}

/// Runs a transaction, within the time for connecting. Returns the generated TLS key, if the policy
/// demands one.
async fn prove(connection: &Connection, options: &ConnectOptions) -> Result<Option<TlsKey>, Error> {
    let timeout = options.connect_timeout;
    let what = "authentication";
    time::timeout(timeout, transact(connection, options)).await.map_err(|_| Error::Timeout {
        address: options.address,
        what,
        timeout,
    })?
}

async fn transact(
    connection: &Connection,
    options: &ConnectOptions,
) -> Result<Option<TlsKey>, Error> {
    let keys = options.dhchap.clone().ok_or(Error::SecretNeeded)?;
    let names = Names { host: options.hostnqn.clone(), subsystem: options.subsystem_nqn.clone() };
    let transaction = reactor::random::u64() as u16;
    let (host, negotiate) = Host::start(keys, names, options.dhchap_policy.clone(), transaction);
    send(connection, &negotiate).await?;
    let challenge = receive(connection).await?;
    let (answered, reply) = match host.challenged(&challenge) {
        Ok(answered) => answered,
        Err(fault) => return Err(give_up(connection, transaction, fault).await),
    };
    send(connection, &reply).await?;
    let (hash, group) = answered.terms();
    let verdict = receive(connection).await?;
    let Judged { confirmation, generated } = match answered.judged(&verdict) {
        Ok(judged) => judged,
        Err(fault) => return Err(give_up(connection, transaction, fault).await),
    };
    let is_mutual = confirmation.is_some();
    if let Some(confirmation) = confirmation {
        send(connection, &confirmation).await?;
    }
    tracing::debug!(subsystem = %options.subsystem_nqn, %hash, %group, is_mutual, "authenticated");
    Ok(generated)
}

/// Sends the controller the reason for which this host gives up, unless the controller knows it.
async fn give_up(connection: &Connection, transaction: u16, fault: Fault) -> Error {
    if let Some(reason) = fault.reason() {
        // The connection ends in either case.
        let _ = send(connection, &Message::Failure2(reason).encode(transaction)).await;
    }
    Error::Authentication(fault)
}

async fn send(connection: &Connection, message: &[u8]) -> Result<(), Error> {
    let sqe = Authentication { bytes: message.len() as u32 }.send();
    let data = Data::Write(Buffer::copy_from(message).freeze());
    run(connection, "Authentication Send", sqe, data).await.map(drop)
}

async fn receive(connection: &Connection) -> Result<Buffer, Error> {
    let sqe = Authentication { bytes: MESSAGE_BYTES as u32 }.receive();
    let data = Data::Read(Destination::whole(Buffer::zeroed(MESSAGE_BYTES)));
    let (_, data) = run(connection, "Authentication Receive", sqe, data).await?;
    Ok(data.into_buffer().unwrap_or_else(|| Buffer::zeroed(0)))
}
