//! Starts other programs and turns their end into a sentence. Knows no chore.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

/// Between two looks at a program that has a time limit.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// Runs the command in front of the reader; an error names the command and how it ended.
pub fn show(command: &mut Command) -> anyhow::Result<()> {
    announce(command);
    finish(command)
}

/// Like [`show`], but ends the program when the limit is over.
pub fn show_within(command: &mut Command, limit: Duration) -> anyhow::Result<()> {
    announce(command);
    let mut child = command.spawn().with_context(|| format!("could not start `{}`", line(command)))?;
    let mut waited = Duration::ZERO;
    while waited < limit {
        if let Some(status) = child.try_wait()? {
            return judge(command, status);
        }
        std::thread::sleep(POLL_EVERY);
        waited += POLL_EVERY;
    }
    child.kill()?;
    child.wait()?;
    bail!("`{}` did not end within {} s", line(command), limit.as_secs())
}

/// The standard output of a command that succeeded, `None` when it is missing or failed.
pub fn ask(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Where the program lies on the search path.
pub fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| is_executable(file))
}

/// The command as a person would type it.
pub fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

fn announce(command: &Command) {
    println!("$ {}", line(command));
    // The program writes to the same place; without this its words come before ours. A closed pipe is noticed by
    // the next `println!`.
    std::io::stdout().flush().ok();
}

fn finish(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("could not start `{}`", line(command)))?;
    judge(command, status)
}

fn judge(command: &Command, status: std::process::ExitStatus) -> anyhow::Result<()> {
    if status.success() {
        return Ok(());
    }
    bail!("`{}` ended with {status}", line(command))
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(unix)]
fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(file: &Path) -> bool {
    file.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_reads_as_it_would_be_typed() {
        let mut command = Command::new("cargo");
        command.args(["clippy", "--", "-D", "warnings", "it's"]);
        assert_eq!(line(&command), r"cargo clippy -- -D warnings 'it'\''s'");
    }

    #[test]
    fn a_failing_program_is_named_in_the_error() {
        let error = show(&mut Command::new("false")).unwrap_err().to_string();
        assert!(error.starts_with("`false` ended with exit status: 1"), "{error}");
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let error = show_within(Command::new("sleep").arg("600"), Duration::from_millis(100)).unwrap_err();
        assert!(error.to_string().contains("did not end within"), "{error}");
    }

    #[test]
    fn a_missing_program_is_an_error_and_no_silence() {
        let error = show(&mut Command::new("no-such-program-anywhere")).unwrap_err();
        assert!(error.to_string().contains("could not start"), "{error}");
        assert_eq!(on_path("no-such-program-anywhere"), None);
        assert!(on_path("sh").is_some());
    }
}
