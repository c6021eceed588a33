//! Brings what the tests and the benchmark need and this machine lacks: Debian packages, cargo tools, Python tools.
//! What is present and new enough is left alone. Never starts a service, never asks for another user's rights.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::process::{ask, on_path, show};

/// A program the tests start, the Debian package that brings it, and what it is needed for.
pub const PACKAGES: &[(&str, &str, &str)] = &[
    ("python3", "python3", "runs the API fuzzer"),
    VALGRIND,
    ("/usr/sbin/rabbitmq-server", "rabbitmq-server", "a receiver of events"),
    ("chromium", "chromium", "shows pages as buyers see them"),
    NGINX,
    ("systemd-analyze", "systemd", "reads the service that the documentation shows"),
];

const VALGRIND: (&str, &str, &str) = ("valgrind", "valgrind", "counts the hot path's instructions");

/// The proxy that the documentation shows, and a rival of the benchmark.
const NGINX: (&str, &str, &str) = ("/usr/sbin/nginx", "nginx", "stands in front of the server");

/// What only the benchmark starts: the rivals.
const RIVAL_PACKAGES: &[(&str, &str, &str)] = &[
    NGINX,
    ("/usr/lib/nginx/modules/ngx_http_lua_module.so", "libnginx-mod-http-lua", "its Lua"),
    ("/usr/share/lua/5.1/nginx/redis.lua", "lua-nginx-redis", "its way to Redis"),
    ("/usr/bin/redis-server", "redis-server", "the rivals' stock"),
];

/// The rival in Node. Whichever Node is there runs it, from Debian or not; its version is among the conditions.
const NODE_PACKAGES: &[(&str, &str, &str)] =
    &[("node", "nodejs", "a rival of the benchmark"), ("npm", "npm", "brings its client of Redis")];

/// The client of the rival in Node; exactly this version, so that figures of two days can be compared.
const IOREDIS: &str = "ioredis@5.11.1";

/// Debian cuts `ensurepip` out of Python; this package puts it back.
const VENV_PACKAGE: &str = "python3-venv";

/// Services of a freshly installed server package must not start: the tests run private ones. Recommended packages
/// are for desks, and nobody is there to answer a question.
const APT_ENVIRONMENT: [&str; 2] = ["DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1"];

/// The cargo tools, oldest acceptable and the one to install.
pub const CARGO_TOOLS: &[CargoTool] = &[
    CargoTool {
        subcommand: "nextest",
        package: "cargo-nextest",
        oldest: Version(0, 9, 100),
        install: "0.9.151",
    },
    CargoTool { subcommand: "deny", package: "cargo-deny", oldest: Version(0, 20, 0), install: "0.20.2" },
];

/// The API fuzzer. Exactly this version, since its findings change from one to the next.
const SCHEMATHESIS: PythonTool = PythonTool { program: "schemathesis", version: "4.32.5" };

/// How the tests learn where the fuzzer lies.
pub const SCHEMATHESIS_VARIABLE: &str = "TEST_SCHEMATHESIS";

#[derive(Debug)]
pub struct CargoTool {
    pub subcommand: &'static str,
    pub package: &'static str,
    pub oldest: Version,
    pub install: &'static str,
}

#[derive(Debug)]
struct PythonTool {
    program: &'static str,
    version: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u32, u32, u32);

/// May missing things be installed, or only named?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    Install,
    CheckOnly,
}

/// Makes everything present, or says in one error everything that is missing and how to get it.
pub fn run(target: &Path, consent: Consent) -> anyhow::Result<()> {
    let steps = [debian(consent), cargo_tools(consent), python_tools(&target.join("venv"), consent)];
    let problems: Vec<String> =
        steps.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    if problems.is_empty() { Ok(()) } else { bail!("{}", problems.join("\n")) }
}

/// The fuzzer's path, whether or not it is there yet: a test that needs it and does not find it fails by itself.
pub fn schemathesis(target: &Path) -> PathBuf {
    program_of(&target.join("venv"), SCHEMATHESIS.program)
}

/// For those who count instructions and need nothing else.
pub fn valgrind(consent: Consent) -> anyhow::Result<()> {
    install_packages(&missing_packages(&[VALGRIND], |program| on_path(program).is_some()), consent)
}

