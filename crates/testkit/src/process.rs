//! Owns one started program: its output, its signals, its end. Signals go only to the process started here, by its
//! id, and never to one that was reaped (whose id may belong to somebody else by then). Does not know what it runs.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use parking_lot::{Condvar, Mutex};
use rustix::process::{Pid, Signal, kill_process};

/// Lines kept per process, both streams together; older ones are forgotten.
pub const LINES_KEPT: usize = 20_000;

/// A longer line is cut into pieces of this size.
pub const LINE_BYTES_MAX: u64 = 64 * 1024;

/// How often a wait asks whether the process has ended.
const POLL_EVERY: Duration = Duration::from_millis(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub stream: Stream,
    pub text: String,
}

/// What to start. The environment of the test is inherited.
#[derive(Debug)]
pub struct Program {
    command: Command,
}

impl Program {
    pub fn new(path: impl AsRef<OsStr>) -> Self {
        Self { command: Command::new(path) }
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.command.args(args);
        self
    }

    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn folder(mut self, folder: impl AsRef<std::path::Path>) -> Self {
        self.command.current_dir(folder);
        self
    }

    pub fn start(mut self) -> anyhow::Result<Process> {
        let program = self.command.get_program().to_string_lossy().into_owned();
        self.command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().with_context(|| format!("{program} could not be started"))?;

        let output = Arc::new(Output::default());
        let stdout = child.stdout.take().context("stdout is piped")?;
        let stderr = child.stderr.take().context("stderr is piped")?;
        output.lines.lock().open_streams = 2;
        let readers = vec![listen(stdout, Stream::Stdout, &output), listen(stderr, Stream::Stderr, &output)];
        Ok(Process { program, id: child.id(), child: Mutex::new(child), output, readers })
    }
}

/// A running program. Killed and reaped on drop.
#[derive(Debug)]
pub struct Process {
    program: String,
    id: u32,
    child: Mutex<Child>,
    output: Arc<Output>,
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The first kept line, of either stream, that starts with `prefix`. Waits for it.
    pub fn wait_for_line(&self, prefix: &str, timeout: Duration) -> anyhow::Result<String> {
        self.wait_for(timeout, |line| line.text.starts_with(prefix))
            .with_context(|| format!("waiting for a line that starts with {prefix:?}"))
    }

    /// The first kept line that satisfies `wanted`. Fails at once when the program closes its output without it.
    pub fn wait_for(&self, timeout: Duration, wanted: impl Fn(&Line) -> bool) -> anyhow::Result<String> {
        let deadline = Instant::now() + timeout;
        let mut lines = self.output.lines.lock();
        loop {
            if let Some(line) = lines.kept.iter().find(|line| wanted(line)) {
                return Ok(line.text.clone());
            }
            let why =
                if lines.open_streams == 0 { "closed its output" } else { "said nothing like it in time" };
            let late = lines.open_streams == 0 || Instant::now() >= deadline;
            ensure!(!late, "{} {why}; it said:\n{}", self.program, lines.tail());
            self.output.changed.wait_until(&mut lines, deadline);
        }
    }

    /// Whether both streams are closed and everything they said is kept.
    pub fn output_ended(&self) -> bool {
        self.output.lines.lock().open_streams == 0
    }

    /// A copy of the kept lines, oldest first.
    pub fn lines(&self) -> Vec<Line> {
        self.output.lines.lock().kept.iter().cloned().collect()
    }

    /// Lines forgotten because more than [`LINES_KEPT`] came.
    pub fn lines_forgotten(&self) -> u64 {
        self.output.lines.lock().forgotten
    }

    /// SIGKILL: no handler runs, nothing is flushed. Harmless when the process has ended.
    pub fn kill(&self) -> anyhow::Result<()> {
        Ok(self.child.lock().kill()?)
    }

