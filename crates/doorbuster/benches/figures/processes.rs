//! Processes that the bench starts and ends by their id, and what the kernel says about them. Knows no contender.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};

/// A contender that does not listen by then has failed.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long a contender has to end after it was asked, before it is killed.
const END_LIMIT: Duration = Duration::from_secs(3);
/// Open files that ten thousand slow sockets and an overload need, on either side.
const OPEN_FILES: u64 = 131_072;

/// A process of ours, ended with everything it started when this goes out of scope.
#[derive(Debug)]
pub struct Owned {
    child: Child,
    pub line: String,
}

impl Owned {
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let child = command.spawn().with_context(|| format!("could not start `{line}`"))?;
        Ok(Self { child, line })
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Lets it stand still, or go on: it lives, and does nothing.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.signal(rustix::process::Signal::STOP)
    }

    pub fn cont(&self) -> anyhow::Result<()> {
        self.signal(rustix::process::Signal::CONT)
    }

    fn signal(&self, signal: rustix::process::Signal) -> anyhow::Result<()> {
        let id = pid(self.child.id()).context("no such process")?;
        Ok(rustix::process::kill_process(id, signal)?)
    }

    /// Waits until somebody listens at the address.
    pub fn wait_for(&mut self, address: SocketAddr) -> anyhow::Result<()> {
        let began = Instant::now();
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("`{}` ended at once: {status}", self.line);
            }
            ensure!(began.elapsed() < START_LIMIT, "`{}` does not listen on {address}", self.line);
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // Asked first, so that a parent ends its own children (nginx, node); these are noted before they are orphans.
        let family = family_of(self.child.id());
        if let Some(id) = pid(self.child.id()) {
            let _ = rustix::process::kill_process(id, rustix::process::Signal::TERM);
        }
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && began.elapsed() < END_LIMIT {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        for child in family.into_iter().skip(1).filter(|child| is_orphan_of_ours(*child)).filter_map(pid) {
            let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
        }
    }
}

/// A child whose parent is gone belongs to the first process. An id that was given to somebody else does not pass.
fn is_orphan_of_ours(id: u32) -> bool {
    parent_of(id) == Some(1)
}

fn pid(id: u32) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(i32::try_from(id).ok()?)
}

/// The process and all its descendants, itself first.
pub fn family_of(id: u32) -> Vec<u32> {
    let mut parents: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(parent) = parent_of(child) {
            parents.entry(parent).or_default().push(child);
        }
    }
    let mut family = vec![id];
    let mut at = 0;
    while let Some(member) = family.get(at) {
        family.extend(parents.get(member).cloned().unwrap_or_default());
        at += 1;
    }
    family
}

fn parent_of(id: u32) -> Option<u32> {
    stat_fields(id).get(1)?.parse().ok()
}

/// The fields of `/proc/…/stat` after the name, which may hold anything.
fn stat_fields(id: u32) -> Vec<String> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().map(str::to_owned).collect()
}

/// User and system time of a process and its descendants. The sum is exact to one tick of 10 ms per process, also of
/// threads that have ended.
pub fn cpu_of(id: u32) -> Duration {
    family_of(id).into_iter().map(cpu_of_one).sum()
}

fn cpu_of_one(id: u32) -> Duration {
    let ticks: u64 =
        stat_fields(id).iter().skip(11).take(2).filter_map(|tick| tick.parse::<u64>().ok()).sum();
    // The kernel counts in hundredths of a second on every Linux we know.
    Duration::from_millis(ticks * 10)
}

/// CPU of each living thread of a process, with its name, in microseconds, without ticks.
pub fn thread_cpu_us(id: u32) -> BTreeMap<PathBuf, (String, f64)> {
    let mut threads = BTreeMap::new();
    for task in std::fs::read_dir(format!("/proc/{id}/task")).into_iter().flatten().flatten() {
        let read = |file: &str| std::fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let ns: f64 = read("schedstat").split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0.0);
        threads.insert(task.path(), (read("comm").trim().to_owned(), ns / 1_000.0));
    }
    threads
}

/// Resident memory of one process.
pub fn resident_bytes(id: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: Option<u64> = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0) * 1_024
}

/// A port of loopback that nobody uses now.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Lets this process, and what it starts, open many files. Says how many it may.
pub fn raise_open_files() -> u64 {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let now = getrlimit(Resource::Nofile);
    let hard = now.maximum.unwrap_or(OPEN_FILES);
    let wanted = Rlimit { current: Some(OPEN_FILES), maximum: Some(hard.max(OPEN_FILES)) };
    let possible = Rlimit { current: Some(hard.min(OPEN_FILES)), maximum: now.maximum };
    if setrlimit(Resource::Nofile, wanted).is_err() {
        // Without the right to more than the hard limit: up to it.
        let _ = setrlimit(Resource::Nofile, possible);
    }
    getrlimit(Resource::Nofile).current.unwrap_or(OPEN_FILES)
}

/// The first line a program says about itself.
pub fn version_of(program: &Path, argument: &str) -> String {
    first_line(Command::new(program).arg(argument))
}

/// What was measured; with a `+` when files differ from it.
pub fn commit() -> String {
    first_line(Command::new("git").args(["describe", "--always", "--dirty=+"]))
}

fn first_line(command: &mut Command) -> String {
    let said = command.output().map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    String::from_utf8_lossy(&said).lines().next().unwrap_or("unknown").to_owned()
}
