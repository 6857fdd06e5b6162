//! The meaning of each option.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::time::Duration;

use super::{
    FillMode, IdRange, OptionError, Options, OwnerXattr, Pass, RedirectMode, SyncMode, XattrClass,
    split,
};

/// Options without an effect: defaults, options that fstab uses itself, and behaviour that FUSE has
/// anyway.
const NEUTRAL: &[&str] = &[
    "rw",
    "suid",
    "dev",
    "exec",
    "atime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "diratime",
    "nodiratime",
    "lazytime",
    "nolazytime",
    "_netdev",
    "nofail",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "async",
    "silent",
    "loud",
    "mand",
    "nomand",
    "iversion",
    "noiversion",
    "default_permissions",
    "big_writes",
    "nonempty",
    "threaded",
];

/// Options with a value and without an effect. Without `SELinux` a context labels nothing; with it
/// the mount's own context is the policy's for FUSE.
const NEUTRAL_WITH_VALUE: &[&str] = &[
    "context",
    "fscontext",
    "defcontext",
    "rootcontext",
    "subtype",
    "comment",
    "threaded",
    "max_idle_threads",
    "max_threads",
];

/// Longest timeout in seconds: about 30 years, in effect for ever.
const TIMEOUT_SECONDS_MAX: f64 = 1e9;

/// Applies one option.
pub(super) fn set(
    options: &mut Options,
    key: &str,
    value: Option<&[u8]>,
) -> Result<(), OptionError> {
    let Some(value) = value else { return set_flag(options, key) };
    if NEUTRAL_WITH_VALUE.contains(&key) || key.starts_with("x-") || key.starts_with("X-") {
        return Ok(());
    }
    if super::is_layer_key(key) {
        return set_layer(options, key, value);
    }
    set_value(options, key, &String::from_utf8_lossy(&split::unescape(value)))
}

fn set_flag(options: &mut Options, key: &str) -> Result<(), OptionError> {
    match key {
        "ro" => options.read_only = true,
        "rw" => options.read_only = false,
        "nosuid" => options.no_suid = true,
        "suid" => options.no_suid = false,
        "nodev" => options.no_devices = true,
        "dev" => options.no_devices = false,
        "noexec" => options.no_exec = true,
        "exec" => options.no_exec = false,
        "noatime" => options.no_atime = true,
        "atime" | "relatime" => options.no_atime = false,
        "allow_other" => options.allow_other = true,
        "userxattr" => options.xattrs = XattrClass::User,
        "volatile" => options.sync = SyncMode::Volatile,
        "writeback" => options.writeback = true,
        "static_nlink" => options.static_nlink = true,
        "noacl" => options.no_acl = true,
        "acl" => options.no_acl = false,
        "accept_damage" => options.accept_damage = true,
        "squash_to_root" => (options.squash_uid, options.squash_gid) = (Some(0), Some(0)),
        _ if NEUTRAL.contains(&key) || key.starts_with("x-") || key.starts_with("X-") => {}
        "sync" | "dirsync" => {
            let reason = "synchronous mounts are not offered; fsync and O_SYNC are kept";
            return Err(OptionError::Unsupported { option: key.into(), reason });
        }
        _ => return Err(OptionError::Unknown(key.into())),
    }
    Ok(())
}

fn set_layer(options: &mut Options, key: &str, value: &[u8]) -> Result<(), OptionError> {
    let path = |text: &[u8]| PathBuf::from(OsString::from_vec(split::unescape(text)));
    let wrong = |expected| bad(key, &String::from_utf8_lossy(value), expected);
    if value.is_empty() || value.contains(&0) {
        return Err(wrong("a path"));
    }
    match key {
        "upperdir" => options.upper = Some(path(value)),
        "workdir" => options.work = Some(path(value)),
        "lowerdir+" if options.data_only_count > 0 => {
            return Err(wrong("given before every datadir+"));
        }
        "lowerdir+" => options.lower.push(path(value)),
        "datadir+" => {
            options.lower.push(path(value));
            options.data_only_count += 1;
        }
        _ => {
            let (mut layers, mut data_only) = (Vec::new(), 0);
            // Whether a `::` stands before the part: what follows it holds data only.
            let mut is_data = false;
            for (at, part) in split::at_colons(value).into_iter().enumerate() {
                match part {
                    b"" if at > 0 && !is_data => is_data = true,
                    b"" => return Err(wrong("paths separated by colons")),
                    _ if data_only > 0 && !is_data => {
                        return Err(wrong("with :: before each layer of data only"));
                    }
                    part => {
                        layers.push(path(part));
                        data_only += usize::from(std::mem::take(&mut is_data));
                    }
                }
            }
            if is_data {
                return Err(wrong("paths separated by colons"));
            }
            (options.lower, options.data_only_count) = (layers, data_only);
        }
    }
    Ok(())
}

