//! The command line: what can be asked, and the exit code of each answer. Each command is a file of its own.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::say;

/// Options that several commands share.
mod options;

/// What is said and written after a night.
mod outcome;

mod check;
mod completions;
mod rehearse;
mod run;
mod scenarios;

/// A crowd for a flash sale: simulated buyers who know only the public API, and a judge of what they were told.
#[derive(Debug, Parser)]
#[command(name = "stampede", version, propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Threads that drive the crowd. One is the most frugal, and leaves the other cores to a server on the same machine.
    #[arg(long, global = true, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
}

const EXAMPLES: &str = "\
Examples:
  stampede scenarios                            what comes with it
  stampede rehearse --url http://127.0.0.1:8080 --sale ID --buyers 20000 --within 10s
  stampede run --url http://127.0.0.1:8080 --sale ID --scenario bots --buyers 5000 --report night.html
  stampede check night.jsonl                    judges a kept history again

The shop's secret and the operator's key can come from STAMPEDE_SECRET and STAMPEDE_ADMIN_KEY.

Exit codes: 0 clean, 1 it failed, proved nothing, could not ask everything, or the rehearsal does not hold or cannot tell,
2 wrong usage, 3 a promise was broken.";

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Run>),
    Rehearse(Box<rehearse::Rehearse>),
    Check(check::Check),
    Scenarios(scenarios::Scenarios),
    Completions(completions::Completions),
}

/// How a command that did not fail ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Clean,
    /// A rehearsal does not hold or cannot tell, something could not be asked, or nobody got far enough to prove
    /// anything; it has said so.
    Failed,
    /// A promise was not kept.
    Violated,
}

/// The exit code for arguments that make no sense.
const USAGE: u8 = 2;
/// The exit code for a promise that was not kept.
const VIOLATED: u8 = 3;

/// Reads the arguments, the program's name first; wrong ones, and a wish for help, are answered with an exit code.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, ExitCode> {
    Cli::try_parse_from(args).map_err(|error| {
        // Help is an answer, not an error. A reader who has left is none either.
        let _ = error.print();
        if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
    })
}

/// [`parse`] and [`Cli::run`], on whatever runtime is there.
pub async fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match parse(args) {
        Ok(cli) => cli.run().await,
        Err(code) => code,
    }
}

impl Cli {
    /// How many threads the runtime should have.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads.into()
    }

    /// Does what was asked and answers with the code to exit with.
    pub async fn run(self) -> ExitCode {
        let ended = match self.command {
            Command::Run(command) => Box::pin(command.run()).await,
            Command::Rehearse(command) => Box::pin(command.run()).await,
            Command::Check(command) => command.run(),
            Command::Scenarios(command) => command.run(),
            Command::Completions(command) => command.run(),
        };
        match ended {
            Ok(Exit::Clean) => ExitCode::SUCCESS,
            Ok(Exit::Failed) => ExitCode::FAILURE,
            Ok(Exit::Violated) => ExitCode::from(VIOLATED),
            Err(error) => failed(&error),
        }
    }
}

