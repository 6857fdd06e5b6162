//! Keys of tables in experiment files, by declaration: a table takes the keys that its declarations name, each
//! with its form and its place in the file.

use base::{Error, KeyError, units};
use serde::de::{Error as _, MapAccess};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;
use toml::{Spanned, Value as Toml};

/// A value with its place.
pub type Placed<T> = Spanned<T>;

/// A key that a table may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// The form of its value.
    pub form: Form,
}

/// Forms of values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// A list of texts.
    Texts,
    /// A number from 0.
    Count,
    /// A list of them.
    Counts,
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// Yes or no.
    Truth,
    /// A table of anything.
    Table,
    /// Anything.
    Any,
}

impl Key {
    /// A key of a form.
    pub const fn new(name: &'static str, form: Form) -> Self {
        Self { name, form }
    }
}

/// A value of one of the forms.
#[derive(Clone, Debug)]
enum Value {
    Text(String),
    Texts(Vec<String>),
    Count(u32),
    Counts(Vec<u32>),
    Integer(i64),
    Number(f64),
    Truth(bool),
    Any(Toml),
}

/// The values of a table by their keys.
#[derive(Clone, Debug, Default)]
pub struct Values(BTreeMap<&'static str, Placed<Value>>);

impl Values {
    /// Reads a table that may have these keys; `names` are their names, for an error.
    pub(crate) fn read<'de, A: MapAccess<'de>>(
        mut map: A,
        keys: &[Key],
        names: &'static [&'static str],
    ) -> Result<Self, A::Error> {
        let mut values = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            let Some(key) = keys.iter().find(|key| key.name == name) else {
                return Err(A::Error::unknown_field(&name, names));
            };
            values.insert(key.name, next(&mut map, key.form)?);
        }
        Ok(Self(values))
    }

    /// Fails where a key is not given.
    pub(crate) fn demand<E: serde::de::Error>(&self, name: &'static str) -> Result<(), E> {
        if self.0.contains_key(name) { Ok(()) } else { Err(E::missing_field(name)) }
    }
}

/// Reads the next value of a table.
fn next<'de, A: MapAccess<'de>>(map: &mut A, form: Form) -> Result<Placed<Value>, A::Error> {
    fn placed<T>(of: Spanned<T>, value: impl FnOnce(T) -> Value) -> Placed<Value> {
        let span = of.span();
        Spanned::new(span, value(of.into_inner()))
    }
    Ok(match form {
        Form::Text => placed(map.next_value()?, Value::Text),
        Form::Texts => placed(map.next_value()?, Value::Texts),
        Form::Count => placed(map.next_value()?, Value::Count),
        Form::Counts => placed(map.next_value()?, Value::Counts),
        Form::Integer => placed(map.next_value()?, Value::Integer),
        Form::Number => placed(map.next_value()?, Value::Number),
        Form::Truth => placed(map.next_value()?, Value::Truth),
        Form::Table => placed(map.next_value()?, |table| Value::Any(Toml::Table(table))),
        Form::Any => placed(map.next_value()?, Value::Any),
    })
}

/// The text of a file, to find lines in.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a>(pub &'a str);

impl Source<'_> {
    /// Returns the error of a place and key.
    pub fn error(self, at: &Range<usize>, key: &str, message: impl Into<String>) -> Error {
        let start = at.start.min(self.0.len());
        let line = self.0.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
        KeyError { line, key: key.into(), message: message.into() }.into()
    }

    /// Reads a time.
    pub fn time(self, at: &Placed<String>, key: &str) -> Result<Duration, Error> {
        units::parse_time(at.get_ref()).map_err(|why| self.error(&at.span(), key, why.to_string()))
    }

    /// Reads a size.
    pub fn bytes(self, at: &Placed<String>, key: &str) -> Result<u64, Error> {
        units::parse_bytes(at.get_ref()).map_err(|why| self.error(&at.span(), key, why.to_string()))
    }

    /// Finds what a name stands for.
    pub fn choose<T: Copy>(
        self,
        at: &Placed<String>,
        key: &str,
        choices: &[(&str, T)],
    ) -> Result<T, Error> {
        find(at.get_ref(), choices).map_err(|why| self.error(&at.span(), key, why.to_string()))
    }
}

