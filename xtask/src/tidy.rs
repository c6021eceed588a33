//! `cargo xtask tidy`: the house rules no compiler checks, read from the files as text.
//! Knows where things may stand; does not parse Rust, and judges neither length nor taste.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};

const PRODUCT: &str = "crates/doorbuster/src/";
const RULES: &str = "crates/rules/";
const MIGRATIONS: &str = "crates/doorbuster/migrations/";
const DATABASES: [&str; 3] = ["sqlite", "postgres", "mysql"];

/// Not ours, or made by a machine.
const SKIPPED_FOLDERS: [&str; 4] = ["target", "node_modules", "vendor", ".git"];
const READ_ENDINGS: [&str; 11] = ["rs", "lua", "sql", "toml", "md", "js", "css", "html", "sh", "yml", "yaml"];

/// A name that may be used only in some places of the product. A place is a module: its file or its folder;
/// with a star at its end, all modules that begin so.
struct Border {
    names: &'static [&'static str],
    places: &'static [&'static str],
    why: &'static str,
}

const BORDERS: &[Border] = &[
    Border { names: &["axum::"], places: &["edge", "app"], why: "only the edge knows HTTP" },
    Border { names: &["rusqlite::"], places: &["queue", "ledger"], why: "only queue and ledger know SQLite" },
    Border { names: &["sqlx::"], places: &["ledger"], why: "only the ledger knows the databases" },
    Border {
        names: &["reqwest::"],
        places: &["payment", "outbox", "edge/auth*", "images", "guard", "cli"],
        why: "outgoing HTTP belongs to payment, outbox, the key set of the issuer, images and the command line",
    },
    Border {
        names: &["lapin::", "async_rs::"],
        places: &["outbox/rabbit"],
        why: "only the sink of RabbitMQ knows its library",
    },
    Border {
        names: &["Instant::now", "SystemTime::now"],
        places: &["clock"],
        why: "time comes from the `Clock` handed in",
    },
];

/// A thing without a home is a concept without a name; these names hide that.
const DRAWERS: [&str; 10] =
    ["util", "utils", "helper", "helpers", "common", "misc", "service", "services", "manager", "managers"];

/// Written in two halves, so that this file obeys its own rule.
const UNFINISHED: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];
const UNFINISHED_MACRO: &str = concat!("to", "do!");

const LUA_CONTRACT: [&str; 3] = ["KEYS", "ARGV", "RETURNS"];

/// The pure crate waits for nothing and reaches nothing.
const RULES_REFUSED_CRATES: [&str; 7] = ["tokio", "axum", "rusqlite", "sqlx", "hyper", "reqwest", "redis"];
const RULES_REFUSED_WORDS: [&str; 3] = ["tokio", "std::fs", "std::net"];

/// The chapters of ARCHITECTURE.md whose tables bind a sentence to a test.
const BOUND_CHAPTERS: [&str; 2] = ["## Promises and their tests", "## Invariants and their tests"];

type Rule = fn(&[File]) -> Vec<Finding>;

const ALL_RULES: &[Rule] = &[
    borders,
    file_headers,
    lua_contracts,
    migration_numbers,
    unfinished_work,
    drawers,
    pure_manifest,
    pure_sources,
    ignored_tests,
    promised_tests,
];

/// One file, its path from the root with forward slashes.
#[derive(Debug)]
struct File {
    path: String,
    text: String,
}

#[derive(Debug, PartialEq, Eq)]
struct Finding {
    path: String,
    /// 0: the file as a whole.
    line: usize,
    what: String,
}

pub fn run(root: &Path) -> anyhow::Result<ExitCode> {
    check(root)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the workspace and prints every finding; an error when there is one.
pub fn check(root: &Path) -> anyhow::Result<()> {
    let files = read(root)?;
    // A walk that finds nothing would find nothing wrong.
    if !files.iter().any(|file| file.path.starts_with(PRODUCT)) {
        bail!("no sources under {}", root.join(PRODUCT).display());
    }
    let findings: Vec<Finding> = ALL_RULES.iter().flat_map(|rule| rule(&files)).collect();
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy found {} {}", findings.len(), if findings.len() == 1 { "breach" } else { "breaches" });
    }
    println!("tidy: {} files, nothing to say", files.len());
    Ok(())
}

