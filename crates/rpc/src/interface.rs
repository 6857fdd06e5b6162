//! The messages of each kind of connection, as types.

use protocol::auth::Role;
use protocol::{admin, agent, client};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::marker::PhantomData;

/// A kind of connection: a row of the table in [`protocol`].
pub trait Interface: fmt::Debug + 'static {
    /// The role that the connector proves.
    const ROLE: Role;
    /// The connector's calls to the metadata service.
    type Call: Serialize + DeserializeOwned + fmt::Debug + 'static;
    /// Their answers.
    type Answer: Serialize + DeserializeOwned + fmt::Debug + 'static;
    /// The metadata service's calls to the connector.
    type Push: Serialize + DeserializeOwned + fmt::Debug + 'static;
    /// Their answers.
    type PushAnswer: Serialize + DeserializeOwned + fmt::Debug + 'static;
}

/// An impossible message: there is no value of this type, and no bytes decode to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Nothing {}

/// A client's connection.
#[derive(Debug)]
pub enum Client {}

impl Interface for Client {
    const ROLE: Role = Role::Client;
    type Call = client::Request;
    type Answer = client::Response;
    type Push = client::Push;
    type PushAnswer = client::PushAnswer;
}

/// An agent's connection.
#[derive(Debug)]
pub enum Agent {}

impl Interface for Agent {
    const ROLE: Role = Role::Agent;
    type Call = agent::Call;
    type Answer = agent::Answer;
    type Push = agent::Push;
    type PushAnswer = agent::PushAnswer;
}

/// A tool's connection.
#[derive(Debug)]
pub enum Admin {}

impl Interface for Admin {
    const ROLE: Role = Role::Admin;
    type Call = admin::Call;
    type Answer = admin::Answer;
    type Push = Nothing;
    type PushAnswer = Nothing;
}

/// One end of an [`Interface`], with the direction of each message.
pub trait Side: fmt::Debug + 'static {
    /// Whether the peer's calls wait here while it does not read. Only one end does this: two ends
    /// that wait for each other would wait for ever.
    const WAITS_FOR_READER: bool;
    /// The calls of this end.
    type Call: Serialize + fmt::Debug + 'static;
    /// Their answers.
    type Answer: DeserializeOwned + fmt::Debug + 'static;
    /// The calls of the peer.
    type Incoming: DeserializeOwned + fmt::Debug + 'static;
    /// Their answers.
    type Reply: Serialize + fmt::Debug + 'static;
}

/// The end that connected.
#[derive(Debug)]
pub struct Connector<I>(PhantomData<I>);

impl<I: Interface> Side for Connector<I> {
    const WAITS_FOR_READER: bool = false;
    type Call = I::Call;
    type Answer = I::Answer;
    type Incoming = I::Push;
    type Reply = I::PushAnswer;
}

/// The metadata service's end.
#[derive(Debug)]
pub struct Acceptor<I>(PhantomData<I>);

impl<I: Interface> Side for Acceptor<I> {
    const WAITS_FOR_READER: bool = true;
    type Call = I::Push;
    type Answer = I::PushAnswer;
    type Incoming = I::Call;
    type Reply = I::Answer;
}