/// A name that is none of those there are.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is not known: there are {}", known.join(", "))]
pub struct Unknown {
    name: String,
    known: Vec<String>,
}

/// Finds what a name stands for.
pub fn find<T: Copy>(name: &str, choices: &[(&str, T)]) -> Result<T, Unknown> {
    let found = choices.iter().find(|(choice, _)| *choice == name).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let known = choices.iter().map(|(choice, _)| (*choice).to_string()).collect();
        Unknown { name: name.into(), known }
    })
}

/// A table, with what its errors call it.
#[derive(Clone, Debug)]
pub struct Table<'a> {
    source: Source<'a>,
    values: &'a Values,
    at: Range<usize>,
    /// What keys are called: this, and their names.
    head: String,
    /// What needs a key that is missing.
    owner: String,
}

/// A value that a table has.
#[derive(Clone, Debug)]
pub struct Given<'a, T: ?Sized> {
    /// It.
    pub value: &'a T,
    at: Range<usize>,
}

impl<'a> Table<'a> {
    pub(crate) fn new<T>(
        source: Source<'a>,
        values: &'a Values,
        at: &Placed<T>,
        (head, owner): (String, String),
    ) -> Self {
        Self { source, values, at: at.span(), head, owner }
    }

    /// Returns a key's full name.
    pub fn key(&self, what: &str) -> String {
        format!("{}{what}", self.head)
    }

    /// Returns the error of a value.
    pub fn error<T: ?Sized>(
        &self,
        given: &Given<'_, T>,
        what: &str,
        message: impl Into<String>,
    ) -> Error {
        self.source.error(&given.at, &self.key(what), message)
    }

    /// Returns the error of the table as a whole.
    pub fn wrong(&self, what: &str, message: impl Into<String>) -> Error {
        self.source.error(&self.at, &self.key(what), message)
    }

    /// Returns the error of the table under its own name.
    pub fn wrong_level(&self, message: impl Into<String>) -> Error {
        self.source.error(&self.at, self.head.trim_end_matches('.'), message)
    }

    /// Returns the error of a key that is missing.
    pub fn missing(&self, what: &str) -> Error {
        self.wrong(what, format!("{} needs it", self.owner))
    }

    fn get(&self, what: &str) -> Option<(&'a Value, Range<usize>)> {
        self.values.0.get(what).map(|placed| (placed.get_ref(), placed.span()))
    }
}

/// Accessors by form: a key of another form is not there.
macro_rules! forms {
    ($($method:ident: $form:ident, $type:ty, $doc:literal;)*) => {
        impl<'a> Table<'a> {
            $(#[doc = $doc]
            pub fn $method(&self, what: &str) -> Option<Given<'a, $type>> {
                match self.get(what)? {
                    (Value::$form(value), at) => Some(Given { value, at }),
                    (other, _) => {
                        debug_assert!(false, "{what} is declared as {other:?}");
                        None
                    }
                }
            })*
        }
    };
}

forms! {
    text: Text, str, "Returns a text.";
    texts: Texts, [String], "Returns a list of texts.";
    count: Count, u32, "Returns a number from 0.";
    counts: Counts, [u32], "Returns a list of numbers from 0.";
    integer: Integer, i64, "Returns a whole number.";
    number: Number, f64, "Returns a number.";
    truth: Truth, bool, "Returns yes or no.";
    any: Any, Toml, "Returns a value of no form.";
}

