//! Words on standard output (answers) and standard error (complaints). A reader who has left, such as `head`, is no
//! reason to fail.

use std::io::Write as _;

/// One line, or several, of a command's answer; flushed, because somebody may be waiting for it.
pub fn answer(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{text}").and_then(|()| out.flush());
    written.unwrap_or_default();
}

/// What a person should know and a program that reads our answers should not have to skip.
pub fn complain(text: &str) {
    writeln!(std::io::stderr().lock(), "{text}").unwrap_or_default();
}