/// Says why it did not work.
pub fn failed(error: &anyhow::Error) -> ExitCode {
    say::complain(&format!("stampede: {error:#}"));
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use rules::sale::RegistrationKind;
    use serde_json::Value;

    use super::*;
    use crate::fake::{FakeShop, Manners, SECRET};

    /// A file of this test alone: each test has a name of its own for it.
    fn file(name: &str) -> String {
        std::env::temp_dir().join(format!("stampede-cli-{}-{name}", std::process::id())).display().to_string()
    }

    async fn night(manners: Manners, more: &[&str]) -> String {
        let secret = String::from_utf8(SECRET.to_vec()).unwrap();
        night_of(manners, "", &[&["--secret", &secret], more].concat()).await
    }

    /// The exit code of a night whose people are as told.
    async fn night_of(manners: Manners, person: &str, more: &[&str]) -> String {
        let shop = FakeShop::open(manners);
        let (url, sale) = (format!("http://{}", shop.addr()), shop.sale().to_string());
        let scenario = file("night.toml");
        let text = format!("title = \"t\"\n[arrival]\npages_ahead = \"200ms\"\n[[person]]\n{person}\n");
        std::fs::write(&scenario, text).unwrap();
        let mut args = vec!["stampede", "run", "--url", &url, "--sale", &sale, "--quiet", "--buyers", "40"];
        args.extend(["--within", "200ms", "--connections", "16", "--scenario", &scenario]);
        args.extend(more);
        let code = run(args.iter().map(OsString::from)).await;
        format!("{code:?}")
    }

    fn code(code: u8) -> String {
        format!("{:?}", ExitCode::from(code))
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[tokio::test]
    async fn a_clean_night_exits_with_0_and_a_lie_with_3() {
        let key = ["--admin-key", "any key"];
        assert_eq!(night(Manners::default(), &key).await, code(0));
        assert_eq!(night(Manners::default(), &[]).await, code(0));
        let lie = Manners { oversells: true, ..Manners::default() };
        assert_eq!(night(lie, &key).await, code(3));
        let lie = Manners { forgets: true, ..Manners::default() };
        assert_eq!(night(lie, &[]).await, code(3));
    }

    #[tokio::test]
    async fn a_night_that_proves_nothing_exits_with_1() {
        let wrong = ["--secret", "not the secret of the shop, but long enough"];
        assert_eq!(night_of(Manners::default(), "", &wrong).await, code(1));
        let manners = Manners { registration: RegistrationKind::Required, ..Manners::default() };
        let (json, report) = (file("nothing.json"), file("nothing.html"));
        let demo = ["--demo-login", "--json", &json, "--report", &report];
        assert_eq!(night_of(manners, "register = \"never\"", &demo).await, code(1));
        let told: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        let notes = told["notes"].to_string();
        assert!(notes.contains("as far as a try") && notes.contains("not_registered"), "{notes}");
        let page = std::fs::read_to_string(&report).unwrap();
        assert!(page.contains("Not judged.") && !page.contains("Clean:"), "{page}");
    }

    #[tokio::test]
    async fn without_the_operators_key_the_stock_is_neither_kept_nor_broken() {
        let json = file("no-key.json");
        assert_eq!(night(Manners::default(), &["--json", &json]).await, code(0));
        let told: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        let promises = told["summary"]["promises"].as_array().unwrap();
        let kept = |name: &str| &promises.iter().find(|one| one["promise"] == name).unwrap()["kept"];
        assert_eq!((kept("never oversold"), kept("no unit stranded")), (&Value::Null, &Value::Null));
        assert_eq!(kept("one order per buyer"), &Value::Bool(true));
    }

    #[tokio::test]
    async fn who_gave_an_order_back_was_not_refused() {
        let json = file("back.json");
        let person = "cancel = 1.0\ndecide_within = \"0ms\"";
        let demo = ["--demo-login", "--json", &json];
        assert_eq!(night_of(Manners::default(), person, &demo).await, code(0));
        let told: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        let buyers = &told["summary"]["buyers"];
        assert!(buyers["ended"].as_u64() >= Some(10) && buyers["other"] == 0, "{buyers}");
    }

    #[tokio::test]
    async fn to_be_told_that_the_sale_is_paused_is_no_broken_promise() {
        assert_eq!(night(Manners { paused: true, ..Manners::default() }, &[]).await, code(0));
    }

    #[tokio::test]
    async fn a_shop_that_sheds_keeps_its_word_and_one_that_says_nothing_does_not() {
        let json = file("shed.json");
        let all_busy = Manners { busy_first: u32::MAX, ..Manners::default() };
        assert_eq!(night(all_busy, &["--json", &json]).await, code(0));
        let told: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        assert_eq!((&told["kept"], &told["findings"]), (&Value::Bool(true), &Value::Array(vec![])));
        assert_eq!(told["summary"]["buyers"]["other"], 40, "{}", told["summary"]["buyers"]);
        let deaf = Manners { deaf: true, ..Manners::default() };
        assert_eq!(night(deaf, &["--json", &json]).await, code(3));
        let told: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        assert_eq!(told["kept"], false);
        assert_eq!(
            (&told["findings"][0]["finding"], &told["findings"][0]["buyers"]),
            (&"no_answer".into(), &40.into())
        );
        let sentence = told["sentences"][0].as_str().unwrap();
        assert!(sentence.starts_with("40 buyers went home without an answer"), "{sentence}");
    }

    #[tokio::test]
    async fn a_night_is_kept_when_something_cannot_be_asked_in_the_end() {
        let (json, report, history) = (file("half.json"), file("half.html"), file("half.jsonl"));
        let more = ["--admin-key", "any key", "--json", &json, "--report", &report, "--history", &history];
        let manners = Manners { loses_books: true, ..Manners::default() };
        assert_eq!(night(manners, &more).await, code(1));
        let told: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        assert_eq!((&told["kept"], &told["missing"][0]["part"]), (&Value::Bool(true), &"books".into()));
        let notes = told["notes"].to_string();
        assert!(notes.contains("The operator's list could not be read"), "{notes}");
        assert!(!notes.contains("too many orders"), "{notes}");
        assert!(std::fs::read_to_string(&report).unwrap().contains("list could not be read"));
        // What was kept is judged again, and is still not whole.
        let checked = run(["stampede", "check", &history, "--quiet"].iter().map(OsString::from)).await;
        assert_eq!(format!("{checked:?}"), code(1));
        // A lie weighs more than what is missing.
        let lie = Manners { loses_books: true, forgets: true, ..Manners::default() };
        assert_eq!(night(lie, &["--admin-key", "any key"]).await, code(3));
    }

    #[tokio::test]
    async fn who_could_not_wait_to_pay_late_is_told_of_in_a_note() {
        let json = file("late.json");
        let person = "pay_late = 1.0\ndecide_within = \"0ms\"";
        let manners = Manners { payments: true, ..Manners::default() };
        let demo = ["--demo-login", "--json", &json];
        assert_eq!(night_of(manners, person, &demo).await, code(0));
        let told: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        let notes = told["notes"].to_string();
        assert!(notes.contains("20 buyers wanted to pay late") && notes.contains("`patience`"), "{notes}");
    }

    #[tokio::test]
    async fn what_the_crowd_costs_is_told_per_order() {
        let json = file("cost.json");
        let manners = Manners { challenge: rules::sale::ChallengeKind::Pow, ..Manners::default() };
        assert_eq!(night(manners, &["--json", &json]).await, code(0));
        let told: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
        let generator = &told["report"]["generator"];
        let of = |name: &str| generator[name].as_u64().unwrap();
        assert_eq!(of("order_posts"), told["totals"]["tries"].as_u64().unwrap());
        let aside = of("cpu_us").saturating_sub(of("solving_us"));
        assert!(
            of("solving_us") > 0 && of("cpu_us_per_order_post") == aside / of("order_posts"),
            "{generator}"
        );
        let notes = told["notes"].to_string();
        assert!(notes.contains("This machine solves about"), "{notes}");
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_anything_happens() {
        let id = rules::id::SaleId(1).to_string();
        let common = ["stampede", "run", "--url", "http://127.0.0.1:1", "--sale", &id, "--buyers", "1"];
        let long = "x".repeat(122);
        let wrong: &[&[&str]] = &[
            &["--secret", "s", "--tokens", "t.txt"],
            &["--secret", "s", "--demo-login"],
            &["--tokens", "t.txt", "--issuer", "me"],
            &["--demo-login", "--audience", "me"],
            &["--secret", ""],
            &["--demo-login", "--admin-url", "http://127.0.0.1:2"],
            &["--demo-login", "--admin-key", "a\r\nx-more: b"],
            &["--demo-login", "--name", "two\nlines"],
            &["--demo-login", "--name", &long],
            &["--demo-login", "--report", "-"],
            &["--demo-login", "--history", "-"],
        ];
        for more in wrong {
            let args = [&common[..], more].concat().into_iter().map(OsString::from);
            assert_eq!(parse(args).err().map(|code| format!("{code:?}")), Some(code(2)), "{more:?}");
        }
        let right: &[&[&str]] = &[
            &["--secret", "s", "--issuer", "me", "--audience", "you"],
            &["--demo-login", "--admin-key", "k", "--admin-url", "http://127.0.0.1:2"],
            &["--tokens", "t.txt", "--name", "anna "],
        ];
        for more in right {
            let args = [&common[..], more].concat().into_iter().map(OsString::from);
            assert!(parse(args).is_ok(), "{more:?}");
        }
    }
}
