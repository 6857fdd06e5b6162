//! Sizes in bytes on the command line, and in output.

/// Parses a size such as `2G`, `512M` or `4096`.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    match node::parse_bytes(text)? {
        0 => Err("0 bytes is too little".into()),
        size => Ok(size),
    }
}

/// Returns bytes with a binary unit and three digits.
pub(crate) fn human(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in ["KiB", "MiB", "GiB", "TiB", "PiB"] {
        if value < 1024.0 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    let decimals = usize::from(unit != "B" && value < 100.0);
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes read well at the borders of units.
    #[test]
    fn sizes_are_readable() {
        assert_eq!(human(0), "0 B");
        assert_eq!(human(1023), "1023 B");
        assert_eq!(human(1536), "1.5 KiB");
        assert_eq!(human(200 << 20), "200 MiB");
        assert_eq!(human(3 << 40), "3.0 TiB");
        assert!(parse("0").is_err());
        assert_eq!(parse("2G"), Ok(2 << 30));
    }
}
