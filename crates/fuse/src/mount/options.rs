//! Mount options, and their form for mount(2) and for `fusermount3`.

use crate::error::FuseError;

/// The options of a mount. Unless allowed here, mounts are `nosuid` and `nodev`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountOptions {
    /// The device name in `df` and the mount table.
    pub fs_name: String,
    /// The part of the type behind `fuse.`.
    pub subtype: String,
    /// Lets other users access the mount. Without root this needs `user_allow_other` in
    /// `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Lets the kernel check permissions by mode, owner and ACL.
    pub default_permissions: bool,
    /// Read-only.
    pub read_only: bool,
    /// Honours suid bits (root only).
    pub allow_suid: bool,
    /// Honours device nodes (root only).
    pub allow_devices: bool,
    /// Refuses to execute files.
    pub no_exec: bool,
    /// Keeps no access times.
    pub no_atime: bool,
    /// Most bytes of one READ; the kernel's own limit if `None`.
    pub max_read_bytes: Option<u32>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            fs_name: "tsumugi".into(),
            subtype: "tsumugi".into(),
            allow_other: false,
            default_permissions: true,
            read_only: false,
            allow_suid: false,
            allow_devices: false,
            no_exec: false,
            no_atime: false,
            max_read_bytes: None,
        }
    }
}

impl MountOptions {
    /// Refuses values that cannot be passed on.
    pub(super) fn check(&self) -> Result<(), FuseError> {
        for (name, value) in [("fsname", &self.fs_name), ("subtype", &self.subtype)] {
            let reason = if value.is_empty() {
                "must not be empty"
            } else if value.bytes().any(|byte| matches!(byte, 0 | b',' | b'\\' | b'\n')) {
                "must not contain a comma, backslash, newline or NUL"
            } else {
                continue;
            };
            return Err(FuseError::Option { option: format!("{name}={value}"), reason });
        }
        Ok(())
    }

    /// Returns the file system type for mount(2).
    pub(super) fn type_name(&self) -> String {
        format!("fuse.{}", self.subtype)
    }

    /// Returns the options for the FUSE module.
    pub(super) fn mount_data(&self, device: i32) -> String {
        let uid = rustix::process::getuid().as_raw();
        let gid = rustix::process::getgid().as_raw();
        let mut data = format!("fd={device},rootmode=40000,user_id={uid},group_id={gid}");
        self.push_common(&mut data);
        data
    }

    /// Returns the options for `fusermount3`.
    pub(super) fn helper_options(&self) -> String {
        let mut data = format!("fsname={},subtype={}", self.fs_name, self.subtype);
        for (is_set, option) in [
            (self.read_only, ",ro"),
            (self.allow_suid, ",suid"),
            (self.allow_devices, ",dev"),
            (self.no_exec, ",noexec"),
            (self.no_atime, ",noatime"),
        ] {
            if is_set {
                data.push_str(option);
            }
        }
        self.push_common(&mut data);
        data
    }

    fn push_common(&self, data: &mut String) {
        if self.allow_other {
            data.push_str(",allow_other");
        }
        if self.default_permissions {
            data.push_str(",default_permissions");
        }
        if let Some(max_read_bytes) = self.max_read_bytes {
            data.push_str(",max_read=");
            data.push_str(&max_read_bytes.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: values with separators, which would add other options, are refused.
    #[test]
    fn separators_are_refused() {
        for name in ["", "a,allow_other", "a\\", "a\n"] {
            let options = MountOptions { fs_name: name.into(), ..MountOptions::default() };
            assert!(matches!(options.check(), Err(FuseError::Option { .. })), "{name:?}");
        }
        assert!(MountOptions::default().check().is_ok());
    }

    /// Goal: both forms contain all options that were set.
    #[test]
    fn both_forms_carry_all_options() {
        let options = MountOptions {
            allow_other: true,
            read_only: true,
            no_exec: true,
            max_read_bytes: Some(65_536),
            ..MountOptions::default()
        };
        let common = ",allow_other,default_permissions,max_read=65536";
        assert_eq!(
            options.helper_options(),
            format!("fsname=tsumugi,subtype=tsumugi,ro,noexec{common}")
        );
        let data = options.mount_data(7);
        assert!(data.starts_with("fd=7,rootmode=40000,user_id="), "{data}");
        assert!(data.ends_with(common), "{data}");
    }
}
