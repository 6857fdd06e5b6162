//! Sizes as people write them: a number with a binary suffix.

/// Parses a number of bytes: digits, then nothing or one of K, M, G, T (binary, also as `KiB`).
///
/// # Errors
/// The fault in the text.
pub(in crate::commands) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size: write e.g. 4096, 512M or 4G");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let shift = match suffix.to_ascii_lowercase().trim_end_matches("ib") {
        "" | "b" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text:?} is too large"))
}

/// Returns `bytes` in the largest binary unit that divides it.
pub(in crate::commands) fn format(bytes: u64) -> String {
    for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift && bytes.is_multiple_of(1 << shift) {
            return format!("{} {unit}", bytes >> shift);
        }
    }
    format!("{bytes} B")
}

/// For serde: the shortest text that [`parse`] reads.
#[allow(clippy::ref_option, reason = "serde gives the field")]
pub(super) fn serialize<S: serde::Serializer>(
    bytes: &Option<u64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(bytes) => serializer.serialize_str(&short(*bytes)),
        None => serializer.serialize_none(),
    }
}

/// Returns `bytes` in the form that [`parse`] reads.
pub(super) fn short(bytes: u64) -> String {
    format(bytes).replace("iB", "").replace(['B', ' '], "")
}

/// For serde: a number of bytes, or text for [`parse`].
pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<u64>, D::Error> {
    #[derive(serde::Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match <Size as serde::Deserialize>::deserialize(deserializer)? {
        Size::Bytes(bytes) => Ok(Some(bytes)),
        Size::Text(text) => parse(&text).map(Some).map_err(serde::de::Error::custom),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: suffixes are binary, and invalid sizes are refused.
    #[test]
    fn sizes_are_read() {
        assert_eq!(parse("512"), Ok(512));
        assert_eq!(parse("4k"), Ok(4096));
        for bytes in [0, 1000, 4096, 3 << 20, 5 << 40] {
            assert_eq!(parse(&short(bytes)), Ok(bytes));
        }
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("4GiB"), Ok(4 << 30));
        for wrong in ["", "G", "4X", "-1", "99999999999999999999", "16777216T"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        assert_eq!(format(512 << 20), "512 MiB");
        assert_eq!(format(4097), "4097 B");
    }
}