/// The text of every Rust file of the workspace.
pub fn sources(root: &Path) -> anyhow::Result<Vec<String>> {
    Ok(read(root)?.into_iter().filter(|file| file.is("rs")).map(|file| file.text).collect())
}

fn borders(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is("rs")) {
        let Some(module) = file.path.strip_prefix(PRODUCT) else { continue };
        for border in BORDERS.iter().filter(|border| !border.admits(module)) {
            for (number, code) in file.product_code() {
                if let Some(name) = border.names.iter().find(|name| mentions(&code, name)) {
                    findings.push(file.at(number, format!("`{name}` here: {}", border.why)));
                }
            }
        }
    }
    findings
}

fn file_headers(files: &[File]) -> Vec<Finding> {
    let bare = files.iter().filter(|file| file.is("rs") && !file.text.starts_with("//!"));
    bare.map(|file| file.whole("does not start with `//!`: what it owns, what it does not know")).collect()
}

fn lua_contracts(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is("lua") && file.path.starts_with("crates/")) {
        let header: Vec<&str> = file.text.lines().take_while(|line| line.starts_with("--")).collect();
        for word in LUA_CONTRACT.iter().filter(|word| !header.iter().any(|line| mentions(line, word))) {
            findings.push(file.whole(format!("its contract header does not say {word}")));
        }
    }
    findings
}

/// A migration that exists for one database only is found here and not on the day of the upgrade.
fn migration_numbers(files: &[File]) -> Vec<Finding> {
    let numbers_of = |database: &str| -> BTreeSet<u64> {
        let folder = format!("{MIGRATIONS}{database}/");
        files.iter().filter_map(|file| leading_number(file.path.strip_prefix(&folder)?)).collect()
    };
    let present: Vec<(&str, BTreeSet<u64>)> = DATABASES
        .iter()
        .map(|database| (*database, numbers_of(database)))
        .filter(|(_, numbers)| !numbers.is_empty())
        .collect();
    let all: BTreeSet<u64> = present.iter().flat_map(|(_, numbers)| numbers).copied().collect();
    let mut findings = Vec::new();
    for (database, numbers) in &present {
        for number in all.difference(numbers) {
            let what = format!("migration {number} exists for another database but not for this one");
            findings.push(Finding { path: format!("{MIGRATIONS}{database}"), line: 0, what });
        }
    }
    findings
}

fn unfinished_work(files: &[File]) -> Vec<Finding> {
    let says = |line: &str, word: &str| {
        // In quotes it is a name: a currency is called so.
        let quoted = [format!("\"{word}\""), format!("`{word}`")];
        mentions(&quoted.iter().fold(line.to_owned(), |line, name| line.replace(name, "")), word)
    };
    let unfinished =
        |line: &str| UNFINISHED.iter().any(|word| says(line, word)) || mentions(line, UNFINISHED_MACRO);
    let mut findings = Vec::new();
    for file in files {
        for (number, _) in file.lines().filter(|(_, line)| unfinished(line)) {
            findings.push(file.at(number, "unfinished work: finish it or open an issue"));
        }
    }
    findings
}

fn drawers(files: &[File]) -> Vec<Finding> {
    let is_code = |file: &&File| file.path.starts_with("crates/") || file.path.starts_with("xtask/");
    let mut findings = Vec::new();
    for file in files.iter().filter(is_code) {
        let drawer = file.path.split('/').map(stem).find(|name| DRAWERS.contains(name));
        if let Some(name) = drawer {
            findings.push(file.whole(format!("`{name}` is a drawer, not a concept: name what is inside")));
        }
        for (number, code) in file.code().filter(|_| file.is("rs")) {
            let declares = |name: &&&str| mentions(&code, &format!("mod {name}"));
            if let Some(name) = DRAWERS.iter().find(declares) {
                findings.push(file.at(number, format!("`mod {name}` is a drawer, not a concept")));
            }
        }
    }
    findings
}