    /// SIGTERM: asks the process to end.
    pub fn terminate(&self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)
    }

    /// SIGSTOP: the process stands still, its sockets stay open.
    pub fn stop(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT: it goes on.
    pub fn cont(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    pub fn is_running(&self) -> anyhow::Result<bool> {
        Ok(self.child.lock().try_wait()?.is_none())
    }

    pub fn wait(&self, timeout: Duration) -> anyhow::Result<ExitStatus> {
        let deadline = Instant::now() + timeout;
        loop {
            let late = Instant::now() >= deadline;
            if let Some(status) = self.child.lock().try_wait()? {
                return Ok(status);
            }
            ensure!(
                !late,
                "{} did not end in {timeout:?}; it said:\n{}",
                self.program,
                self.output.lines.lock().tail()
            );
            thread::sleep(POLL_EVERY);
        }
    }

    /// Resident memory.
    pub fn rss_bytes(&self) -> anyhow::Result<u64> {
        let statm = self.proc_file("statm")?;
        let pages: u64 = statm.split_whitespace().nth(1).context("statm has a second field")?.parse()?;
        Ok(pages * u64::try_from(rustix::param::page_size())?)
    }

    /// User and system time of all its threads, in the kernel's ticks (usually 10 ms).
    pub fn cpu_time(&self) -> anyhow::Result<Duration> {
        let stat = self.proc_file("stat")?;
        // The second field is the program's name in brackets and may itself hold blanks and brackets.
        let (_, fields) = stat.rsplit_once(") ").context("stat names the program in brackets")?;
        let mut times = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
        let (Some(user), Some(system)) = (times.next(), times.next()) else {
            bail!("stat is too short: {stat}")
        };
        let milliseconds = (user? + system?) * 1000 / rustix::param::clock_ticks_per_second();
        Ok(Duration::from_millis(milliseconds))
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        // The lock is held until the signal is sent, so that nobody reaps the process in between.
        let mut child = self.child.lock();
        if let Some(status) = child.try_wait()? {
            bail!("{} has already ended: {status}", self.program);
        }
        let id = Pid::from_raw(i32::try_from(self.id)?).context("a process id is not zero")?;
        Ok(kill_process(id, signal)?)
    }

    fn proc_file(&self, name: &str) -> anyhow::Result<String> {
        let mut child = self.child.lock();
        ensure!(child.try_wait()?.is_none(), "{} has ended", self.program);
        Ok(fs::read_to_string(format!("/proc/{}/{name}", self.id))?)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let child = self.child.get_mut();
        let _ended_already = child.kill();
        let _reaped = child.wait();
        // A grandchild may keep the pipe open; joining would wait for it. A reader that is done is joined.
        for reader in self.readers.drain(..).filter(JoinHandle::is_finished) {
            let _panicked = reader.join();
        }
    }
}

#[derive(Debug, Default)]
struct Output {
    lines: Mutex<Lines>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Lines {
    kept: VecDeque<Line>,
    forgotten: u64,
    open_streams: u8,
}

impl Lines {
    const TAIL_LINES: usize = 30;

    fn push(&mut self, line: Line) {
        if self.kept.len() == LINES_KEPT {
            self.kept.pop_front();
            self.forgotten += 1;
        }
        self.kept.push_back(line);
    }

    fn tail(&self) -> String {
        let skipped = self.kept.len().saturating_sub(Self::TAIL_LINES);
        self.kept.iter().skip(skipped).map(|line| format!("  {}\n", line.text)).collect()
    }
}

fn listen(pipe: impl Read + Send + 'static, stream: Stream, output: &Arc<Output>) -> JoinHandle<()> {
    let output = Arc::clone(output);
    thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while let Ok(1..) = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes) {
            let text = String::from_utf8_lossy(bytes.trim_ascii_end()).into_owned();
            output.lines.lock().push(Line { stream, text });
            output.changed.notify_all();
            bytes.clear();
        }
        output.lines.lock().open_streams -= 1;
        output.changed.notify_all();
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::eventually;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn shell(script: &str) -> Process {
        Program::new("/bin/sh").args(["-c", script]).env("GREETING", "listening on http://").start().unwrap()
    }

    fn state(process: &Process) -> char {
        let stat = process.proc_file("stat").unwrap();
        stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
    }

    #[test]
    fn a_line_of_either_stream_is_waited_for() {
        let process = shell("echo noise; echo ${GREETING}a; echo ${GREETING}b >&2; exec sleep 600");
        assert_eq!(
            process.wait_for_line("listening on", PATIENCE).unwrap().len(),
            "listening on http://a".len()
        );
        let said_on_stderr =
            |line: &Line| line.stream == Stream::Stderr && line.text == "listening on http://b";
        assert!(process.wait_for(PATIENCE, said_on_stderr).is_ok());
        assert!(process.is_running().unwrap());
    }

    #[test]
    fn a_program_that_ends_without_the_line_is_an_error_with_its_last_words() {
        let process = shell("echo address in use >&2; exit 3");
        let error = process.wait_for_line("listening", PATIENCE).unwrap_err();
        assert!(format!("{error:#}").contains("address in use"), "{error:#}");
        assert_eq!(process.wait(PATIENCE).unwrap().code(), Some(3));
    }

    #[test]
    fn terminate_can_be_handled_and_kill_cannot() {
        let polite = shell("trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.01; done");
        polite.wait_for_line("ready", PATIENCE).unwrap();
        polite.terminate().unwrap();
        assert_eq!(polite.wait(PATIENCE).unwrap().code(), Some(7));
        polite.wait_for_line("bye", PATIENCE).unwrap();
        assert!(polite.terminate().is_err(), "a reaped process gets no signal");

        let stubborn = shell("trap '' TERM; echo ready; while :; do sleep 0.01; done");
        stubborn.wait_for_line("ready", PATIENCE).unwrap();
        stubborn.terminate().unwrap();
        stubborn.kill().unwrap();
        assert_eq!(stubborn.wait(PATIENCE).unwrap().signal(), Some(9));
    }

    #[test]
    fn a_stopped_process_stands_still_until_it_may_go_on() {
        let process = shell("exec sleep 600");
        process.stop().unwrap();
        eventually(PATIENCE, || state(&process) == 'T');
        process.cont().unwrap();
        eventually(PATIENCE, || state(&process) == 'S');
    }

    #[test]
    fn memory_and_processor_time_are_measured() {
        let busy = shell("while :; do :; done");
        eventually(PATIENCE, || busy.cpu_time().unwrap() >= Duration::from_millis(20));
        assert!(busy.rss_bytes().unwrap() > 100_000);
    }

    #[test]
    fn output_is_bounded_by_lines_and_by_line_length() {
        let process =
            shell("head -c 100000 /dev/zero | tr '\\0' x; echo; seq 1 22000; echo end; exec sleep 600");
        process.wait_for_line("end", PATIENCE).unwrap();
        let lines = process.lines();
        assert_eq!(lines.len(), LINES_KEPT);
        assert_eq!(process.lines_forgotten(), 2 + 22_000 + 1 - LINES_KEPT as u64);
        assert!(lines.iter().all(|line| line.text.len() <= LINE_BYTES_MAX as usize));
    }

    #[test]
    fn a_dropped_process_is_gone() {
        let process = shell("exec sleep 600");
        let folder = format!("/proc/{}", process.id());
        assert!(fs::exists(&folder).unwrap());
        drop(process);
        assert!(!fs::exists(&folder).unwrap());
    }
}
