//! Secrets for authentication, in files that only their user can read.
//!
//! No message contains any part of a secret, and secrets are not read from a file that other users
//! could have read.

use anyhow::{Context, bail, ensure};
use auth::{Key, KeyError, TlsKey};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::str::FromStr;
use tls::JobKey;
use zeroize::Zeroizing;

/// A secret with a text form.
pub(crate) trait Secret: FromStr<Err = KeyError> {
    /// The start of the text form.
    const PREFIX: &'static str;

    /// Returns the text form.
    fn text(&self) -> Zeroizing<String>;
}

impl Secret for Key {
    const PREFIX: &'static str = "DHHC-1:";

    fn text(&self) -> Zeroizing<String> {
        self.to_text()
    }
}

impl Secret for TlsKey {
    const PREFIX: &'static str = "NVMeTLSkey-1:";

    fn text(&self) -> Zeroizing<String> {
        self.to_text()
    }
}

/// Maximum bytes to read from a file: a secret has about 100.
const FILE_BYTES_MAX: u64 = 4096;
/// Permissions of others and of the group.
const OTHERS: u32 = 0o077;

/// A secret, or the file that holds it, as given on the command line.
#[derive(Clone)]
pub(crate) struct SecretText(Zeroizing<String>);

impl FromStr for SecretText {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(Zeroizing::new(text.to_owned())))
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(..)")
    }
}

impl SecretText {
    /// Returns the given text.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Returns the secret. Prints a warning if it is on the command line, where other users of this
    /// machine can read it.
    ///
    /// # Errors
    /// If the text is not a secret, or its file cannot be used.
    pub(crate) fn key<K: Secret>(&self, option: &str) -> anyhow::Result<K> {
        if !self.0.starts_with(K::PREFIX) {
            return read(Path::new(self.0.as_str())).with_context(|| format!("--{option}"));
        }
        warn_of_argument(option);
        self.0.parse().with_context(|| format!("--{option}: the key cannot be used"))
    }
}

/// Prints a warning about a secret on the command line.
pub(crate) fn warn_of_argument(option: &str) {
    eprintln!(
        "tsumugi: --{option}: a key on the command line can be read by every user of this \
         machine: give the file that holds it"
    );
}

/// Reads a secret from a file.
///
/// # Errors
/// If others may read the file, if it cannot be read, or if it does not contain a secret.
pub(crate) fn read<K: Secret>(path: &Path) -> anyhow::Result<K> {
    let text = read_text(path)?;
    text.parse().with_context(|| format!("the key file {} cannot be used", path.display()))
}

/// Reads the key of a job from a file.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_job(path: &Path) -> anyhow::Result<JobKey> {
    let text = read_text(path)?;
    JobKey::from_hex(&text)
        .with_context(|| format!("the key file {} cannot be used", path.display()))
}

/// Reads a file that only its user can read or change.
pub(crate) fn read_text(path: &Path) -> anyhow::Result<Zeroizing<String>> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot open the key file {shown}"))?;
    let metadata = file.metadata().with_context(|| format!("cannot examine {shown}"))?;
    ensure!(metadata.is_file(), "{shown} is not a regular file, so it cannot hold a key");
    let mode = metadata.mode() & 0o7777;
    if mode & OTHERS != 0 {
        bail!(
            "the key file {shown} is open to others (mode {mode:04o}): create a new key if they \
             may have read it, and run chmod 600 {shown}"
        );
    }
    let owner = metadata.uid();
    let own = rustix::process::geteuid().as_raw();
    ensure!(
        owner == own || owner == 0,
        "the key file {shown} belongs to user {owner}, who can change it: it has to be yours"
    );
    let mut text = Zeroizing::new(String::with_capacity(FILE_BYTES_MAX as usize));
    file.take(FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read the key file {shown}"))?;
    Ok(text)
}

/// Writes a secret to a new file of mode 0600.
///
/// # Errors
/// If the file exists already or cannot be written.
pub(crate) fn write(path: &Path, key: &impl Secret) -> anyhow::Result<()> {
    let context = || format!("cannot make the key file {}", path.display());
    let mut options = OpenOptions::new();
    let mut file =
        options.write(true).create_new(true).mode(0o600).open(path).with_context(context)?;
    writeln!(file, "{}", key.text().as_str()).with_context(context)?;
    file.sync_all().with_context(context)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    /// Goal: a key file can be read back; a file that others may read, one with other content, and
    /// an existing file are refused, and no message shows their content.
    #[test]
    fn key_files_are_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let key = Key::generate(None, 32).unwrap();
        write(&path, &key).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(read::<Key>(&path).unwrap() == key);
        assert!(write(&path, &key).is_err());
        for mode in [0o640, 0o604, 0o620, 0o602] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let said = format!("{:#}", read::<Key>(&path).unwrap_err());
            assert!(said.contains("chmod 600") && !said.contains("DHHC"), "{said}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o400)).unwrap();
        assert!(read::<Key>(&path).unwrap() == key);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        fs::write(&path, "DHHC-1:00:c2VjcmV0:").unwrap();
        let said = format!("{:#}", read::<Key>(&path).unwrap_err());
        assert!(said.contains("32, 48 or 64 bytes") && !said.contains("c2Vj"), "{said}");
        assert!(read::<Key>(directory.path()).is_err());
        let shown = format!("{:?}", "DHHC-1:00:c2VjcmV0:".parse::<SecretText>());
        assert!(!shown.contains("c2Vj"), "{shown}");
    }
}
