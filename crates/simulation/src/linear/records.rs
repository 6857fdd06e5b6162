//! Histories that other programs have recorded, as lines of JSON.

use super::{Call, Verdict, check};

/// A history that was read and checked.
#[derive(Debug)]
pub struct Recorded {
    /// Calls.
    pub calls: usize,
    /// What came of it.
    pub verdict: Verdict,
}

/// Checks a history of one [`Call`] a line, in any order.
///
/// # Errors
/// The first line that is no call.
pub fn check_lines(text: &str) -> Result<Recorded, String> {
    let mut calls: Vec<Call> = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let call: Call = serde_json::from_str(line)
            .map_err(|error| format!("line {}: {error}: {line}", number + 1))?;
        if call.end.is_some_and(|end| end < call.begin) {
            return Err(format!("line {} ends before it begins: {line}", number + 1));
        }
        calls.push(call);
    }
    Ok(Recorded { calls: calls.len(), verdict: check(&calls, &[]) })
}