fn pure_manifest(files: &[File]) -> Vec<Finding> {
    let manifest_path = format!("{RULES}Cargo.toml");
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.path == manifest_path) {
        for (number, line) in file.lines() {
            if let Some(name) = RULES_REFUSED_CRATES.iter().find(|name| declares_dependency(line, name)) {
                findings.push(file.at(number, format!("`rules` is pure: it may not depend on {name}")));
            }
        }
    }
    findings
}

fn pure_sources(files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is("rs") && file.path.starts_with(RULES)) {
        for (number, code) in file.code() {
            if let Some(word) = RULES_REFUSED_WORDS.iter().find(|word| mentions(&code, word)) {
                findings.push(file.at(number, format!("`rules` is pure: no `{word}`")));
            }
        }
    }
    findings
}

/// A test that never runs protects nothing, and its name says it does.
fn ignored_tests(files: &[File]) -> Vec<Finding> {
    let ignores = |code: &str| {
        let code = code.trim_start();
        code.starts_with("#[ignore") || (code.starts_with("#[cfg_attr") && mentions(code, "ignore"))
    };
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| file.is("rs")) {
        for (number, _) in file.code().filter(|(_, code)| ignores(code)) {
            findings.push(file.at(number, "an ignored test: mend it or remove it"));
        }
    }
    findings
}

fn promised_tests(files: &[File]) -> Vec<Finding> {
    let Some(document) = files.iter().find(|file| file.path == "ARCHITECTURE.md") else { return Vec::new() };
    let known: BTreeSet<String> = files
        .iter()
        .filter(|file| file.is("rs"))
        .flat_map(File::code)
        .flat_map(|(_, c)| functions(&c))
        .collect();
    let mut bound = false;
    let mut findings = Vec::new();
    for (number, line) in document.lines() {
        if line.starts_with('#') && !line.starts_with("###") {
            bound = BOUND_CHAPTERS.contains(&line.trim_end());
        }
        for name in last_cell(line).filter(|_| bound).into_iter().flat_map(backticked) {
            let test = name.rsplit("::").next().unwrap_or(name);
            if is_identifier(test) && !known.contains(test) {
                findings.push(document.at(number, format!("names the test `{test}`, which does not exist")));
            }
        }
    }
    findings
}

impl Border {
    fn admits(&self, module: &str) -> bool {
        let holds = |place: &&'static str| match place.strip_suffix('*') {
            Some(beginning) => module.starts_with(beginning),
            None => module.strip_prefix(place).is_some_and(|rest| rest == ".rs" || rest.starts_with('/')),
        };
        self.places.iter().any(holds) || is_test_file(module)
    }
}

impl File {
    fn is(&self, ending: &str) -> bool {
        ending_of(&self.path) == Some(ending)
    }

    /// Lines with their numbers, counted from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// Lines without comments and without what stands between quotes.
    fn code(&self) -> impl Iterator<Item = (usize, String)> {
        self.lines().map(|(number, line)| (number, code_of(line)))
    }

    /// Code up to the tests at the end of the file: a test may reach over a border to look at it.
    fn product_code(&self) -> impl Iterator<Item = (usize, String)> {
        let lines: Vec<&str> = self.text.lines().collect();
        let tests = lines.windows(2).position(|pair| match pair {
            [attribute, module] => attribute.trim() == "#[cfg(test)]" && module.trim().starts_with("mod "),
            _ => false,
        });
        self.code().take(tests.unwrap_or(lines.len()))
    }

    fn at(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }

    fn whole(&self, what: impl Into<String>) -> Finding {
        self.at(0, what)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

fn is_test_file(module: &str) -> bool {
    module.split('/').any(|part| stem(part) == "tests")
}

/// Does the word occur, not merely as a part of a longer one?
fn mentions(text: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text.get(..at).and_then(|head| head.chars().next_back());
        let after = text.get(at + word.len()..).and_then(|tail| tail.chars().next());
        let open_end = !word.ends_with(part_of_word);
        !before.is_some_and(part_of_word) && (open_end || !after.is_some_and(part_of_word))
    })
}

/// Good for lines; a string over several lines is taken for code, which has not mattered yet.
fn code_of(line: &str) -> String {
    let mut code = String::with_capacity(line.len());
    let mut quoted = false;
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' if quoted => drop(rest.next()),
            // The character `"` itself opens nothing.
            '"' if !quoted && code.ends_with('\'') && rest.peek() == Some(&'\'') => {}
            '"' => {
                quoted = !quoted;
                code.push(c);
            }
            '/' if !quoted && rest.peek() == Some(&'/') => break,
            _ if quoted => {}
            _ => code.push(c),
        }
    }
    code
}

fn functions(code: &str) -> Vec<String> {
    let after_fn = code.match_indices("fn ").filter_map(|(at, word)| code.get(at + word.len()..));
    after_fn.map(|rest| rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()).collect()
}

fn declares_dependency(line: &str, name: &str) -> bool {
    let line = line.trim();
    let key = line.split(['=', '.', ' ']).next().unwrap_or_default().trim_matches('"');
    key == name || (line.starts_with('[') && line.ends_with(&format!("dependencies.{name}]")))
}

fn last_cell(line: &str) -> Option<&str> {
    let row = line.trim().strip_prefix('|')?.strip_suffix('|')?;
    row.rsplit('|').next()
}

