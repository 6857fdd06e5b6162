//! The table of all texts of pages, charts and cards, in English and in Japanese.
//!
//! To add a text, add a line to the table, in the file of its topic (`messages/`): its key, the English, the
//! Japanese. Names in braces stand for values, in both languages. [`Language::text`] returns a text,
//! [`Language::say`] a text with values:
//!
//! ```
//! use base::messages::{Language, Message};
//! let said = Language::English.say(Message::RunsCounted, &[("all", &12), ("unused", &1)]);
//! assert_eq!(said, "12 runs were counted, 1 of them not used.");
//! ```
//!
//! Texts in one language only (JSON, output of commands) use [`Message::english`]. Names from experiments and
//! facts of the machine are not in the table: pages show them unchanged.

#[macro_use]
mod advice;
#[macro_use]
mod charts;
#[macro_use]
mod loads;
#[macro_use]
mod metrics;
#[macro_use]
mod pages;
#[macro_use]
mod report;
mod table;

use serde::Serialize;
use std::fmt::{Display, Write as _};

pub use table::Message;

/// A language of pages and charts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Language {
    /// English.
    #[default]
    English,
    /// Japanese.
    Japanese,
}

impl Language {
    /// All languages, with their codes (BCP 47).
    pub const ALL: &[(&'static str, Self)] = &[("en", Self::English), ("ja", Self::Japanese)];

    /// Returns the code.
    pub fn code(self) -> &'static str {
        Self::ALL.iter().find(|(_, language)| *language == self).map_or("", |(code, _)| code)
    }

    /// Returns the language with this code.
    pub fn of_code(code: &str) -> Option<Self> {
        Self::ALL.iter().find(|(it, _)| *it == code).map(|(_, language)| *language)
    }

    /// Returns a message without values.
    pub fn text(self, message: Message) -> &'static str {
        message.texts()[self as usize]
    }

    /// Returns a message with its values, by name.
    ///
    /// In debug builds a missing or superfluous value panics.
    pub fn say(self, message: Message, values: &[(&str, &dyn Display)]) -> String {
        self.fill(&Text(message.texts()), values)
    }

    /// Fills a text with its values, by name, with the same panics.
    pub fn fill(self, text: &Text, values: &[(&str, &dyn Display)]) -> String {
        let text = text.0[self as usize];
        debug_assert!(
            values.iter().all(|(name, _)| text.contains(&format!("{{{name}}}"))),
            "{text:?} has no place for one of its values"
        );
        let mut said = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, (name, after))) = next_place(rest) {
            said.push_str(before);
            rest = after;
            let value = values.iter().find(|(it, _)| *it == name);
            debug_assert!(value.is_some(), "{text:?} lacks {name}");
            // Writing to a string cannot fail.
            let _ = value.map_or(Ok(()), |(_, value)| write!(said, "{value}"));
        }
        said.push_str(rest);
        said
    }

    /// Returns a count with its noun, for example "3 runs".
    pub fn several(self, count: u32, thing: Message) -> String {
        match self {
            Self::English => crate::units::several(count, self.text(thing)),
            Self::Japanese => format!("{count} {}", self.text(thing)),
        }
    }

    /// Returns the plural of a noun.
    pub fn plural(self, thing: Message) -> String {
        match self {
            Self::English => crate::units::plural(self.text(thing)),
            Self::Japanese => self.text(thing).into(),
        }
    }

    /// Returns a text that was stored in English: translated if it is a message, otherwise unchanged.
    pub fn of_stored(self, text: &str) -> String {
        let message = Message::ALL.iter().find(|message| message.english() == text);
        message.map_or(text.into(), |message| self.text(*message).into())
    }
}

/// A text outside the table, in English and in Japanese: a text of one part, such as an engine of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Text(pub [&'static str; 2]);

impl Message {
    /// Returns the English text.
    pub fn english(self) -> &'static str {
        Language::English.text(self)
    }
}

/// Returns the text before the next placeholder, its name, and the text after it.
fn next_place(text: &str) -> Option<(&str, (&str, &str))> {
    let (before, rest) = text.split_once('{')?;
    Some((before, rest.split_once('}')?))
}

/// JSON is always in English.
impl Serialize for Message {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.english())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn places(text: &str) -> BTreeSet<&str> {
        let mut found = BTreeSet::new();
        let mut rest = text;
        while let Some((_, (name, after))) = next_place(rest) {
            found.insert(name);
            rest = after;
        }
        found
    }

    /// Goal: each message exists once, in each language, with the same values.
    #[test]
    fn messages_are_in_all_languages() {
        let mut seen = BTreeSet::new();
        for message in Message::ALL {
            let [english, japanese] = message.texts();
            assert!(!english.trim().is_empty() && !japanese.trim().is_empty(), "{message:?}");
            assert_eq!(places(english), places(japanese), "{message:?}");
            for text in [english, japanese] {
                assert_eq!(text.matches('{').count(), text.matches('}').count(), "{message:?}");
            }
            assert!(seen.insert(english), "{message:?}: {english:?} is there twice");
            let said = places(english)
                .iter()
                .fold(english.to_string(), |said, name| said.replace(&format!("{{{name}}}"), ""));
            let has_words = said.chars().filter(char::is_ascii_lowercase).count() > 3;
            assert!(!has_words || english != japanese, "{message:?} is not translated");
        }
    }

    /// Goal: values are filled in whatever their order, and codes name languages.
    #[test]
    fn values_get_to_their_places() {
        let values: [(&str, &dyn Display); 2] = [("all", &12), ("unused", &"a {brace}")];
        for (code, language) in Language::ALL {
            let said = language.say(Message::RunsCounted, &values);
            assert!(said.contains("12") && said.contains("a {brace}"), "{said}");
            assert_eq!(Language::of_code(code), Some(*language));
            assert_eq!(language.code(), *code);
        }
        assert_eq!(Language::of_code("xx"), None);
        assert_eq!(Language::English.several(1, Message::Process), "1 process");
        assert_eq!(Language::English.plural(Message::Process), "processes");
        assert_eq!(Language::Japanese.several(2, Message::Job), "2 ジョブ");
        assert_eq!(
            Language::Japanese.of_stored("the limit of time was reached"),
            "時間の上限に達した"
        );
        assert_eq!(Language::Japanese.of_stored("another"), "another");
    }
}
