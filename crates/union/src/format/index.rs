//! How the index names inodes and counts their links, as the kernel does (`ovl_get_index_name`,
//! `ovl_get_nlink`).
//!
//! An entry of the index is named by its origin: the `origin` attribute's value in hexadecimal. The
//! original has further names in the lower layers. So the attribute `nlink` keeps the links of both
//! together, as the difference to the links of the upper (`U`) or the lower (`L`) inode: of the one
//! that does not change while the other one does.

/// The inode whose link count is the base of the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinksOf {
    /// The upper one's.
    Upper,
    /// The lower one's.
    Lower,
}

/// Returns the name of an origin's entry.
pub(crate) fn name_of(origin: &[u8]) -> Box<[u8]> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = |byte: &u8| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    origin.iter().flat_map(digits).collect()
}

/// Returns the value of the attribute `nlink` of an inode with this number of links in the union.
pub(crate) fn links_value(of: LinksOf, union: u32, there: u32) -> Vec<u8> {
    let letter = match of {
        LinksOf::Upper => 'U',
        LinksOf::Lower => 'L',
    };
    format!("{letter}{:+}", i64::from(union) - i64::from(there)).into_bytes()
}

/// Returns the links in the union, from the link counts of an upper and a lower inode; `None` if
/// the value is invalid.
pub(crate) fn links(value: &[u8], upper: u32, lower: u32) -> Option<u32> {
    let (&letter, difference) = value.split_first()?;
    let there = match letter {
        b'U' => upper,
        b'L' => lower,
        _ => return None,
    };
    if !matches!(difference.first(), Some(b'+' | b'-')) {
        return None;
    }
    let difference: i32 = std::str::from_utf8(difference).ok()?.parse().ok()?;
    u32::try_from(i64::from(there) + i64::from(difference)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Goal: names and values are those that the kernel writes.
    #[test]
    fn names_and_values_are_the_kernels() {
        assert_eq!(&*name_of(&[0, 0xfb, 0x1d]), b"00fb1d");
        assert_eq!(links_value(LinksOf::Upper, 2, 1), b"U+1");
        assert_eq!(links_value(LinksOf::Lower, 2, 2), b"L+0");
        assert_eq!(links_value(LinksOf::Upper, 1, 2), b"U-1");
    }

    proptest! {
        /// Goal: what is written reads back, and no bytes make the reader panic.
        #[test]
        fn values_read_back(union in 0..1_000_000_u32, there in 0..1_000_000_u32, noise in any::<Vec<u8>>()) {
            let upper = links_value(LinksOf::Upper, union, there);
            prop_assert_eq!(links(&upper, there, 7), Some(union));
            let lower = links_value(LinksOf::Lower, union, there);
            prop_assert_eq!(links(&lower, 7, there), Some(union));
            let _ = links(&noise, 1, 1);
        }
    }
}