fn backticked(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn leading_number(name: &str) -> Option<u64> {
    let digits: String =
        name.trim_start_matches(['V', 'v']).chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

fn stem(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

fn ending_of(path: &str) -> Option<&str> {
    Path::new(path).extension().and_then(|ending| ending.to_str())
}

fn read(root: &Path) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    walk(root, "", &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn walk(root: &Path, folder: &str, files: &mut Vec<File>) -> anyhow::Result<()> {
    let place = root.join(folder);
    for entry in std::fs::read_dir(&place).with_context(|| format!("cannot list {}", place.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        let kind = entry.file_type()?;
        if kind.is_dir() && !SKIPPED_FOLDERS.contains(&name.as_str()) {
            walk(root, &path, files)?;
        } else if kind.is_file() && is_read(&name) {
            let text =
                std::fs::read_to_string(entry.path()).with_context(|| format!("cannot read {path}"))?;
            files.push(File { path, text });
        }
    }
    Ok(())
}

/// Packed scripts and styles are brought from outside.
fn is_read(name: &str) -> bool {
    !name.contains(".min.") && ending_of(name).is_some_and(|ending| READ_ENDINGS.contains(&ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(given: &[(&str, &str)]) -> Vec<File> {
        given.iter().map(|(path, text)| File { path: (*path).into(), text: (*text).into() }).collect()
    }

    /// What the rule says of the files, as `path:line`.
    fn places(rule: Rule, given: &[(&str, &str)]) -> Vec<String> {
        rule(&files(given)).iter().map(|finding| format!("{}:{}", finding.path, finding.line)).collect()
    }

    fn product(module: &str, text: &str) -> Vec<String> {
        places(borders, &[(&format!("{PRODUCT}{module}"), text)])
    }

    fn caught(module: &str, text: &str) -> bool {
        !product(module, text).is_empty()
    }

    #[test]
    fn http_stays_at_the_edge() {
        assert_eq!(
            product("gate/memory.rs", "//! x\nuse axum::Router;"),
            [format!("{PRODUCT}gate/memory.rs:2")]
        );
        assert!(!caught("edge/buy.rs", "use axum::Router;"));
        assert!(!caught("edge.rs", "use axum::Router;"));
        assert!(!caught("app.rs", "use axum::Router;"));
        assert!(caught("apparatus.rs", "use axum::Router;"));
        assert!(!caught("gate.rs", "use utoipa_axum::router::OpenApiRouter;"));
    }

    #[test]
    fn databases_stay_behind_queue_and_ledger() {
        assert!(caught("edge/buy.rs", "let c = rusqlite::Connection::open(p)?;"));
        assert!(!caught("queue/journal.rs", "use rusqlite::Connection;"));
        assert!(!caught("ledger/sqlite.rs", "use rusqlite::Connection;"));
        assert!(caught("queue/journal.rs", "use sqlx::PgPool;"));
        assert!(!caught("ledger/postgres.rs", "use sqlx::PgPool;"));
    }

    #[test]
    fn outgoing_http_stays_where_it_is_expected() {
        assert!(caught("edge/buy.rs", "use reqwest::Client;"));
        assert!(!caught("edge/auth_jwks.rs", "use reqwest::Client;"));
        assert!(!caught("payment/stripe.rs", "use reqwest::Client;"));
        assert!(!caught("outbox/courier.rs", "use reqwest::Client;"));
        assert!(!caught("cli/sale.rs", "use reqwest::Client;"));
    }

    #[test]
    fn only_the_clock_reads_the_wall() {
        assert!(caught("gate/memory.rs", "let t = Instant::now();"));
        assert!(caught("gate/memory.rs", "let t = std::time::SystemTime::now();"));
        assert!(!caught("clock.rs", "let t = Instant::now();"));
    }

    #[test]
    fn tests_comments_and_strings_cross_no_border() {
        assert!(!caught("gate.rs", "#[cfg(test)]\nmod tests {\n    use axum::Router;\n}"));
        assert!(!caught("gate/tests.rs", "use axum::Router;"));
        assert!(!caught("gate.rs", "/// Unlike `axum::Router`, it waits.\nlet s = \"axum::Router\";"));
        assert!(caught("gate.rs", "#[cfg(test)]\nuse axum::Router;"));
        assert!(caught("gate.rs", "let url = \"http://a\"; axum::serve(x);"));
    }

    #[test]
    fn a_file_without_its_first_sentence_is_found() {
        let given = [("crates/a/src/lib.rs", "//! Owns a."), ("xtask/src/main.rs", "use std::fs;")];
        assert_eq!(places(file_headers, &given), ["xtask/src/main.rs:0"]);
    }

    #[test]
    fn a_script_without_its_contract_is_found() {
        let good = "-- claim: decide.\n-- KEYS 1 lane\n-- ARGV 1 epoch\n-- RETURNS a code\nreturn 0";
        assert!(places(lua_contracts, &[("crates/doorbuster/src/gate/lua/claim.lua", good)]).is_empty());
        let late = "-- claim\n-- KEYS 1 lane\n-- ARGV 1 epoch\nlocal x = 1\n-- RETURNS a code";
        assert_eq!(places(lua_contracts, &[("crates/x/claim.lua", late)]), ["crates/x/claim.lua:0"]);
    }

    #[test]
    fn a_migration_missing_in_one_database_is_found() {
        let path = |rest: &str| format!("{MIGRATIONS}{rest}");
        let [a, b, c] =
            [path("sqlite/0001_sales.sql"), path("sqlite/0002_orders.sql"), path("mysql/0001.sql")];
        let given = [(a.as_str(), ""), (b.as_str(), "")];
        assert!(places(migration_numbers, &given).is_empty());
        let given = [(a.as_str(), ""), (b.as_str(), ""), (c.as_str(), "")];
        assert_eq!(places(migration_numbers, &given), [format!("{MIGRATIONS}mysql:0")]);
    }

    #[test]
    fn unfinished_work_is_found_in_any_language() {
        for word in UNFINISHED.iter().copied().chain([concat!("to", "do!()")]) {
            let text = format!("fine\n-- {word}: later");
            assert_eq!(places(unfinished_work, &[("a/b.sql", &text)]), ["a/b.sql:2"], "{word}");
        }
        assert!(places(unfinished_work, &[("a.md", "a HACKSAW, a mastodon")]).is_empty());
        let currency = UNFINISHED.map(|word| format!("`{word}` or \"{word}\"")).join("\n");
        assert!(places(unfinished_work, &[("a.md", &currency)]).is_empty());
    }

    #[test]
    fn drawers_are_found_as_files_folders_and_modules() {
        assert_eq!(places(drawers, &[("crates/a/src/utils.rs", "")]), ["crates/a/src/utils.rs:0"]);
        assert_eq!(places(drawers, &[("crates/a/src/helpers/x.rs", "")]), ["crates/a/src/helpers/x.rs:0"]);
        assert_eq!(
            places(drawers, &[("crates/a/src/lib.rs", "//! a\nmod common;")]),
            ["crates/a/src/lib.rs:2"]
        );
        assert!(places(drawers, &[("crates/a/src/lib.rs", "mod commons;")]).is_empty());
    }

    #[test]
    fn the_pure_crate_depends_on_nothing_that_waits() {
        let manifest = |text: &str| places(pure_manifest, &[("crates/rules/Cargo.toml", text)]).len();
        assert_eq!(manifest("[dependencies]\ntokio.workspace = true"), 1);
        assert_eq!(manifest("[dependencies]\nrusqlite = \"0.39\""), 1);
        assert_eq!(manifest("[dependencies.axum]\nversion = \"0.8\""), 1);
        assert_eq!(manifest("[dependencies]\nserde.workspace = true\ntokio-ish = \"1\""), 0);
    }

    #[test]
    fn the_pure_crate_reaches_nothing() {
        let source = |text: &str| places(pure_sources, &[("crates/rules/src/pass.rs", text)]).len();
        assert_eq!(source("use std::fs::File;"), 1);
        assert_eq!(source("use std::net::IpAddr;"), 1);
        assert_eq!(source("async fn f() { tokio::task::yield_now().await }"), 1);
        assert_eq!(source("// unlike tokio, this never waits"), 0);
    }

    #[test]
    fn an_ignored_test_is_found() {
        let ignored = |text: &str| places(ignored_tests, &[("crates/a/tests/it/main.rs", text)]).len();
        assert_eq!(ignored("#[test]\n    #[ignore = \"slow\"]\nfn a() {}"), 1);
        assert_eq!(ignored("#[cfg_attr(miri, ignore)]"), 1);
        assert_eq!(ignored("// #[ignore] is refused"), 0);
    }

    #[test]
    fn a_promise_whose_test_does_not_exist_is_found() {
        let document = "## Promises and their tests\n| promise | test |\n|---|---|\n\
             | never oversell | `tests::it_never_oversells` |\n| one clock | `nobody_is_early`, `gone` |\n\
             ## Code map\n| a | `not_a_test` |\n";
        let source = "//! x\nasync fn it_never_oversells() {}\nfn nobody_is_early() {}";
        let given = [("ARCHITECTURE.md", document), ("crates/a/tests/it/main.rs", source)];
        let findings = promised_tests(&files(&given));
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert_eq!(findings[0].to_string(), "ARCHITECTURE.md:5: names the test `gone`, which does not exist");
    }

    #[test]
    fn a_test_that_is_only_spoken_of_does_not_count() {
        let document = "## Invariants and their tests\n| a | `spoken_of` |";
        let given = [("ARCHITECTURE.md", document), ("crates/a/src/lib.rs", "// fn spoken_of() {}")];
        assert_eq!(places(promised_tests, &given), ["ARCHITECTURE.md:2"]);
    }

    #[test]
    fn a_folder_without_the_product_is_not_called_tidy() {
        let error = check(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_err().to_string();
        assert!(error.contains("no sources under"), "{error}");
    }
}