impl<'a> Table<'a> {
    /// Returns a text that has to be there.
    pub fn need_text(&self, what: &str) -> Result<Given<'a, str>, Error> {
        self.text(what).ok_or_else(|| self.missing(what))
    }

    /// Finds what the text of a key stands for; `None` where there is none.
    pub fn choose<T: Copy>(&self, what: &str, choices: &[(&str, T)]) -> Result<Option<T>, Error> {
        let Some(given) = self.text(what) else { return Ok(None) };
        find(given.value, choices)
            .map(Some)
            .map_err(|why| self.error(&given, what, why.to_string()))
    }

    /// Finds what the text of a key stands for, which has to be there.
    pub fn need_choice<T: Copy>(&self, what: &str, choices: &[(&str, T)]) -> Result<T, Error> {
        self.choose(what, choices)?.ok_or_else(|| self.missing(what))
    }

    /// Reads a size.
    pub fn bytes(&self, what: &str) -> Result<Option<u64>, Error> {
        let Some(given) = self.text(what) else { return Ok(None) };
        units::parse_bytes(given.value)
            .map(Some)
            .map_err(|why| self.error(&given, what, why.to_string()))
    }

    /// Reads a time.
    pub fn time(&self, what: &str) -> Result<Option<Duration>, Error> {
        let Some(given) = self.text(what) else { return Ok(None) };
        units::parse_time(given.value)
            .map(Some)
            .map_err(|why| self.error(&given, what, why.to_string()))
    }

    /// Returns yes or no; no where neither is given.
    pub fn is_set(&self, what: &str) -> bool {
        self.truth(what).is_some_and(|given| *given.value)
    }

    /// Returns a number in a range; `None` where there is none.
    pub fn count_in(&self, what: &str, (least, most): (u32, u32)) -> Result<Option<u32>, Error> {
        match self.count(what) {
            Some(given) if !(least..=most).contains(given.value) => {
                Err(self.error(&given, what, format!("lies between {least} and {most}")))
            }
            given => Ok(given.map(|given| *given.value)),
        }
    }

    /// Returns an integer of 32 bits; `None` where there is none.
    pub fn int32(&self, what: &str) -> Result<Option<i32>, Error> {
        let Some(given) = self.integer(what) else { return Ok(None) };
        let fits = i32::try_from(*given.value);
        fits.map(Some).map_err(|_| self.error(&given, what, "has at most 32 bits"))
    }

    /// Returns numbers from 1 to `max`; a 1 where there are none.
    pub fn counts_to(&self, what: &str, max: u32) -> Result<Vec<u32>, Error> {
        match self.counts(what) {
            Some(list) if !list.value.iter().all(|count| (1..=max).contains(count)) => {
                Err(self.error(&list, what, format!("lies between 1 and {max}")))
            }
            given => Ok(given.map_or(vec![1], |list| list.value.to_vec())),
        }
    }

    /// Returns a number that is at least `min`.
    pub fn number_from(&self, what: &str, default: f64, min: f64) -> Result<f64, Error> {
        match self.number(what) {
            Some(given) if !(given.value.is_finite() && *given.value >= min) => {
                Err(self.error(&given, what, format!("has to be at least {min}")))
            }
            given => Ok(given.map_or(default, |given| *given.value)),
        }
    }

    /// Returns a number from 0 to below 1; 0 if it is not given.
    pub fn share(&self, what: &str) -> Result<f64, Error> {
        match self.number(what) {
            Some(given) if !(0.0..1.0).contains(given.value) => {
                Err(self.error(&given, what, "has to be from 0 to below 1"))
            }
            given => Ok(given.map_or(0.0, |given| *given.value)),
        }
    }

    /// Reads a value of no form as a type; `None` where there is none.
    pub fn parsed<T: serde::de::DeserializeOwned>(&self, what: &str) -> Result<Option<T>, Error> {
        let Some(given) = self.any(what) else { return Ok(None) };
        let parsed = given.value.clone().try_into();
        parsed.map(Some).map_err(|why: toml::de::Error| self.error(&given, what, why.message()))
    }
}
