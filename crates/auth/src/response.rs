//! Computations of both sides: responses and augmented challenges (base 8.3.4).

use crate::hash::Hash;
use crate::key::Key;
use crate::tls_key::TlsKey;
use nvme::Nqn;
use zeroize::Zeroizing;

/// The names of both parties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The host's NQN.
    pub host: Nqn,
    /// The subsystem's NQN.
    pub subsystem: Nqn,
}

/// The side that responds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Host,
    Controller,
}

/// The negotiated parameters of a transaction.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) names: Names,
    pub(crate) transaction: u16,
    pub(crate) hash: Hash,
    /// `SC_C`.
    pub(crate) channel: u8,
}

impl Terms {
    /// Returns the response of a side to a challenge with its sequence number. `shared` is the
    /// result of the Diffie-Hellman exchange, if there was one.
    pub(crate) fn response(
        &self,
        side: Side,
        key: &Key,
        (challenge, sequence): (&[u8], u32),
        shared: Option<&[u8]>,
    ) -> Zeroizing<Vec<u8>> {
        let (host, subsystem) = (self.names.host.as_str(), self.names.subsystem.as_str());
        let augmented =
            shared.map(|shared| self.hash.hmac(&self.session_key(shared), &[challenge]));
        let challenge = augmented.as_ref().map_or(challenge, |augmented| augmented.as_slice());
        let (own, label, peer) = match side {
            Side::Host => (host, "HostHost", subsystem),
            Side::Controller => (subsystem, "Controller", host),
        };
        self.hash.hmac(
            &key.of(own),
            &[
                challenge,
                &sequence.to_le_bytes(),
                &self.transaction.to_le_bytes(),
                &[self.channel],
                label.as_bytes(),
                own.as_bytes(),
                &[0],
                peer.as_bytes(),
            ],
        )
    }

    /// Returns `KS`, the session key from the Diffie-Hellman exchange.
    fn session_key(&self, shared: &[u8]) -> Zeroizing<Vec<u8>> {
        self.hash.digest(shared)
    }

    /// Returns the TLS key that both sides generate from the exchange and both challenges (base
    /// 8.3.4.5.9); [`None`] if it was not negotiated.
    pub(crate) fn generated(
        &self,
        shared: Option<&[u8]>,
        host_challenge: &[u8],
        controller_challenge: &[u8],
    ) -> Option<TlsKey> {
        if self.channel == crate::CHANNEL_NONE {
            return None;
        }
        let session_key = self.session_key(shared?);
        generate(self.hash, &session_key, [controller_challenge, host_challenge])
    }
}

/// Returns the TLS key generated from a session key, C1 and C2.
fn generate(hash: Hash, session_key: &[u8], challenges: [&[u8]; 2]) -> Option<TlsKey> {
    TlsKey::generated(hash, hash.hmac(session_key, &challenges))
}

/// Returns a new random challenge.
pub(crate) fn challenge(hash: Hash) -> Vec<u8> {
    let mut challenge = vec![0; hash.bytes()];
    reactor::random::fill(&mut challenge);
    challenge
}