/// What the benchmark's rivals need. Returns where the modules of Node lie, which may be nowhere: that rival gives
/// information only, and without it the others are still measured.
pub fn rivals(target: &Path, consent: Consent) -> anyhow::Result<PathBuf> {
    let mut packages = missing_packages(RIVAL_PACKAGES, |file| Path::new(file).is_file());
    packages.extend(missing_packages(NODE_PACKAGES, |program| on_path(program).is_some()));
    install_packages(&packages, consent)?;
    let folder = target.join("bench").join("node");
    let modules = folder.join("node_modules");
    if !modules.join("ioredis").is_dir() && consent == Consent::Install {
        std::fs::create_dir_all(&folder)?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--prefix"]).arg(&folder).arg(IOREDIS);
        if let Err(error) = show(&mut npm) {
            println!("the rival in Node will be missing: {error:#}");
        }
    }
    Ok(modules)
}

fn debian(consent: Consent) -> anyhow::Result<()> {
    let mut packages = missing_packages(PACKAGES, |program| on_path(program).is_some());
    if !packages.iter().any(|(package, _)| *package == "python3") && !venv_works() {
        packages.push((VENV_PACKAGE, "gives the Python tools a folder of their own"));
    }
    install_packages(&packages, consent)
}

fn install_packages(packages: &[(&str, &str)], consent: Consent) -> anyhow::Result<()> {
    if packages.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = packages.iter().map(|(package, _)| *package).collect();
    permitted(packages, consent, is_root(), on_path("apt-get").is_some())?;
    show(&mut apt(&["update", "--quiet"]))?;
    show(&mut apt_install(&names))
}

