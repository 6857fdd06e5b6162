//! What both sides compute: responses and augmented challenges (base 8.3.4).

use crate::hash::Hash;
use crate::key::Key;
use nvme::Nqn;
use zeroize::Zeroizing;

/// The direction of authentication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The host's NQN.
    pub host: Nqn,
    /// The subsystem's NQN.
    pub subsystem: Nqn,
}

/// Whose response it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Host,
    Controller,
}

/// What a transaction has agreed on.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) names: Names,
    pub(crate) transaction: u16,
    pub(crate) hash: Hash,
}

impl Terms {
    /// The response of a side to a challenge with its sequence number. `shared` is what came of the
    /// Diffie-Hellman exchange, if there was one.
    pub(crate) fn response(
        &self,
        side: Side,
        key: &Key,
        (challenge, sequence): (&[u8], u32),
        shared: Option<&[u8]>,
    ) -> Zeroizing<Vec<u8>> {
        let (host, subsystem) = (self.names.host.as_str(), self.names.subsystem.as_str());
        let augmented =
            shared.map(|shared| self.hash.hmac(&self.hash.digest(shared), &[challenge]));
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
                // SC_C: no secure channel concatenation.
                &[0],
                label.as_bytes(),
                own.as_bytes(),
                &[0],
                peer.as_bytes(),
            ],
        )
    }
}

/// A challenge that was never used before.
pub(crate) fn challenge(hash: Hash) -> Vec<u8> {
    let mut challenge = vec![0; hash.bytes()];
    ring::random::fill(&mut challenge);
    challenge
}

/// A sequence number: random, and not 0, which says that there is none.
pub(crate) fn sequence() -> u32 {
    loop {
        let sequence = ring::random::u64() as u32;
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

    /// Goal: responses are those of the specification's formulas, as Python's hmac and hashlib compute
    /// them: the host's of an augmented challenge, the controller's of a plain one, with transformed keys.
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
            let terms = Terms { names, transaction: 0x1234, hash };
            let challenge: Vec<u8> = (0..hash.bytes() as u8).collect();
            let numbered = (challenge.as_slice(), 0x0102_0304);
            let host = terms.response(Side::Host, &key, numbered, Some(&[5; 256]));
            assert_eq!(hex(&host), r1, "{hash}");
            let controller = terms.response(Side::Controller, &key, numbered, None);
            assert_eq!(hex(&controller), r2, "{hash}");
        }
    }
}
