//! `gen-tls-key`, `check-tls-key`, and the options of connections under TLS, with the names of
//! nvme-cli.

use super::host_files::HOSTNQN_FILE;
use crate::keys::{self, SecretText};
use anyhow::{Context, bail};
use auth::{Derivation, Hash, IdentityVersion, TlsKey};
use clap::Args;
use host::TlsOptions;
use nvme::Nqn;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The TLS options of a connection.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct TlsArgs {
    /// Connect under TLS 1.3 with the key of --tls-key
    #[arg(long)]
    tls: bool,
    /// The target's TLS key for this host (NVMeTLSkey-1:...), or a file that contains it
    #[arg(long, value_name = "FILE|KEY")]
    tls_key: Option<SecretText>,
    /// Derive keys as libnvme before 1.15 did, if the identity does not show how the target's key
    /// is derived
    #[arg(long)]
    tls_compat: bool,
    /// Offer only this identity of the key, as check-tls-key prints it [default: all]; some
    /// targets, such as the kernel's with tlshd, use only the first identity
    #[arg(long, value_name = "IDENTITY")]
    tls_key_identity: Option<String>,
    /// Generate the TLS key in the authentication with --dhchap-secret, and connect again under TLS
    /// with it (secure channel concatenation); discovery is not encrypted
    #[arg(long, conflicts_with_all = ["tls", "tls_key", "tls_compat", "tls_key_identity"])]
    concat: bool,
}

impl TlsArgs {
    /// Returns whether the arguments ask for TLS.
    pub(super) fn is_given(&self) -> bool {
        self.tls || self.tls_key.is_some() || self.concat
    }

    /// Returns whether the TLS key comes from the authentication.
    pub(super) fn is_concatenated(&self) -> bool {
        self.concat
    }

    /// Returns the TLS options, if the arguments ask for TLS.
    ///
    /// # Errors
    /// If the key is missing, cannot be read, or would not be used.
    pub(super) fn options(&self) -> anyhow::Result<Option<TlsOptions>> {
        match (self.tls, &self.tls_key) {
            (true, Some(key)) => {
                let key = key.key("tls-key")?;
                let derivation = derivation(self.tls_compat);
                let identity = self.tls_key_identity.clone();
                Ok(Some(TlsOptions { key, derivation, identity, is_refusal_final: false }))
            }
            (true, None) => bail!(
                "--tls: give the key with --tls-key FILE: this host is not part of the kernel and \
                 does not use the kernel's keyring"
            ),
            (false, Some(_)) => bail!("--tls-key: nothing is encrypted without --tls: give it too"),
            (false, None) if self.tls_compat || self.tls_key_identity.is_some() => {
                bail!("--tls-compat and --tls-key-identity need --tls and --tls-key")
            }
            (false, None) => Ok(None),
        }
    }
}

fn derivation(is_compat: bool) -> Derivation {
    if is_compat { Derivation::Former } else { Derivation::Standard }
}

/// The host and subsystem of an identity to print.
#[derive(Debug, Args)]
struct IdentityArgs {
    /// NQN of the host [default: that in /etc/nvme/hostnqn]
    #[arg(short = 'n', long, value_name = "NQN")]
    hostnqn: Option<Nqn>,
    /// NQN of the subsystem, to print the key's identity for this host and subsystem
    #[arg(short = 'c', long, value_name = "NQN")]
    subsysnqn: Option<Nqn>,
    /// Version of the identity: 0 (TCP 1.0c) or 1, which ends with a digest of the key
    #[arg(short = 'I', long, value_name = "VERSION", default_value_t = 0)]
    identity: u8,
    /// Derive as libnvme before 1.15 did
    #[arg(short = 'C', long)]
    compat: bool,
}

impl IdentityArgs {
    /// Returns the identity, if a subsystem is given.
    fn identity(&self, key: &TlsKey) -> anyhow::Result<Option<String>> {
        let version = match self.identity {
            0 => IdentityVersion::V0,
            1 => IdentityVersion::V1,
            other => bail!("--identity {other}: give 0 or 1"),
        };
        let Some(subsystem) = &self.subsysnqn else {
            if self.hostnqn.is_some() {
                bail!("--hostnqn: an identity also needs a subsystem: give --subsysnqn");
            }
            return Ok(None);
        };
        let host = if let Some(host) = &self.hostnqn {
            host.clone()
        } else {
            let text = std::fs::read_to_string(HOSTNQN_FILE)
                .with_context(|| format!("cannot read {HOSTNQN_FILE}: give --hostnqn"))?;
            Nqn::new(text.trim()).with_context(|| HOSTNQN_FILE.to_owned())?
        };
        let psk = key.psk(&host, subsystem, version, derivation(self.compat));
        Ok(Some(psk.context("--identity")?.identity))
    }
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Hash function that derives each host's key and also selects the cipher: 1 for SHA-256, 2 for
    /// SHA-384; 0 uses the key unchanged
    #[arg(short = 'm', long, value_name = "N", default_value_t = 1)]
    hmac: u8,
    /// Bytes of the key as hexadecimal digits, or a file that contains them [default: random]
    #[arg(short = 's', long, value_name = "FILE|HEX")]
    secret: Option<SecretText>,
    #[command(flatten)]
    identity: IdentityArgs,
    /// New file to write the key to, with mode 0600 [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The key, or a file that contains it
    #[arg(short = 'd', long, visible_alias = "key", value_name = "FILE|KEY")]
    keydata: SecretText,
    #[command(flatten)]
    identity: IdentityArgs,
}

/// Creates a key. Prints its identity on standard error, if a subsystem is given.
pub(crate) fn generate(args: &GenerateArgs) -> anyhow::Result<()> {
    let transform = match args.hmac {
        0 => None,
        1 => Some(Hash::Sha256),
        2 => Some(Hash::Sha384),
        other => bail!("--hmac {other}: give 0 to 2"),
    };
    let key = match &args.secret {
        Some(text) => TlsKey::new(transform, secret(text)?).context("--secret")?,
        None => match transform {
            Some(hash) => TlsKey::generate(hash)?,
            None => TlsKey::generate(Hash::Sha256)?.without_transform(),
        },
    };
    let identity = args.identity.identity(&key)?;
    match &args.output {
        Some(path) => keys::write(path, &key)?,
        None => println!("{}", key.to_text().as_str()),
    }
    if let Some(identity) = identity {
        eprintln!("{identity}");
    }
    Ok(())
}

/// Prints whether a key is well formed, and its properties.
pub(crate) fn check(args: &CheckArgs) -> anyhow::Result<()> {
    let key: TlsKey = args.keydata.key("keydata")?;
    if let Some(identity) = args.identity.identity(&key)? {
        println!("{identity}");
    } else {
        let hmac = key.transform().map_or(0, Hash::id);
        println!("Key is valid (HMAC {hmac}, length {})", key.bytes());
    }
    Ok(())
}

/// Returns the bytes of `--secret`.
fn secret(given: &SecretText) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    let text = given.text();
    if is_hex(text) {
        keys::warn_of_argument("secret");
        return decode(text).context("--secret");
    }
    let text = keys::read_text(Path::new(text)).context("--secret")?;
    decode(text.trim()).context("--secret")
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn decode(text: &str) -> anyhow::Result<Zeroizing<Vec<u8>>> {
    if !is_hex(text) || !text.len().is_multiple_of(2) {
        bail!("the key is not an even number of hexadecimal digits");
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or(0) as u8;
    let pairs = text.as_bytes().chunks_exact(2);
    Ok(Zeroizing::new(pairs.map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()))
}
