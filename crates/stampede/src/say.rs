//! Words on standard output (answers) and standard error (complaints). A reader who has left, such as `head`, is no
//! reason to fail.

use std::borrow::Cow;
use std::io::{IsTerminal as _, Write as _};

use clap::builder::styling::{AnsiColor, Style};

/// One line, or several, of a command's answer; flushed, because somebody may be waiting for it. Whatever is in it, it
/// does nothing to a terminal but show itself.
pub fn answer(text: &str) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{}", tame(text)).and_then(|()| out.flush());
    written.unwrap_or_default();
}

/// Makes room for an answer that stands in the place of the one before.
pub fn clear_screen() {
    write!(std::io::stdout().lock(), "\x1b[H\x1b[J").unwrap_or_default();
}

/// What a person should know and a program that reads our answers should not have to skip.
pub fn complain(text: &str) {
    writeln!(std::io::stderr().lock(), "{}", tame(text)).unwrap_or_default();
}

/// What [`Paint`] writes, in parts. Nothing else that begins with an escape comes from us.
const OWN_PAINT: [&str; 5] = ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m"];

/// A text without control characters, but for ends of lines, tabs and our own colours: others may have written it, and it
/// must not move the cursor or rename the window. They are shown as JSON escapes them, so that JSON stays what it is.
fn tame(text: &str) -> Cow<'_, str> {
    let is_wild = |letter: char| letter.is_control() && !matches!(letter, '\n' | '\t');
    if !text.contains(is_wild) {
        return Cow::Borrowed(text);
    }
    let mut tamed = String::with_capacity(text.len());
    let mut rest = text.chars();
    loop {
        let ahead = rest.as_str();
        if let Some((own, after)) = OWN_PAINT.iter().find_map(|own| Some((*own, ahead.strip_prefix(own)?))) {
            tamed.push_str(own);
            rest = after.chars();
            continue;
        }
        match rest.next() {
            Some(letter) if is_wild(letter) => tamed.push_str(&format!("\\u{:04x}", u32::from(letter))),
            Some(letter) => tamed.push(letter),
            None => return Cow::Owned(tamed),
        }
    }
}

/// Colour for standard output: on a terminal only, and never with `NO_COLOR`. Words must make sense without it.
#[derive(Clone, Copy, Debug)]
pub struct Paint(Style);

impl Paint {
    pub fn bold() -> Self {
        Self(Style::new().bold())
    }

    pub fn dim() -> Self {
        Self(Style::new().dimmed())
    }

    pub fn green() -> Self {
        Self(Style::new().fg_color(Some(AnsiColor::Green.into())))
    }

    pub fn red() -> Self {
        Self(Style::new().bold().fg_color(Some(AnsiColor::Red.into())))
    }

    pub fn on(self, text: &str) -> String {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        if wanted && std::io::stdout().is_terminal() {
            format!("{}{text}{}", self.0.render(), self.0.render_reset())
        } else {
            text.to_owned()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_cannot_move_the_cursor() {
        assert_eq!(tame("a\n\tb 茅台"), "a\n\tb 茅台");
        assert_eq!(tame("a\u{1b}[2Jb\r\u{7f}\u{9b}8m"), "a\\u001b[2Jb\\u000d\\u007f\\u009b8m");
        assert_eq!(tame("\u{1b}]0;title\u{7}"), "\\u001b]0;title\\u0007");
    }

    #[test]
    fn our_own_colours_stay() {
        for paint in [Paint::bold(), Paint::dim(), Paint::green(), Paint::red()] {
            let painted = format!("{}x{}", paint.0.render(), paint.0.render_reset());
            assert_eq!(tame(&painted), painted);
        }
    }

    #[test]
    fn json_stays_the_same_json() {
        let json = serde_json::json!({"note": "a\u{9b}2J\u{7f}\u{1b}\n"});
        let shown = tame(&json.to_string()).into_owned();
        assert!(!shown.contains(char::is_control), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), json);
    }
}
