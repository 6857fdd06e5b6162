//! Writing the present state as a configuration file, which is the old file or the new one at any
//! time.

use crate::commands::target::config::Settings;
use crate::commands::target::hosts::HostSettings;
use anyhow::{Context, bail};
use nvme::Nqn;
use std::fs::{File, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const HEAD: &str = "# Written by `tsumugi target ctl write`. Keys are in files of their own.\n";

/// Returns the configuration file of these settings; the subsystems have the NQNs `names`. Paths
/// are absolute. It contains no keys, only the paths of their files.
///
/// # Errors
/// If a path cannot be made absolute.
pub(super) fn text(settings: &Settings, names: &[Nqn]) -> anyhow::Result<String> {
    let mut settings = settings.clone();
    for (subsystem, name) in settings.subsystems.iter_mut().zip(names) {
        // An NQN that was derived from the namespaces at the start stays, even if they have
        // changed.
        subsystem.nqn = Some(name.clone());
        for namespace in &mut subsystem.namespaces {
            namespace.make_absolute()?;
        }
        for file in subsystem.hosts.iter_mut().flat_map(HostSettings::files_mut) {
            *file = std::path::absolute(&*file)
                .with_context(|| format!("cannot find {}", file.display()))?;
        }
    }
    let body = toml::to_string(&settings).context("the settings cannot be written as TOML")?;
    Ok(format!("{HEAD}{body}"))
}

/// Writes the configuration file. An existing file is replaced atomically and keeps its mode and
/// owner; only this user can read a new one. Follows symbolic links. Returns the path that was
/// written.
///
/// # Errors
/// If the file cannot be written; the earlier file then stays.
pub(super) fn write(path: &Path, settings: &Settings, names: &[Nqn]) -> anyhow::Result<PathBuf> {
    if !path.is_absolute() {
        bail!("{} is not an absolute path", path.display());
    }
    let text = text(settings, names)?;
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        bail!("{} is not the path of a file", path.display());
    };
    let failed = || format!("cannot write {}", path.display());
    let former = std::fs::metadata(&path).ok();
    if former.as_ref().is_some_and(|former| !former.is_file()) {
        bail!("{} exists and is not a file", path.display());
    }
    let temporary = directory.join(format!(".{}.{}", name.display(), std::process::id()));
    // A temporary file that a killed target left.
    let _ = std::fs::remove_file(&temporary);
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&temporary)
        .with_context(|| format!("cannot make {}", temporary.display()))?;
    let written = (|| {
        file.write_all(text.as_bytes())?;
        if let Some(former) = &former {
            // Only root can give a file away. If another user writes it, the file becomes that
            // user's.
            let _ = std::os::unix::fs::fchown(&file, Some(former.uid()), Some(former.gid()));
            file.set_permissions(Permissions::from_mode(former.mode() & 0o7777))?;
        }
        file.sync_all()?;
        std::fs::rename(&temporary, &path)?;
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written.with_context(failed)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: written settings are read as the same settings, with absolute paths and fixed NQNs; an
    /// existing file keeps its mode, and stays if the new one cannot be written.
    #[test]
    fn settings_are_written_and_read() {
        let source = "listen = [\"127.0.0.1:0\"]\ndata_memory_max = \"64M\"\nmdts = \"256K\"\n[[subsystem]]\nserial = \"s\"\n\
            allow_hosts = [\"nqn.2026-01.io.tsumugi:a\"]\n[[subsystem.host]]\n\
            nqn = \"nqn.2026-01.io.tsumugi:h\"\ndhchap_key = \"host.key\"\ndhchap_hash = \"hmac(sha384)\"\n\
            dhchap_dhgroup = \"ffdhe2048\"\n[[subsystem.namespace]]\nmemory = \"512M\"\nnsid = 7\n\
            uuid = \"01234567-89ab-4def-8123-456789abcdef\"\n[[subsystem.namespace]]\npath = \"x\"\nnsid = 9\n\
            size = 1000\nread_only = true\n[[subsystem]]\n";
        let settings: Settings = toml::from_str(source).unwrap();
        let names = ["a", "b"].map(|it| Nqn::new(&format!("nqn.2026-01.io.tsumugi:{it}")).unwrap());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("target.toml");
        write(&path, &settings, &names).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        let read = Settings::read(&path).unwrap();
        assert_eq!(read.listen, settings.listen);
        assert_eq!((read.data_memory_max, read.mdts), (Some(64 << 20), Some(256 << 10)));
        for (subsystem, name) in read.subsystems.iter().zip(&names) {
            assert_eq!(subsystem.nqn.as_ref(), Some(name));
        }
        assert_eq!(read.subsystems[0].namespaces[0], settings.subsystems[0].namespaces[0]);
        assert!(read.subsystems[0].namespaces[1].path().unwrap().is_absolute());
        assert_eq!(read.subsystems[0].namespaces[1].size_bytes(), Some(1000));
        let text = std::fs::read_to_string(&path).unwrap();
        let key = std::path::absolute("host.key").unwrap();
        assert!(text.contains(&format!("dhchap_key = \"{}\"", key.display())), "{text}");
        std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(write(&link, &read, &names).unwrap(), path.canonicalize().unwrap());
        assert_eq!((mode(&path), std::fs::read_to_string(&path).unwrap()), (0o640, text.clone()));
        assert!(link.is_symlink());
        let blocked = directory.path().join(format!(".target.toml.{}", std::process::id()));
        std::fs::create_dir(&blocked).unwrap();
        assert!(write(&path, &settings, &names).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        for wrong in [Path::new("target.toml"), directory.path(), Path::new("/")] {
            assert!(write(wrong, &settings, &names).is_err(), "{}", wrong.display());
        }
    }
}