fn set_value(options: &mut Options, key: &str, value: &str) -> Result<(), OptionError> {
    match key {
        "redirect_dir" => {
            options.redirect = match value {
                "on" => RedirectMode::On,
                "off" | "follow" => RedirectMode::Follow,
                "nofollow" => RedirectMode::NoFollow,
                _ => return Err(bad(key, value, "on, off, follow or nofollow")),
            }
        }
        "index" => options.index = switch(key, value)?,
        "xino" => options.xino = value == "auto" || switch(key, value)?,
        "metacopy" | "nfs_export" => {
            // Copies without data are read wherever they are; none is made, which is valid too.
            if switch(key, value)? && key == "nfs_export" {
                let reason = "file handles for NFS are not offered";
                return Err(OptionError::Unsupported { option: key.into(), reason });
            }
        }
        "uuid" if matches!(value, "on" | "off" | "auto" | "null") => {}
        "verity" if value == "off" => {}
        "fsync" => {
            options.sync = match value {
                "auto" | "1" => SyncMode::Auto,
                "strict" => SyncMode::Strict,
                "volatile" | "0" => SyncMode::Volatile,
                _ => return Err(bad(key, value, "auto, strict, volatile, 0 or 1")),
            }
        }
        "sync" => {
            options.sync_whole_file_system = match value {
                "fs" => true,
                "files" => false,
                _ => return Err(bad(key, value, "fs or files")),
            }
        }
        "uidmapping" => options.uid_map = id_map(key, value)?,
        "gidmapping" => options.gid_map = id_map(key, value)?,
        "squash_to_uid" => options.squash_uid = Some(number(key, value)? as u32),
        "squash_to_gid" => options.squash_gid = Some(number(key, value)? as u32),
        "xattr_permissions" => {
            options.owner_xattr = match value {
                "0" => None,
                "1" => Some(OwnerXattr::Security),
                "2" => Some(OwnerXattr::Containers),
                _ => return Err(bad(key, value, "0, 1 or 2")),
            }
        }
        "timeout" => {
            let seconds: f64 = value.parse().unwrap_or(f64::NAN);
            if !(0.0..).contains(&seconds) {
                return Err(bad(key, value, "seconds"));
            }
            options.timeout = Duration::from_secs_f64(seconds.min(TIMEOUT_SECONDS_MAX));
        }
        "writeback" => options.writeback = switch(key, value)?,
        "fsname" => options.source = Some(value.into()),
        _ => return set_own(options, key, value),
    }
    Ok(())
}

/// Options that only this program has.
fn set_own(options: &mut Options, key: &str, value: &str) -> Result<(), OptionError> {
    match key {
        "chunk" => {
            let bytes = size(key, value)?;
            let is_valid =
                bytes == 0 || ((4096..=4 << 20).contains(&bytes) && bytes.is_power_of_two());
            if !is_valid {
                return Err(bad(key, value, "0 or a power of two from 4K to 4M"));
            }
            options.chunk_bytes = bytes as u32;
        }
        "fill" => {
            options.fill = match value {
                "background" => FillMode::Background,
                "keep" => FillMode::Keep,
                "unmount" => FillMode::Unmount,
                _ => return Err(bad(key, value, "background, keep or unmount")),
            }
        }
        "passthrough" => {
            options.passthrough = match value {
                "off" => Pass::Off,
                "programs" => Pass::Programs,
                "lower" => Pass::Lower,
                _ => return Err(bad(key, value, "off, programs or lower")),
            }
        }
        "fill_rate" => options.fill_rate_bytes = size(key, value)?,
        "fill_free" => {
            let percent = number(key, value)?;
            if percent > 99 {
                return Err(bad(key, value, "0 to 99 percent"));
            }
            options.fill_free_percent = percent as u8;
        }
        "batch_files" => {
            let files = number(key, value)?;
            if !(1..=4096).contains(&files) {
                return Err(bad(key, value, "1 to 4096"));
            }
            options.batch_files_max = files as usize;
        }
        "batch_bytes" => options.batch_bytes_max = size(key, value)?,
        "batch_ms" => {
            let milliseconds = number(key, value)?;
            if milliseconds > 10_000 {
                return Err(bad(key, value, "0 to 10000"));
            }
            options.batch_time = Duration::from_millis(milliseconds);
        }
        _ => return Err(OptionError::Unknown(format!("{key}={value}"))),
    }
    Ok(())
}

fn bad(option: &str, value: &str, expected: &'static str) -> OptionError {
    OptionError::Value { option: option.into(), value: value.into(), expected }
}

fn switch(key: &str, value: &str) -> Result<bool, OptionError> {
    match value {
        "on" | "yes" | "1" => Ok(true),
        "off" | "no" | "0" => Ok(false),
        _ => Err(bad(key, value, "on or off")),
    }
}

/// Returns a number of 32 bits.
fn number(key: &str, value: &str) -> Result<u64, OptionError> {
    let number = value.parse::<u32>().map_err(|_| bad(key, value, "a number below 2^32"))?;
    Ok(number.into())
}

/// Bytes, with an optional K, M or G (of 1024).
fn size(key: &str, value: &str) -> Result<u64, OptionError> {
    let error = || bad(key, value, "a number of bytes, with K, M or G at choice");
    let (digits, shift) = match value.as_bytes().last() {
        Some(b'k' | b'K') => (&value[..value.len() - 1], 10),
        Some(b'm' | b'M') => (&value[..value.len() - 1], 20),
        Some(b'g' | b'G') => (&value[..value.len() - 1], 30),
        _ => (value, 0),
    };
    let number: u64 = digits.parse().map_err(|_| error())?;
    number.checked_mul(1 << shift).ok_or_else(error)
}

/// `DISK:SHOWN:COUNT[:DISK:SHOWN:COUNT…]`
fn id_map(key: &str, value: &str) -> Result<Vec<IdRange>, OptionError> {
    let error = || bad(key, value, "DISK-ID:SHOWN-ID:COUNT, several of them joined by colons");
    let numbers: Result<Vec<u32>, _> = value.split(':').map(str::parse).collect();
    let numbers = numbers.map_err(|_| error())?;
    let (ranges, rest) = numbers.as_chunks::<3>();
    let fits = |&[disk, shown, count]: &[u32; 3]| {
        count > 0 && disk.checked_add(count - 1).is_some() && shown.checked_add(count - 1).is_some()
    };
    if !rest.is_empty() || ranges.is_empty() || !ranges.iter().all(fits) {
        return Err(error());
    }
    Ok(ranges.iter().map(|&[disk, shown, count]| IdRange { disk, shown, count }).collect())
}
