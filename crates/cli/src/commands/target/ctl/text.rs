//! Arguments of requests as text, with absolute paths.

use crate::commands::target::hosts::HostSettings;
use crate::commands::target::namespace::NamespaceSettings;
use crate::commands::target::size;

/// Makes a path absolute, because the target may have another working directory.
fn absolute(path: &str) -> Result<String, String> {
    let absolute = std::path::absolute(path).map_err(|error| format!("{path:?}: {error}"))?;
    absolute.into_os_string().into_string().map_err(|_| format!("{path:?} is not in UTF-8"))
}

pub(super) fn namespace_text(text: &str) -> Result<String, String> {
    text.parse::<NamespaceSettings>()?;
    let (what, options) = text.split_at(text.find(',').unwrap_or(text.len()));
    match what.strip_prefix("file:") {
        Some(path) => Ok(format!("file:{}{options}", absolute(path)?)),
        None => Ok(text.to_owned()),
    }
}

pub(super) fn host_text(text: &str) -> Result<String, String> {
    text.parse::<HostSettings>()?;
    let parts = text.split(',').map(|part| match part.split_once('=') {
        Some((name @ ("dhchap-key" | "dhchap-ctrl-key" | "tls-key"), file)) => {
            Ok(format!("{name}={}", absolute(file)?))
        }
        _ => Ok(part.to_owned()),
    });
    Ok(parts.collect::<Result<Vec<_>, String>>()?.join(","))
}

pub(super) fn size_text(text: &str) -> Result<String, String> {
    size::parse(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: paths in requests are absolute, and the rest is unchanged.
    #[test]
    fn files_are_named_from_the_root() {
        let here = |file: &str| std::path::absolute(file).unwrap().display().to_string();
        let of = |text: &str| namespace_text(text).unwrap();
        assert_eq!(of("file:disk,size=4G"), format!("file:{},size=4G", here("disk")));
        for kept in ["file:/x", "/dev/x,read-only", "memory:1M,nsid=3"] {
            assert_eq!(of(kept), kept);
        }
        let host = "nqn.2026-01.io.tsumugi:h";
        let written = format!("{host},dhchap-key=k,dhchap-hash=sha384,tls-key=/t,tls-compat");
        let expected =
            format!("{host},dhchap-key={},dhchap-hash=sha384,tls-key=/t,tls-compat", here("k"));
        assert_eq!(host_text(&written).unwrap(), expected);
        assert!(namespace_text("disk").is_err() && host_text("h").is_err());
    }
}
