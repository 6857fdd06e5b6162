//! Options as an option string, for opening the same layers later or elsewhere.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::{
    FillMode, IdRange, Options, OwnerXattr, RedirectMode, SyncMode, XattrClass, is_layer_key, split,
};
use crate::error::UnionError;

impl Options {
    /// Returns the option string that names these layers; what [`Options::parse`] reads back.
    pub fn layers_text(lower: &[&Path], upper: Option<(&Path, &Path)>) -> OsString {
        OsString::from_vec(layers(lower, 0, upper))
    }

    /// Returns the same layers by paths that mean the same in any directory, and without symbolic
    /// links. A lower directory keeps a path that does not lead through names (`/proc/self/fd/5`).
    ///
    /// # Errors
    /// If the upper, work or current directory cannot be found.
    pub(crate) fn with_real_paths(&self) -> Result<Self, UnionError> {
        let error =
            |what, path: &Path, source| UnionError::Layer { what, path: path.into(), source };
        let real = |what, path: &Option<PathBuf>| match path {
            Some(path) => path.canonicalize().map(Some).map_err(|source| error(what, path, source)),
            None => Ok(None),
        };
        let lower = self.lower.iter().map(|path| {
            let absolute = path.canonicalize().or_else(|_| std::path::absolute(path));
            absolute.map_err(|source| error("lowerdir", path, source))
        });
        let (upper, work) = (real("upperdir", &self.upper)?, real("workdir", &self.work)?);
        Ok(Self { lower: lower.collect::<Result<_, _>>()?, upper, work, ..self.clone() })
    }

    /// Returns an option string with these layers instead of those that it names.
    pub(crate) fn replace_layers(&self, text: &[u8]) -> Vec<u8> {
        let key = |part: &[u8]| {
            let key = part.split(|&byte| byte == b'=').next().unwrap_or_default();
            String::from_utf8_lossy(key).into_owned()
        };
        let mut parts = split::at_commas(text);
        parts.retain(|part| !part.is_empty() && !is_layer_key(&key(part)));
        let layers = self.layers();
        parts.push(&layers);
        parts.join(&b',')
    }

    /// Everything that decides the meaning of the layers, in the form that [`Options::parse`]
    /// reads. Options for the look and the speed of the mount are left out.
    pub(crate) fn text(&self) -> Vec<u8> {
        let mut parts = vec![self.layers()];
        let mut add = |text: String| parts.push(text.into_bytes());
        if self.xattrs == XattrClass::User {
            add("userxattr".into());
        }
        let redirect = match self.redirect {
            RedirectMode::On => "on",
            RedirectMode::Follow => "follow",
            RedirectMode::NoFollow => "nofollow",
        };
        let sync = match self.sync {
            SyncMode::Auto => "auto",
            SyncMode::Strict => "strict",
            SyncMode::Volatile => "volatile",
        };
        let fill = match self.fill {
            FillMode::Background => "background",
            FillMode::Keep => "keep",
            FillMode::Unmount => "unmount",
        };
        let switch = |is_on| if is_on { "on" } else { "off" };
        add(format!("redirect_dir={redirect},fsync={sync},fill={fill},chunk={}", self.chunk_bytes));
        add(format!("index={},xino={}", switch(self.index), switch(self.xino)));
        if self.sync_whole_file_system {
            add("sync=fs".into());
        }
        for (key, ranges) in [("uidmapping", &self.uid_map), ("gidmapping", &self.gid_map)] {
            if !ranges.is_empty() {
                add(format!("{key}={}", map_text(ranges)));
            }
        }
        for (key, id) in [("squash_to_uid", self.squash_uid), ("squash_to_gid", self.squash_gid)] {
            if let Some(id) = id {
                add(format!("{key}={id}"));
            }
        }
        match self.owner_xattr {
            None => {}
            Some(OwnerXattr::Security) => add("xattr_permissions=1".into()),
            // The older form is found in the layers.
            Some(OwnerXattr::Containers | OwnerXattr::FuseOverlayfs) => {
                add("xattr_permissions=2".into());
            }
        }
        if self.no_acl {
            add("noacl".into());
        }
        parts.join(&b',')
    }

    fn layers(&self) -> Vec<u8> {
        let lower: Vec<&Path> = self.lower.iter().map(PathBuf::as_path).collect();
        layers(&lower, self.data_only_count, self.upper.as_deref().zip(self.work.as_deref()))
    }
}

/// Returns the last `data_only` lower layers hold data only.
fn layers(lower: &[&Path], data_only: usize, upper: Option<(&Path, &Path)>) -> Vec<u8> {
    let escaped = |path: &&Path| split::escape(path.as_os_str().as_bytes());
    let (merged, data) = lower.split_at(lower.len() - data_only);
    let mut text = b"lowerdir=".to_vec();
    text.extend(merged.iter().map(escaped).collect::<Vec<_>>().join(&b':'));
    for path in data {
        text.extend_from_slice(b"::");
        text.extend(escaped(path));
    }
    if let Some((upper, work)) = upper {
        for (key, path) in [(&b",upperdir="[..], upper), (b",workdir=", work)] {
            text.extend_from_slice(key);
            text.extend(escaped(&path));
        }
    }
    text
}

fn map_text(ranges: &[IdRange]) -> String {
    let text = |range: &IdRange| format!("{}:{}:{}", range.disk, range.shown, range.count);
    ranges.iter().map(text).collect::<Vec<_>>().join(":")
}
