//! `gen-dhchap-key`, `check-dhchap-key`, and the secrets of the other commands.

use crate::keys::{self, SecretText};
use anyhow::{Context, bail};
use auth::{Hash, Key, KeyPair};
use clap::Args;
use nvme::Nqn;
use std::path::PathBuf;

/// Secrets of a connection.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct SecretArgs {
    /// This host's key (DHHC-1:...), or a file that contains it, for targets that require
    /// authentication
    #[arg(short = 'S', long, value_name = "FILE|KEY")]
    dhchap_secret: Option<SecretText>,
    /// The target's key, or a file that contains it, which makes the host require the target's
    /// authentication
    #[arg(short = 'C', long, value_name = "FILE|KEY")]
    dhchap_ctrl_secret: Option<SecretText>,
}

impl SecretArgs {
    /// Returns the given keys, if any.
    ///
    /// # Errors
    /// If a key cannot be read, or the target's key is given alone.
    pub(super) fn keys(&self) -> anyhow::Result<Option<KeyPair>> {
        let Some(host) = &self.dhchap_secret else {
            if self.dhchap_ctrl_secret.is_some() {
                bail!(
                    "--dhchap-ctrl-secret: a target authenticates only to a host that \
                     authenticates too: also give --dhchap-secret"
                );
            }
            return Ok(None);
        };
        let controller = self.dhchap_ctrl_secret.as_ref();
        Ok(Some(KeyPair {
            host: host.key("dhchap-secret")?,
            controller: controller.map(|key| key.key("dhchap-ctrl-secret")).transpose()?,
        }))
    }
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    /// Hash function that transforms the key with its owner's NQN: 0 for none, 1 for SHA-256, 2 for
    /// SHA-384, 3 for SHA-512
    #[arg(short = 'm', long, value_name = "N", default_value_t = 0)]
    hmac: u8,
    /// Length of the key in bytes: 32, 48 or 64 [default: 32, or the length of the hash]
    #[arg(short = 'l', long, value_name = "BYTES")]
    key_length: Option<usize>,
    /// Accepted for compatibility; the key is random for every NQN
    #[arg(short = 'n', long, hide = true, value_name = "NQN")]
    #[allow(dead_code, reason = "it asks for what is done anyway")]
    nqn: Option<Nqn>,
    /// New file to write the key to, with mode 0600 [default: standard output]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct CheckKeyArgs {
    /// The key, or a file that contains it
    #[arg(short = 'k', long, value_name = "FILE|KEY")]
    key: SecretText,
}

fn hash_of(hmac: u8) -> anyhow::Result<Option<Hash>> {
    match hmac {
        0 => Ok(None),
        id => Hash::from_id(id).map(Some).with_context(|| format!("--hmac {id}: give 0 to 3")),
    }
}

/// Creates a key.
pub(crate) fn generate(args: &GenerateArgs) -> anyhow::Result<()> {
    let transform = hash_of(args.hmac)?;
    let bytes = transform.map_or(32, Hash::bytes);
    if transform.is_some() && args.key_length.is_some_and(|given| given != bytes) {
        bail!("--key-length: a key for --hmac {} has {bytes} bytes", args.hmac);
    }
    let key = Key::generate(transform, args.key_length.unwrap_or(bytes)).context("--key-length")?;
    match &args.output {
        Some(path) => keys::write(path, &key)?,
        None => println!("{}", key.to_text().as_str()),
    }
    Ok(())
}

/// Prints whether a key is well formed, and its properties.
pub(crate) fn check(args: &CheckKeyArgs) -> anyhow::Result<()> {
    let key: Key = args.key.key("key")?;
    let hmac = key.transform().map_or(0, Hash::id);
    println!("Key is valid (HMAC {hmac}, length {})", key.bytes());
    Ok(())
}
