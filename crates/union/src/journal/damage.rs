//! Durable records that are missing: their place, and a description.

use std::fmt;

use super::mark;
use super::types::{SegmentId, Sequence};

/// A place where durable records are missing, or where it cannot be known whether some are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// What is wrong there.
    pub kind: DamageKind,
    /// The segment.
    pub segment: SegmentId,
    /// The last record before it.
    pub after: Sequence,
    /// The first whole record behind it, if there is one.
    pub resumes: Option<Sequence>,
}

/// What is wrong with a part of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamageKind {
    /// Records in the segment cannot be read.
    Records,
    /// The segment's header cannot be read, and so none of its records.
    Header,
    /// The segment's file is missing.
    Missing,
    /// The file of marks is missing or destroyed: it is not known how far the log should go.
    Marks,
    /// The file of marks belongs to another log: its segments were replaced.
    Strange,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { segment, after, .. } = self;
        match self.kind {
            DamageKind::Records => {
                write!(f, "segment {segment}.log: records after number {after} cannot be read")?;
            }
            DamageKind::Header => write!(f, "segment {segment}.log: its header is destroyed")?,
            DamageKind::Missing => write!(f, "segment {segment}.log is missing")?,
            DamageKind::Marks => {
                return write!(
                    f,
                    "{} is missing or destroyed: it is not known where the journal should end",
                    mark::NAME
                );
            }
            DamageKind::Strange => {
                return write!(f, "the segments and {} are of different journals", mark::NAME);
            }
        }
        match self.resumes {
            Some(resumes) if resumes.0 > after.0 + 1 => {
                write!(f, " (lost: up to number {})", resumes.0 - 1)
            }
            _ => Ok(()),
        }
    }
}

/// Several of them, as one sentence.
pub(super) fn in_words(damage: &[Damage]) -> String {
    let words: Vec<String> = damage.iter().map(Damage::to_string).collect();
    words.join("; ")
}
