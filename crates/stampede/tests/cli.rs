//! The program as a shell starts it: what comes from the environment, and the exit codes a script sees. What it does
//! with a shop is tested inside the crate.

#![expect(clippy::unwrap_used, reason = "a test that cannot start its program fails")]

use std::process::{Command, Output};

/// Nobody listens there.
const NOWHERE: &str = "http://127.0.0.1:1";

fn stampede(environment: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stampede"));
    command.env_remove("STAMPEDE_SECRET").env_remove("STAMPEDE_ADMIN_KEY").envs(environment.iter().copied());
    command.args(args).output().unwrap()
}

fn run(environment: &[(&str, &str)], more: &[&str]) -> (Option<i32>, String) {
    let id = rules::id::SaleId(1).to_string();
    let common = ["run", "--url", NOWHERE, "--sale", &id, "--buyers", "1"];
    let output = stampede(environment, &[&common[..], more].concat());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn what_is_said_on_the_command_line_beats_a_secret_in_the_environment() {
    let secret = [("STAMPEDE_SECRET", "the secret of the shop")];
    let (code, told) = run(&secret, &["--tokens", "/no/such/tokens.txt"]);
    assert!(code == Some(1) && told.contains("/no/such/tokens.txt cannot be read"), "{code:?}: {told}");
    for more in [&["--demo-login"][..], &["--secret", "another"], &[]] {
        let (code, told) = run(&secret, more);
        assert!(code == Some(1) && told.contains("no answer from"), "{more:?}: {code:?}: {told}");
    }
}

#[test]
fn variables_that_are_set_to_nothing_are_none() {
    let (code, told) = run(&[("STAMPEDE_SECRET", "")], &[]);
    assert!(code == Some(2) && told.contains("the secret is empty"), "{code:?}: {told}");
    let (code, told) = run(&[("STAMPEDE_SECRET", ""), ("STAMPEDE_ADMIN_KEY", "")], &["--demo-login"]);
    assert!(code == Some(1) && told.contains("no answer from"), "{code:?}: {told}");
}

#[test]
fn two_buyers_of_one_name_are_refused_with_their_lines() {
    let file = std::env::temp_dir().join(format!("stampede-tokens-{}.txt", std::process::id()));
    // {"alg":"HS256"}.{"sub":"ann"}; whether it is signed is for the server to say.
    let ann = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2ln";
    std::fs::write(&file, format!("\u{feff}{ann}\n\n{ann}\n")).unwrap();
    let (code, told) = run(&[], &["--tokens", &file.display().to_string()]);
    std::fs::remove_file(&file).unwrap();
    assert!(code == Some(1) && told.contains("line 3") && told.contains("line 1"), "{code:?}: {told}");
}

#[test]
fn a_run_that_never_began_leaves_no_files() {
    let file = std::env::temp_dir().join(format!("stampede-never-{}.html", std::process::id()));
    let (code, _) = run(&[], &["--demo-login", "--report", &file.display().to_string()]);
    assert_eq!((code, file.exists()), (Some(1), false));
}
