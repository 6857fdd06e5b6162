//! How many threads serve connections.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::str::FromStr;

/// A number of threads, or one for each CPU that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CoreCount {
    Number(usize),
    All,
}

impl CoreCount {
    /// Maximum number of threads.
    const MAX: u64 = 1024;

    /// Returns the number of threads. CPUs are those of the process's affinity, at most as many as
    /// its cgroup's quota allows.
    pub(super) fn get(self) -> usize {
        match self {
            Self::Number(number) => number,
            Self::All => std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl FromStr for CoreCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let number = text.parse().ok().filter(|number| (1..=Self::MAX).contains(number));
        let number =
            number.ok_or_else(|| format!("give `all` or a number from 1 to {}", Self::MAX));
        number.map(|number| Self::Number(number as usize))
    }
}

impl fmt::Display for CoreCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::All => f.pad("all"),
        }
    }
}

/// A number, or `"all"`.
impl Serialize for CoreCount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number as u64),
            Self::All => serializer.serialize_str("all"),
        }
    }
}

impl<'de> Deserialize<'de> for CoreCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = CoreCount;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"all\" or a number of threads")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<CoreCount, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<CoreCount, E> {
                number.to_string().parse().map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<CoreCount, E> {
                number.to_string().parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::target::config::Settings;

    /// Goal: the number and the word are read from option and file, are written unchanged, and
    /// nothing else is accepted.
    #[test]
    fn cores_are_read() {
        let of = |text: &str| toml::from_str::<Settings>(text).map(|it| it.cores);
        assert_eq!(of("cores = \"all\"\n").unwrap(), Some(CoreCount::All));
        assert_eq!(of("cores = 3\n").unwrap(), Some(CoreCount::Number(3)));
        assert_eq!("all".parse(), Ok(CoreCount::All));
        assert_eq!("2".parse::<CoreCount>().unwrap().get(), 2);
        assert!(CoreCount::All.get() >= 1);
        for wrong in ["0", "-1", "1025", "\"many\"", "1.5"] {
            assert!(of(&format!("cores = {wrong}\n")).is_err(), "{wrong}");
            assert!(wrong.parse::<CoreCount>().is_err(), "{wrong}");
        }
        let settings = Settings { cores: Some(CoreCount::All), ..Settings::default() };
        assert!(toml::to_string(&settings).unwrap().contains("cores = \"all\""));
    }
}
