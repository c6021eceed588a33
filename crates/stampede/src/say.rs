//! Words on standard output (answers) and standard error (complaints). A reader who has left, such as `head`, is no
//! reason to fail.

use std::io::{IsTerminal as _, Write as _};

use clap::builder::styling::{AnsiColor, Style};

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
