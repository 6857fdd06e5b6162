//! The host's side of a transaction: a chain of states. Each state takes the
//! controller's next message.

use crate::Policy;
use crate::error::Fault;
use crate::group::{Exchange, Group};
use crate::hash::Hash;
use crate::key::KeyPair;
use crate::response::{Names, Side, Terms, challenge, sequence};
use crate::tls_key::TlsKey;
use nvme::auth::{Message, Reason};
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// A host that has sent Negotiate and waits for a challenge.
#[derive(Debug)]
pub struct Host {
    keys: KeyPair,
    names: Names,
    policy: Policy,
    transaction: u16,
}

/// A host that has answered the challenge and waits for the controller's result and proof.
#[derive(Debug)]
pub struct Answered {
    transaction: u16,
    hash: Hash,
    group: Group,
    /// The expected response of the controller.
    expected: Option<Zeroizing<Vec<u8>>>,
    generated: Option<TlsKey>,
}

/// A transaction that has succeeded.
#[derive(Debug)]
pub struct Judged {
    /// The message that confirms the controller's proof, if the host demanded one.
    pub confirmation: Option<Vec<u8>>,
    /// The TLS key that both sides have generated, if the policy requires one.
    pub generated: Option<TlsKey>,
}

impl Host {
    /// Starts a transaction. Returns the host and its first message. The number must be unique
    /// among the queue pair's transactions.
    pub fn start(keys: KeyPair, names: Names, policy: Policy, transaction: u16) -> (Self, Vec<u8>) {
        let hashes: Vec<u8> = policy.usable_hashes().map(Hash::id).collect();
        let groups: Vec<u8> = policy.usable_groups().map(Group::id).collect();
        let concatenation = policy.channel();
        let negotiate = Message::Negotiate { concatenation, hashes: &hashes, groups: &groups };
        let bytes = negotiate.encode(transaction);
        (Self { keys, names, policy, transaction }, bytes)
    }

    /// Answers the controller's challenge. A host that has the controller's secret challenges it
    /// too.
    ///
    /// # Errors
    /// The reason why the transaction has ended.
    pub fn challenged(self, bytes: &[u8]) -> Result<(Answered, Vec<u8>), Fault> {
        let message = self.accept(bytes)?;
        let Message::Challenge { hash, group, sequence: s1, challenge: c1, dh_value } = message
        else {
            return Err(Reason::INCORRECT_MESSAGE.into());
        };
        let hash = Hash::from_id(hash);
        let hash = hash.filter(|hash| self.policy.usable_hashes().any(|usable| usable == *hash));
        let hash = hash.filter(|hash| hash.bytes() == c1.len()).ok_or(Reason::HASH_UNUSABLE)?;
        let group = Group::from_id(group);
        let group =
            group.filter(|group| self.policy.usable_groups().any(|usable| usable == *group));
        let group = group.ok_or(Reason::GROUP_UNUSABLE)?;
        let exchange = group.begin();
        let shared = match &exchange {
            Some(exchange) => Some(exchange.shared(dh_value).ok_or(Reason::GROUP_UNUSABLE)?),
            None if dh_value.is_empty() => None,
            None => return Err(Reason::INCORRECT_PAYLOAD.into()),
        };
        let shared = shared.as_ref().map(|shared| shared.as_slice());
        let Self { keys, names, transaction, policy } = self;
        let terms = Terms { names, transaction, hash, channel: policy.channel() };
        let response = terms.response(Side::Host, &keys.host, (c1, s1), shared);
        let c2 = challenge(hash);
        // Without a sequence number the challenge is for the generated key only.
        let s2 = keys.controller.as_ref().map_or(0, |_| sequence());
        let expected = keys
            .controller
            .as_ref()
            .map(|key| terms.response(Side::Controller, key, (&c2, s2), shared));
        let generated = terms.generated(shared, &c2, c1);
        let has_challenge = expected.is_some() || generated.is_some();
        let reply = Message::Reply {
            response: &response,
            sequence: s2,
            challenge: has_challenge.then_some(c2.as_slice()),
            dh_value: exchange.as_ref().map_or(&[], Exchange::value),
        };
        let bytes = reply.encode(transaction);
        Ok((Answered { transaction, hash, group, expected, generated }, bytes))
    }

    fn accept<'a>(&self, bytes: &'a [u8]) -> Result<Message<'a>, Fault> {
        accept(bytes, self.transaction)
    }
}

impl Answered {
    /// Processes the controller's result. On success the host is authenticated, and the controller
    /// too if the host demanded a proof.
    ///
    /// # Errors
    /// The reason why the transaction has ended.
    pub fn judged(self, bytes: &[u8]) -> Result<Judged, Fault> {
        let Message::Success1 { hash_bytes, response } = accept(bytes, self.transaction)? else {
            return Err(Reason::INCORRECT_MESSAGE.into());
        };
        if usize::from(hash_bytes) != self.hash.bytes() {
            return Err(Reason::HASH_UNUSABLE.into());
        }
        let generated = self.generated;
        let Some(expected) = &self.expected else {
            return Ok(Judged { confirmation: None, generated });
        };
        let response = response.ok_or(Fault::Unproved)?;
        if !bool::from(expected.ct_eq(response)) {
            return Err(Reason::FAILED.into());
        }
        let confirmation = Some(Message::Success2.encode(self.transaction));
        Ok(Judged { confirmation, generated })
    }

    /// Returns the hash function and the group that the controller chose.
    pub fn terms(&self) -> (Hash, Group) {
        (self.hash, self.group)
    }
}

/// Decodes a message of this transaction. A failure message gives an error.
fn accept(bytes: &[u8], transaction: u16) -> Result<Message<'_>, Fault> {
    let (number, message) = Message::decode(bytes).map_err(|_| Reason::INCORRECT_PAYLOAD)?;
    if let Message::Failure1(reason) = message {
        return Err(Fault::Refused(reason));
    }
    if number != transaction {
        return Err(Reason::INCORRECT_MESSAGE.into());
    }
    Ok(message)
}
