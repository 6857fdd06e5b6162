//! Lines through srun. It copies the output of its tasks to its own in messages: whole lines, but
//! of 1024 bytes at most (`SLURM_IO_MAX_MSG_LEN`). Longer lines of two tasks would mix. So a task
//! prints its lines in pieces that name their node, and the reader puts them together again.

use std::collections::BTreeMap;
use std::io::Write;

/// Bytes of one piece: with the name of its node, a line is shorter than a message.
const PIECE_BYTES_MAX: usize = 768;
/// The first word of a piece. Other lines come from shells and task prologs.
const WORD: &str = "tsumugi:";
/// The mark of a line's last piece.
const LAST: &str = ".";
/// The mark of the other pieces.
const MORE: &str = "+";

/// Returns the pieces of a line, each as a line.
pub(super) fn of(node: &str, line: &str) -> Vec<String> {
    let mut rest = line.trim_end_matches('\n');
    let mut pieces = Vec::new();
    loop {
        let (piece, after) = rest.split_at(rest.floor_char_boundary(PIECE_BYTES_MAX));
        let mark = if after.is_empty() { LAST } else { MORE };
        pieces.push(format!("{WORD} {node} {mark} {piece}\n"));
        if after.is_empty() {
            return pieces;
        }
        rest = after;
    }
}

/// Prints a line in pieces, unbroken by lines of other threads.
pub(super) fn print(node: &str, line: &[u8]) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    for piece in of(node, &String::from_utf8_lossy(line)) {
        output.write_all(piece.as_bytes())?;
    }
    output.flush()
}

/// Puts pieces together.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    begun: BTreeMap<String, String>,
}

impl Pieces {
    /// Takes a piece in. Returns the line whose last piece it is.
    pub(super) fn take(&mut self, piece: &str, bytes_max: u64) -> Option<String> {
        // A task prolog or a shell may have printed something without a line break before it.
        let text = &piece[piece.find(WORD)?..];
        let mut words = text.trim_end_matches('\n').splitn(4, ' ').skip(1);
        let (node, mark, text) = (words.next()?, words.next()?, words.next()?);
        let mut line = self.begun.remove(node).unwrap_or_default();
        if (line.len() + text.len()) as u64 > bytes_max {
            return None;
        }
        line.push_str(text);
        if mark == LAST {
            return Some(line);
        }
        self.begun.insert(node.into(), line);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: long lines of several nodes survive any mixing of their pieces and the lines of
    /// others, and no piece is longer than a message of srun.
    #[test]
    fn mixed_lines_are_put_together() {
        let long = "ä".repeat(2000);
        let lines = [("n1", long.as_str()), ("n2", "short"), ("n3", ""), ("n4", "a . + b")];
        let mut queues: Vec<_> = lines.iter().map(|(node, line)| of(node, line)).collect();
        assert!(queues.iter().flatten().all(|piece| piece.len() < 1024 - 128));
        let mut pieces = Pieces::default();
        let mut got = Vec::new();
        while queues.iter().any(|queue| !queue.is_empty()) {
            assert_eq!(pieces.take("welcome to node1\n", 1 << 20), None);
            for queue in &mut queues {
                if !queue.is_empty() {
                    got.extend(pieces.take(&queue.remove(0), 1 << 20));
                }
            }
        }
        got.sort();
        let mut expected = lines.map(|(_, line)| line.to_string()).to_vec();
        expected.sort();
        assert_eq!(got, expected);
    }
}
