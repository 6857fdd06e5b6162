//! Our own file system, woven from files below the experiment's directory: a metadata service and
//! several nodes on this machine, each with a device and a mount of its own.

use super::storage::{Ready, make_file};
use super::{Stage, StageOptions};
use crate::guard::Source;
use base::Error;
use loads::level::Pool;
use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Digits of a secret.
const SECRET_DIGITS: usize = 64;

impl Stage {
    /// Starts a pool and writes a file of so many bytes in it. The inner error is why it is not
    /// available.
    pub(super) fn enter_pool(
        &mut self,
        options: &StageOptions,
        pool: &Pool,
        own: &Path,
        bytes: u64,
    ) -> Result<Result<Ready, String>, Error> {
        let secret = own.join("secret");
        write_secret(&secret)?;
        let mut meta = Command::new(&options.program);
        meta.args(["meta", "--listen", "127.0.0.1:0", "--store"]).arg(own.join("store"));
        meta.arg("--secret").arg(&secret);
        if let Some(poll_us) = pool.poll_us {
            meta.args(["--poll-us", &poll_us.to_string()]);
        }
        let address =
            |line: &str| line.trim_end().strip_prefix("listening on ").map(str::to_string);
        let address = match self.start_until(meta, address) {
            Ok(address) => address,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut mounts = Vec::new();
        for number in 1..=pool.nodes {
            let config = configure(pool, own, number, &address, &secret)?;
            let mut node = Command::new(&options.program);
            node.arg("node").arg(&config);
            let is_ready = |line: &str| line.starts_with("ready ").then_some(());
            if let Err(reason) = self.start_until(node, is_ready) {
                return Ok(Err(reason));
            }
            mounts.push(mount(own, number));
        }
        if let Err(error) = make_file(&mount(own, 1).join("file"), bytes) {
            return Ok(Err(error.to_string()));
        }
        // What reaches storage is counted by the disk that the devices lie on.
        let source = Source::of_file(&device(own, 1));
        let file = mount(own, pool.reader).join("file");
        mounts.rotate_left(usize::from(pool.reader) - 1);
        Ok(Ok(Ready { mounts, ..Ready::file(file, source) }))
    }
}

fn mount(own: &Path, number: u16) -> PathBuf {
    own.join(format!("node{number}"))
}

fn device(own: &Path, number: u16) -> PathBuf {
    own.join(format!("device{number}"))
}

/// Writes the configuration of a node.
fn configure(
    pool: &Pool,
    own: &Path,
    number: u16,
    address: &str,
    secret: &Path,
) -> Result<PathBuf, Error> {
    let mount = mount(own, number);
    fs::create_dir(&mount).map_err(Error::io("cannot make", &mount))?;
    let device = device(own, number);
    let text = |path: &Path| toml::Value::from(path.display().to_string()).to_string();
    let checksum = if pool.has_checksums { "on" } else { "off" };
    let poll_us = pool.poll_us.map_or(String::new(), |it| format!("poll_us = \"{it}\"\n"));
    let config = format!(
        "name = \"node{number}\"\n{poll_us}meta = \"{address}\"\nsecret = {}\nmount = {}\n\
         checksum = \"{checksum}\"\n[[device]]\npath = {}\nsize = {}\n",
        text(secret),
        text(&mount),
        text(&device),
        pool.device_bytes
    );
    let path = own.join(format!("node{number}.toml"));
    fs::write(&path, config).map_err(Error::io("cannot write", &path))?;
    Ok(path)
}

/// Makes a secret that only this user can read.
fn write_secret(path: &Path) -> Result<(), Error> {
    let source = Path::new("/proc/sys/kernel/random/uuid");
    let mut digits = String::new();
    while digits.len() < SECRET_DIGITS {
        let uuid = fs::read_to_string(source).map_err(Error::io("cannot read", source))?;
        digits.extend(uuid.chars().filter(char::is_ascii_hexdigit));
    }
    let wrong = |error| Error::io("cannot write", path)(error);
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(wrong)?;
    file.write_all(&digits.as_bytes()[..SECRET_DIGITS]).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a node's configuration has what the level says, and nothing that it leaves open.
    #[test]
    fn nodes_are_configured_as_levels_say() {
        let own = tempfile::tempdir().unwrap();
        let mut pool =
            Pool { nodes: 2, device_bytes: 1 << 20, has_checksums: true, poll_us: None, reader: 1 };
        let text = |pool: &Pool, number| {
            let path = configure(pool, own.path(), number, "127.0.0.1:1", Path::new("/s")).unwrap();
            fs::read_to_string(path).unwrap().parse::<toml::Table>().unwrap()
        };
        let first = text(&pool, 1);
        assert_eq!(first["checksum"].as_str(), Some("on"));
        assert!(!first.contains_key("poll_us"));
        for (spin, said) in [("50", "50"), ("auto", "auto")] {
            pool.poll_us = Some(spin.parse().unwrap());
            let number = if spin == "auto" { 2 } else { 3 };
            assert_eq!(text(&pool, number)["poll_us"].as_str(), Some(said));
        }
    }
}