/// Returns a random sequence number, not 0, which would mean that there is none.
pub(crate) fn sequence() -> u32 {
    loop {
        let sequence = reactor::random::u64() as u32;
        if sequence != 0 {
            return sequence;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        use std::fmt::Write;
        bytes.iter().fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
    }

    /// Goal: generated keys follow the specification's formulas. The session keys and challenges
    /// are those of the Linux kernel's own test, with the same generated keys; Python's hmac
    /// computed the derived ones.
    #[test]
    fn generated_keys_are_those_of_the_formulas() {
        let known = [
            (
                Hash::Sha256,
                "VZsr4pqRKDdz1FnY5+BVOUIEXyTD87RBmu27nz3Xiwo=",
                "8b4b8effe0acec009c361bf256b827e7276e5cbe9952af1a4263a7679eb8534d",
            ),
            (
                Hash::Sha384,
                "QXxOVqHCflehxqYjCeO1nWvUn7Td4If1EUVug2xwv0EkXfSSuT3i3hyjBvmkJQWc",
                "8d7804ac99f15d78a8494ba06d2b58ee6a1179c7ac86cc81c1726c6678dde625\
                 011e62dd2bebbd86a415ed8ff014c80a",
            ),
        ];
        let (host, subsystem) = ("nqn.2026-11.test:host", "nqn.2026-11.test:disk");
        let nqns = [host, subsystem].map(|name| Nqn::new(name).unwrap());
        for (hash, digest, secret) in known {
            let of =
                |value: &dyn Fn(u8) -> u8| (0..hash.bytes() as u8).map(value).collect::<Vec<u8>>();
            let (c1, c2) = (of(&|i| i), of(&|i| 0xff - i));
            let key = generate(hash, &of(&|i| b'A' + i), [&c1, &c2]).unwrap();
            let psks = key.psks(&nqns[0], &nqns[1], crate::Derivation::Former);
            assert_eq!(psks.len(), 1, "a generated key has one identity with any derivation");
            let identity = format!("NVMe1G{:02} {host} {subsystem} {digest}", hash.id());
            assert_eq!((psks[0].identity.as_str(), psks[0].hash), (identity.as_str(), hash));
            assert_eq!(hex(&psks[0].secret), secret);
            assert!(!format!("{key:?} {psks:?}").contains(&secret[..8]));
        }
        assert!(generate(Hash::Sha512, &[1; 64], [&[1], &[2]]).is_none(), "no cipher suite has it");
    }

    /// Goal: when a key is generated, both responses include `SC_C`, and the key is computed from
    /// the hashed result of the exchange. Python's hmac and hashlib computed the expected values.
    #[test]
    fn terms_with_a_generated_key_are_those_of_the_formulas() {
        let key: Key =
            "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:".parse().unwrap();
        let (host, subsystem) = ("nqn.2026-11.test:host", "nqn.2026-11.test:disk");
        let names =
            Names { host: Nqn::new(host).unwrap(), subsystem: Nqn::new(subsystem).unwrap() };
        let channel = crate::CHANNEL_NEW_PSK;
        let terms =
            Terms { names: names.clone(), transaction: 0x1234, hash: Hash::Sha256, channel };
        let (c1, c2): (Vec<u8>, Vec<u8>) = (0..32).map(|i: u8| (i, 0xff - i)).unzip();
        let shared = Some(&[5; 256][..]);
        let response = |side, challenge: &[u8]| {
            hex(&terms.response(side, &key, (challenge, 0x0102_0304), shared))
        };
        assert_eq!(
            (response(Side::Host, &c1).as_str(), response(Side::Controller, &c2).as_str()),
            (
                "a1caab4ee69cce361df234d4e4b68907a9ee4d91e1de220b9a3d3f76ec781c28",
                "e116fe97c09803357dea306a42277cfafe2d001ca2a658e0bca6a2ab4489cf01"
            )
        );
        let generated = terms.generated(shared, &c2, &c1).unwrap();
        let psks = generated.psks(&names.host, &names.subsystem, crate::Derivation::Standard);
        let digest = "ygePL1YC4FSnpwFxoZM5AR7/GYJurzI4q90l+vZmlS8=";
        assert_eq!(psks[0].identity, format!("NVMe1G01 {host} {subsystem} {digest}"));
        assert!(terms.generated(None, &c2, &c1).is_none(), "there was no exchange");
        let clear = Terms { channel: crate::CHANNEL_NONE, ..terms };
        assert!(clear.generated(shared, &c2, &c1).is_none(), "it was not negotiated");
    }

    /// Goal: responses follow the specification's formulas, with expected values from Python's hmac
    /// and hashlib: the host's for an augmented challenge, the controller's for a plain one, with
    /// transformed keys.
    #[test]
    fn responses_are_those_of_the_formulas() {
        let secret = [
            (
                "01",
                "sha256",
                "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR",
                "82d7aee0ee66dd1ee31eaceaab6cec237570f220fad4a078a8ce3b119c8f048b",
                "a6a2728308bb5d2e06239f031c93babfbe67c917e7c4be21d28c0a481371b0cb",
            ),
            (
                "02",
                "sha384",
                "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR",
                "9a1c4843f76313459ac7e87a7675357626cb774caac9b319ac398097357e896a\
              4080a4f2494ab3a2ae429b6577792662",
                "5e51449487a2d0ca05c6424bd59e50de3140658743b59d00ebf221b3466517cc\
              84838d2fda9c6bdc010ef285d04b33d2",
            ),
            (
                "03",
                "sha512",
                "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR",
                "2656aa9c0a7a636728488d9a7bf703fb9281119c25ffef8590d00627da391a1a\
              a882142c5bf4fb98b9ee96fd44138ffe9dfb93a87e3ed0174f816ab49f3dfa56",
                "e1e2bdd093a84cc9de8367c605ad37914b2a1db9f37f6ab934a6575a8382143a\
              5de0a460516a17b432712b3e573ec3c435b2aae0fbd6e12330e646c98becf050",
            ),
        ];
        for (id, hash, base64, r1, r2) in secret {
            let hash: Hash = hash.parse().unwrap();
            let key: Key = format!("DHHC-1:{id}:{base64}:").parse().unwrap();
            let names = Names {
                host: Nqn::new("nqn.2026-11.test:host").unwrap(),
                subsystem: Nqn::new("nqn.2026-11.test:disk").unwrap(),
            };
            let terms = Terms { names, transaction: 0x1234, hash, channel: 0 };
            let challenge: Vec<u8> = (0..hash.bytes() as u8).collect();
            let numbered = (challenge.as_slice(), 0x0102_0304);
            let host = terms.response(Side::Host, &key, numbered, Some(&[5; 256]));
            assert_eq!(hex(&host), r1, "{hash}");
            let controller = terms.response(Side::Controller, &key, numbered, None);
            assert_eq!(hex(&controller), r2, "{hash}");
        }
    }
}
