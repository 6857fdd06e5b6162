//! Cutting an option string into its parts, with the escapes that mount(8), fuse-overlayfs and the
//! kernel's overlayfs know.
//!
//! A backslash makes the next byte an ordinary one; in a list of layers `\:` is a colon of a path.
//! A value in double quotes, as mount(8) passes security contexts, may hold commas.

/// Cuts at commas that are neither escaped nor quoted. Escapes stay as they are, since a value may
/// be cut again.
pub(super) fn at_commas(text: &[u8]) -> Vec<&[u8]> {
    cut(text, b',', true)
}

/// Cuts a list of layers at its colons; empty parts stay (`::` begins data-only layers).
pub(super) fn at_colons(text: &[u8]) -> Vec<&[u8]> {
    cut(text, b':', false)
}

fn cut(text: &[u8], separator: u8, with_quotes: bool) -> Vec<&[u8]> {
    let mut parts = Vec::new();
    let (mut start, mut at, mut is_quoted) = (0, 0, false);
    while at < text.len() {
        match text[at] {
            b'\\' => at += 1,
            // Quotes count only right behind the equals sign, so that a path may hold one.
            b'"' if with_quotes && (is_quoted || (at > 0 && text[at - 1] == b'=')) => {
                is_quoted = !is_quoted;
            }
            byte if byte == separator && !is_quoted => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
        at += 1;
    }
    parts.push(&text[start.min(text.len())..]);
    parts
}

/// Removes escapes: a backslash stands for the byte behind it, at the end for itself.
pub(super) fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b'\\' => out.push(bytes.next().copied().unwrap_or(b'\\')),
            _ => out.push(byte),
        }
    }
    out
}

/// Escapes a path for a list of layers in an option string.
pub(super) fn escape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for &byte in path {
        if matches!(byte, b'\\' | b',' | b':' | b'"') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    out
}
