//! JSON whose errors state their place in the text.

use super::Wrong;
use serde_json::Value;
use std::fmt;

/// A step from a value to one in it.
#[derive(Clone, Debug)]
enum Step {
    Key(String),
    Index(usize),
}

/// A value with its place.
#[derive(Clone, Debug)]
pub(super) struct Node<'a> {
    text: &'a str,
    value: &'a Value,
    path: Vec<Step>,
}

impl fmt::Display for Node<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, step) in self.path.iter().enumerate() {
            match step {
                Step::Key(key) if index == 0 => write!(formatter, "{key}")?,
                Step::Key(key) => write!(formatter, ".{key}")?,
                Step::Index(index) => write!(formatter, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Reads a text.
pub(super) fn parse(text: &str) -> Result<Value, Wrong> {
    serde_json::from_str(text).map_err(|error| Wrong::new(error.line(), "JSON", error.to_string()))
}

impl<'a> Node<'a> {
    /// The whole.
    pub(super) fn root(text: &'a str, value: &'a Value) -> Self {
        Self { text, value, path: Vec::new() }
    }

    /// What is wrong with it.
    pub(super) fn wrong(&self, message: impl Into<String>) -> Wrong {
        let start = locate(self.text.as_bytes(), &self.path).unwrap_or(0);
        let line = self.text.bytes().take(start).filter(|byte| *byte == b'\n').count() + 1;
        Wrong::new(line, &self.to_string(), message)
    }

    fn missing(&self, key: &str) -> Wrong {
        let mut wrong = self.wrong("is missing");
        wrong.field =
            if wrong.field.is_empty() { key.into() } else { format!("{}.{key}", wrong.field) };
        wrong
    }

    /// A member, if there is one.
    pub(super) fn find(&self, key: &str) -> Option<Self> {
        let value = self.value.get(key)?;
        let mut path = self.path.clone();
        path.push(Step::Key(key.into()));
        Some(Self { text: self.text, value, path })
    }

    /// A member.
    pub(super) fn get(&self, key: &str) -> Result<Self, Wrong> {
        self.find(key).ok_or_else(|| self.missing(key))
    }

    /// The elements of a list that is a member.
    pub(super) fn list(&self, key: &str) -> Result<Vec<Self>, Wrong> {
        let list = self.get(key)?;
        let Some(elements) = list.value.as_array() else { return Err(list.wrong("is no list")) };
        let element = |(index, value)| {
            let mut path = list.path.clone();
            path.push(Step::Index(index));
            Self { text: self.text, value, path }
        };
        Ok(elements.iter().enumerate().map(element).collect())
    }

    /// A number that is a member, finite and not below 0.
    pub(super) fn number(&self, key: &str) -> Result<f64, Wrong> {
        let node = self.get(key)?;
        let number = node.value.as_f64().filter(|number| number.is_finite() && *number >= 0.0);
        number.ok_or_else(|| node.wrong(format!("{} is no number from 0 on", node.value)))
    }

    /// A whole number that is a member.
    pub(super) fn whole(&self, key: &str) -> Result<u64, Wrong> {
        let node = self.get(key)?;
        node.value.as_u64().ok_or_else(|| node.wrong(format!("{} is no whole number", node.value)))
    }

    /// The text itself, of texts and numbers.
    pub(super) fn shown(&self) -> String {
        match self.value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        }
    }

    /// A text that is a member, if there is one.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.find(key).map(|node| node.shown())
    }
}

/// Where a value begins in a text that is known to be JSON.
fn locate(text: &[u8], path: &[Step]) -> Option<usize> {
    let mut at = blanks(text, 0);
    for step in path {
        let is_list = matches!(step, Step::Index(_));
        if *text.get(at)? != if is_list { b'[' } else { b'{' } {
            return None;
        }
        at = blanks(text, at + 1);
        let mut index = 0;
        loop {
            let is_it = match step {
                Step::Index(wanted) => index == *wanted,
                Step::Key(wanted) => {
                    let end = skip(text, at);
                    let key: String = serde_json::from_slice(text.get(at..end)?).ok()?;
                    at = blanks(text, blanks(text, end) + 1);
                    key == *wanted
                }
            };
            if is_it {
                break;
            }
            at = blanks(text, skip(text, at));
            if *text.get(at)? != b',' {
                return None;
            }
            at = blanks(text, at + 1);
            index += 1;
        }
    }
    Some(at)
}

fn blanks(text: &[u8], from: usize) -> usize {
    let rest = text.get(from..).unwrap_or_default();
    from + rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

/// The end of the value that begins here.
fn skip(text: &[u8], from: usize) -> usize {
    let mut depth = 0_usize;
    let (mut is_text, mut is_escaped) = (false, false);
    for (index, byte) in text.iter().enumerate().skip(from) {
        if is_text {
            is_text = is_escaped || *byte != b'"';
            is_escaped = !is_escaped && *byte == b'\\';
            if !is_text && depth == 0 {
                return index + 1;
            }
            continue;
        }
        match byte {
            b'"' => is_text = true,
            b'[' | b'{' => depth += 1,
            b']' | b'}' if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    return index + 1;
                }
            }
            b',' | b']' | b'}' if depth == 0 => return index,
            byte if depth == 0 && byte.is_ascii_whitespace() => return index,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: an error names the line and the way to the value, past strings with brackets and escapes.
    #[test]
    fn places_are_found() {
        let text = "{\n\"a\": [1, {\"x\": \"]}\\\"\"},\n {\"b\": {\n  \"c\": -1 }}],\n\"d\": 2.5}";
        let value = parse(text).unwrap();
        let root = Node::root(text, &value);
        let third = &root.list("a").unwrap()[2];
        let wrong = third.get("b").unwrap().number("c").unwrap_err();
        assert_eq!((wrong.line, wrong.field.as_str()), (4, "a[2].b.c"));
        assert!(wrong.message.contains("-1 is no number from 0 on"), "{wrong:?}");
        let wrong = third.get("e").unwrap_err();
        assert_eq!((wrong.line, wrong.field.as_str()), (3, "a[2].e"));
        let wrong = root.whole("d").unwrap_err();
        assert_eq!((wrong.line, wrong.field.as_str()), (5, "d"));
        let wrong = root.get("f").unwrap_err();
        assert_eq!((wrong.line, wrong.field.as_str()), (1, "f"));
    }
}
