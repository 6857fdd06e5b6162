//! Keys and identities of libnvme's own tests (its `test/psk.c`). Python's hmac computed the TLS
//! PSKs independently, with the same identities.

use super::*;

const SHA256: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const SHA384: &str = "NVMeTLSkey-1:02:\
    VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";
const HOST: &str = "nqn.psk-test-host";
const SUBSYSTEM: &str = "nqn.psk-test-subsys";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

/// Goal: keys written by libnvme can be read, and are written back unchanged.
#[test]
fn known_texts_are_read() {
    let plain = SHA256.replace(":01:", ":00:");
    for (text, transform, bytes) in [
        (plain.as_str(), None, 32),
        (SHA256, Some(Hash::Sha256), 32),
        (SHA384, Some(Hash::Sha384), 48),
    ] {
        let key: TlsKey = text.parse().unwrap();
        assert_eq!((key.transform(), key.bytes()), (transform, bytes));
        assert_eq!(key.to_text().as_str(), text);
        assert_eq!(hex(&key.secret[..4]), "5512dbb6");
    }
    let made = TlsKey::generate(Hash::Sha384).unwrap();
    assert_eq!(made.to_text().parse::<TlsKey>().unwrap(), made);
    assert_ne!(TlsKey::generate(Hash::Sha384).unwrap(), made);
    assert!(TlsKey::generate(Hash::Sha512).is_err());
}

/// Goal: a damaged text is refused with its defect, and is not printed.
#[test]
fn damaged_texts_are_refused() {
    let wrong = |text: &str| text.parse::<TlsKey>().unwrap_err();
    assert_eq!(wrong(""), KeyError::Form(FORM.shown));
    assert_eq!(wrong(&SHA256.replace("key-1", "key-2")), KeyError::Form(FORM.shown));
    assert_eq!(wrong(&SHA256.replace(":01:", ":03:")), KeyError::Form(FORM.shown));
    assert_eq!(wrong(&SHA256.replace("VRLb", "VR!b")), KeyError::Base64);
    assert_eq!(wrong(&SHA256.replace("VRLb", "VRLc")), KeyError::Checksum);
    let of_hash = KeyError::LengthOfHash { hmac: 2, bytes: 48 };
    assert_eq!(wrong(&SHA256.replace(":01:", ":02:")), of_hash);
    assert!(matches!(wrong("NVMeTLSkey-1:01:VRLb:"), KeyError::Length { bytes: 0, .. }));
    let shown = format!("{:?}", SHA256.parse::<TlsKey>());
    assert!(!shown.contains("VRLb"), "{shown}");
    let nqn = Nqn::discovery();
    let psk = SHA256.parse::<TlsKey>().unwrap().psks(&nqn, &nqn, Derivation::Standard);
    let shown = format!("{psk:?}");
    assert!(!shown.contains(&hex(&psk[0].secret)[..8]) && !shown.contains("secret"), "{shown}");
}

/// Goal: identities are those of libnvme, before and after its derivation changed, and PSKs are
/// equal to those computed independently.
#[test]
fn derivations_are_those_of_libnvme() {
    use Derivation::{Former, Standard};
    use IdentityVersion::{V0, V1};
    let digests = [
        (SHA256, Standard, "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=", "8fc3c0badfd4c0c66fa3"),
        (SHA256, Former, "66GuqV08TsAGII39teWUfwQwizjv06Jy8jOcX3NAAzM=", "b9f5ab2a41ba6e72a23a"),
        (
            SHA384,
            Standard,
            "QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
            "a2b2f943f479fc682555",
        ),
        (
            SHA384,
            Former,
            "RsKmYJ3nAn1ApjjMloJFbAkLPivONDAX/xW327YBUsn2eGShXSjCZvBaOxscLqmz",
            "fcefe2e2a2e682b1447d",
        ),
    ];
    for (text, derivation, digest, secret) in digests {
        let key: TlsKey = text.parse().unwrap();
        let psk = key.derive(HOST, SUBSYSTEM, V1, derivation).unwrap();
        let id = key.hash().id();
        assert_eq!(psk.identity, format!("NVMe1R{id:02} {HOST} {SUBSYSTEM} {digest}"));
        assert_eq!((&hex(&psk.secret)[..20], psk.hash), (secret, key.hash()));
        assert_eq!(psk.secret.len(), key.bytes());
    }
    let plain = SHA256.replace(":01:", ":00:");
    for (text, derivation, secret) in [
        (SHA256, Standard, "05c6503551ad136e6ee3"),
        (SHA256, Former, "09fb1983ac6d6d0353e7"),
        (plain.as_str(), Standard, "ec85300ba827726bd3bc"),
        (SHA384, Standard, "f42ba63824cdfe421914"),
        (SHA384, Former, "2ee4754186a625b28a39"),
    ] {
        let key: TlsKey = text.parse().unwrap();
        let psk = key.derive(HOST, SUBSYSTEM, V0, derivation).unwrap();
        assert_eq!(psk.identity, format!("NVMe0R{:02} {HOST} {SUBSYSTEM}", key.hash().id()));
        assert_eq!(&hex(&psk.secret)[..20], secret, "{text} {derivation:?}");
    }
}

/// Goal: a host offers each identity that its peer may know once, the standard one first. If names
/// are too long for version 0, version 1 remains.
#[test]
fn all_identities_are_offered() {
    let host = Nqn::new("nqn.2026-01.io.tsumugi:host").unwrap();
    let identities = |text: &str, subsystem: &Nqn, derivation| -> Vec<String> {
        let psks = text.parse::<TlsKey>().unwrap().psks(&host, subsystem, derivation);
        psks.into_iter().map(|psk| psk.identity).collect()
    };
    let discovery = Nqn::discovery();
    let standard = identities(SHA256, &discovery, Derivation::Standard);
    let former = identities(SHA256, &discovery, Derivation::Former);
    assert_eq!(standard.len(), 3);
    assert_eq!([&standard[1], &standard[0], &standard[2]], [&former[0], &former[1], &former[2]]);
    let plain = identities(&SHA256.replace(":01:", ":00:"), &discovery, Derivation::Standard);
    assert_eq!(plain.len(), 2, "one digest with either derivation");
    let long = Nqn::new(&format!("nqn.2026-01.io.tsumugi:{}", "x".repeat(200))).unwrap();
    let only = identities(SHA256, &long, Derivation::Standard);
    assert!(only.len() == 2 && only.iter().all(|it| it.starts_with("NVMe1R01 ")), "{only:?}");
}