/// The packages whose program is not there, each once, with its reason.
fn missing_packages(
    table: &[(&'static str, &'static str, &'static str)],
    present: impl Fn(&str) -> bool,
) -> Vec<(&'static str, &'static str)> {
    let mut missing: Vec<(&str, &str)> = Vec::new();
    for &(program, package, why) in table {
        if !present(program) && !missing.iter().any(|(known, _)| *known == package) {
            missing.push((package, why));
        }
    }
    missing
}

/// `Ok` when this process may install the packages itself; otherwise the sentence and the command for a person.
fn permitted(packages: &[(&str, &str)], consent: Consent, root: bool, has_apt: bool) -> anyhow::Result<()> {
    let wanted: Vec<String> = packages.iter().map(|(package, why)| format!("{package} ({why})")).collect();
    let wanted = wanted.join(", ");
    if !has_apt {
        bail!("missing: {wanted}. There is no apt-get here: install them by the means of this system");
    }
    if consent == Consent::CheckOnly || !root {
        let names: Vec<&str> = packages.iter().map(|(package, _)| *package).collect();
        bail!("missing Debian packages: {wanted}. Run as root:\n  {}", apt_line(&names));
    }
    Ok(())
}

fn apt_line(packages: &[&str]) -> String {
    let [update, install] = [apt(&["update", "--quiet"]), apt_install(packages)];
    format!("{} && {}", crate::process::line(&update), crate::process::line(&install))
}

fn apt_install(packages: &[&str]) -> Command {
    let mut command = apt(&["install", "--yes", "--quiet", "--no-install-recommends"]);
    command.args(packages);
    command
}

/// Through `env`, so that the printed line and the executed one are the same.
fn apt(arguments: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(APT_ENVIRONMENT).arg("apt-get").args(arguments);
    command
}

fn is_root() -> bool {
    ask(Command::new("id").arg("-u")).is_some_and(|id| id.trim() == "0")
}

fn cargo_tools(consent: Consent) -> anyhow::Result<()> {
    for tool in CARGO_TOOLS {
        let present = ask(Command::new("cargo").args([tool.subcommand, "--version"]));
        let present = present.as_deref().and_then(Version::find);
        if present.is_some_and(|version| version >= tool.oldest) {
            continue;
        }
        let mut command = cargo_install(tool);
        if consent == Consent::CheckOnly {
            let found = present.map_or("none".to_owned(), |version| version.to_string());
            let line = crate::process::line(&command);
            bail!("{} {} or newer is needed, found: {found}. Run:\n  {line}", tool.package, tool.oldest);
        }
        show(&mut command)?;
    }
    Ok(())
}

fn cargo_install(tool: &CargoTool) -> Command {
    let mut command = Command::new("cargo");
    command.args(["install", "--locked", tool.package, "--version", tool.install]);
    command
}

fn python_tools(venv: &Path, consent: Consent) -> anyhow::Result<()> {
    let tool = &SCHEMATHESIS;
    let program = program_of(venv, tool.program);
    if reports_version(ask(Command::new(&program).arg("--version")).as_deref(), tool.version) {
        return Ok(());
    }
    if consent == Consent::CheckOnly {
        bail!("{} {} is missing in {}", tool.program, tool.version, venv.display());
    }
    // An interpreter that was upgraded leaves a folder that no longer runs: begin anew instead of guessing.
    show(Command::new("python3").args(["-m", "venv", "--clear"]).arg(venv))?;
    let wanted = format!("{}=={}", tool.program, tool.version);
    show(Command::new(program_of(venv, "python")).args(["-m", "pip", "install", "--quiet", &wanted]))
        .with_context(|| format!("{wanted} could not be installed into {}", venv.display()))
}

fn program_of(venv: &Path, program: &str) -> PathBuf {
    venv.join("bin").join(program)
}

fn venv_works() -> bool {
    ask(Command::new("python3").args(["-c", "import ensurepip, venv"])).is_some()
}

fn reports_version(answer: Option<&str>, wanted: &str) -> bool {
    answer.is_some_and(|text| text.split_whitespace().any(|word| word.trim_start_matches('v') == wanted))
}

impl Version {
    /// The first `1.2.3` among the words of a program's answer; what follows the third number is ignored.
    fn find(text: &str) -> Option<Self> {
        text.split_whitespace().find_map(Self::parse)
    }

    fn parse(word: &str) -> Option<Self> {
        let mut numbers = word.trim_start_matches('v').splitn(3, '.');
        let [major, minor] = [numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?];
        let last = numbers.next()?;
        let digits = last.split(|c: char| !c.is_ascii_digit()).next()?;
        Some(Self(major, minor, digits.parse().ok()?))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[(&str, &str, &str)] = &[
        ("redis-server", "redis-server", "the gate of many nodes"),
        ("redis-sentinel", "redis-sentinel", "its failover"),
        ("redis-cli", "redis-tools", "asks it"),
        ("redis-benchmark", "redis-tools", "measures it"),
    ];

    #[test]
    fn only_packages_whose_program_is_absent_are_wanted_each_once() {
        let missing = missing_packages(TABLE, |program| program == "redis-server");
        assert_eq!(missing, [("redis-sentinel", "its failover"), ("redis-tools", "asks it")]);
        assert_eq!(missing_packages(TABLE, |_| true), []);
    }

    #[test]
    fn packages_are_installed_without_questions_recommendations_or_services() {
        assert_eq!(
            crate::process::line(&apt_install(&["redis-server", "nginx"])),
            "env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
             apt-get install --yes --quiet --no-install-recommends redis-server nginx"
        );
    }

    #[test]
    fn without_root_the_command_is_told_and_the_step_fails() {
        let wanted = [("redis-tools", "asks it")];
        let error = permitted(&wanted, Consent::Install, false, true).unwrap_err().to_string();
        assert!(error.contains("redis-tools (asks it)"), "{error}");
        assert!(error.contains("--no-install-recommends redis-tools"), "{error}");
        assert!(permitted(&wanted, Consent::Install, true, true).is_ok());
    }

    #[test]
    fn root_that_was_told_not_to_install_only_tells() {
        let error = permitted(&[("nginx", "serves")], Consent::CheckOnly, true, true).unwrap_err();
        assert!(error.to_string().contains("Run as root"), "{error}");
    }

    #[test]
    fn a_system_without_apt_is_told_what_is_missing() {
        let error = permitted(&[("nginx", "serves")], Consent::Install, true, false).unwrap_err();
        assert!(error.to_string().contains("nginx (serves)"), "{error}");
    }

    #[test]
    fn a_version_is_found_in_what_tools_really_print() {
        let nextest = "cargo-nextest 0.9.143 (60fa45f63 2026-08-04)\nrelease: 0.9.143";
        assert_eq!(Version::find(nextest), Some(Version(0, 9, 143)));
        assert_eq!(Version::find("cargo-deny 0.20.2-rc.1"), Some(Version(0, 20, 2)));
        assert_eq!(Version::find("no version at all, 1.2"), None);
        assert!(Version(0, 9, 99) < Version(0, 9, 100));
    }

    #[test]
    fn the_version_to_install_satisfies_the_oldest_accepted() {
        for tool in CARGO_TOOLS {
            assert!(Version::find(tool.install).unwrap() >= tool.oldest, "{}", tool.package);
        }
    }

    #[test]
    fn another_version_of_a_python_tool_does_not_count() {
        assert!(reports_version(Some("Schemathesis, version 4.32.5\n"), "4.32.5"));
        assert!(!reports_version(Some("Schemathesis, version 4.32.50\n"), "4.32.5"));
        assert!(!reports_version(None, "4.32.5"));
    }

    #[test]
    fn a_missing_python_tool_is_a_failure_with_a_sentence() {
        let error = python_tools(Path::new("/nonexistent/venv"), Consent::CheckOnly).unwrap_err();
        assert_eq!(error.to_string(), "schemathesis 4.32.5 is missing in /nonexistent/venv");
    }
}
