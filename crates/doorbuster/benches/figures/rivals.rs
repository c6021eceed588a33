//! The rivals: what a strong engineer would build instead, started on loopback, each in a folder of its own. They do
//! less than ours (no passes, metrics or security headers, and only one of them limits anybody), get the answers' sizes of
//! ours, and the fastest connection to Redis that there is, a Unix socket. Measures nothing.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use tempfile::TempDir;

use crate::load::{RIVAL_OFFER, RivalRequests};
use crate::processes::{self, Owned};

const CLAIM_LUA: &str = include_str!("rivals/claim.lua");
const NGINX_CONF: &str = include_str!("rivals/nginx.conf");
const CLUSTER_JS: &str = include_str!("rivals/cluster.js");

/// Where `cargo xtask bench` put ioredis.
pub const NODE_MODULES_VARIABLE: &str = "BENCH_NODE_MODULES";
/// What nginx does about those who come too often.
const UNLIMITED: &str = "";
const LIMITED: &str = "limit_req zone=buyers burst=9 nodelay;";
/// So many tries at once of one buyer are more than any limit lets through.
const TOO_MANY: usize = 30;
/// The longest wait for a server that was just started.
const START_LIMIT: Duration = Duration::from_secs(20);

/// Which rival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Front {
    /// nginx with its Lua module, one script call per request.
    Nginx,
    /// The same, but once Redis said "sold out", all workers know it for a second without asking.
    NginxLocalFlag,
    /// The same with a limit per buyer, which is the least that keeps one buyer's bots from everybody's units.
    NginxLimitedFlag,
    /// With the flag and no limit, but each worker finds it out for itself and keeps it in a variable: the least that can be done.
    NginxWorkerFlag,
    /// Node, a cluster of one worker per core, ioredis.
    Node,
}

/// What Redis does with its writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    Nothing,
    /// `appendfsync always`: the durability that ours has.
    Always,
}

/// Bytes of one answer, head included.
#[derive(Clone, Copy, Debug)]
pub struct AnswerBytes {
    pub refused: usize,
    pub accepted: usize,
}

/// A front and its Redis.
pub struct Rival {
    front: Owned,
    redis: Redis,
    pub address: SocketAddr,
    _folder: TempDir,
}

impl Rival {
    /// Starts one whose answers have as many bytes as ours.
    pub fn start(front: Front, keeping: Keeping, answers: AnswerBytes) -> anyhow::Result<Self> {
        let folder = TempDir::with_prefix("doorbuster-rival-")?;
        let mut redis = Redis::start(folder.path(), keeping)?;
        let none = AnswerBytes { refused: 0, accepted: 0 };
        let (mut process, address) = start_front(front, folder.path(), &redis, none)?;
        let bare = answer_bytes(&mut redis, address)?;
        drop(process);
        let filler = AnswerBytes {
            refused: answers.refused.saturating_sub(bare.refused),
            accepted: answers.accepted.saturating_sub(bare.accepted),
        };
        let address;
        (process, address) = start_front(front, folder.path(), &redis, filler)?;
        let slowed_down = is_slowed_down(address)?;
        ensure!(
            slowed_down == (front == Front::NginxLimitedFlag),
            "a limit where none is meant, or the other way round"
        );
        Ok(Self { front: process, redis, address, _folder: folder })
    }

    /// A sale with so many units that nobody has bought from.
    pub fn open_sale(&mut self, stock: u32) -> anyhow::Result<()> {
        self.redis.open_sale(stock)
    }

    /// How many orders Redis has taken since the sale was opened.
    pub fn orders(&mut self) -> anyhow::Result<u64> {
        self.redis.orders()
    }

    /// All processes of it: workers, Redis, and its children.
    pub fn cpu(&self) -> Duration {
        processes::cpu_of(self.front.id()) + processes::cpu_of(self.redis.process.id())
    }

    pub fn commands(&self) -> [String; 2] {
        [self.front.line.clone(), self.redis.process.line.clone()]
    }
}

fn start_front(
    front: Front,
    folder: &Path,
    redis: &Redis,
    filler: AnswerBytes,
) -> anyhow::Result<(Owned, SocketAddr)> {
    let address = processes::free_address()?;
    let mut process = match front {
        Front::Nginx => start_nginx(folder, redis, address, filler, "none", UNLIMITED)?,
        Front::NginxLocalFlag => start_nginx(folder, redis, address, filler, "shared", UNLIMITED)?,
        Front::NginxLimitedFlag => start_nginx(folder, redis, address, filler, "shared", LIMITED)?,
        Front::NginxWorkerFlag => start_nginx(folder, redis, address, filler, "worker", UNLIMITED)?,
        Front::Node => start_node(folder, redis, address, filler)?,
    };
    process.wait_for(address)?;
    Ok((process, address))
}

fn start_nginx(
    folder: &Path,
    redis: &Redis,
    address: SocketAddr,
    filler: AnswerBytes,
    flag: &str,
    limit: &str,
) -> anyhow::Result<Owned> {
    let path = folder.to_string_lossy();
    let conf = NGINX_CONF
        .replace("@CORES@", &cores().to_string())
        .replace("@FOLDER@", &path)
        .replace("@ADDRESS@", &address.to_string())
        .replace("@SOCKET@", &redis.socket.to_string_lossy())
        .replace("@SHA@", &redis.sha)
        .replace("@OFFER@", RIVAL_OFFER)
        .replace("@FLAG@", flag)
        .replace("@LIMIT@", limit)
        .replace("@ACCEPT_FILLER@", &"x".repeat(filler.accepted))
        .replace("@REFUSE_FILLER@", &"x".repeat(filler.refused));
    let file = folder.join("nginx.conf");
    // As root its workers would become another user, who may enter neither this folder nor the socket's.
    let conf = if rustix::process::geteuid().is_root() { format!("user root;\n{conf}") } else { conf };
    std::fs::write(&file, conf)?;
    let mut command = Command::new(program("nginx", "/usr/sbin/nginx"));
    command.arg("-c").arg(&file).arg("-p").arg(folder).stdin(Stdio::null()).stderr(Stdio::null());
    Owned::start(&mut command)
}

fn start_node(
    folder: &Path,
    redis: &Redis,
    address: SocketAddr,
    filler: AnswerBytes,
) -> anyhow::Result<Owned> {
    let modules = std::env::var_os(NODE_MODULES_VARIABLE)
        .with_context(|| format!("ioredis is not installed ({NODE_MODULES_VARIABLE} is not set)"))?;
    ensure!(
        Path::new(&modules).join("ioredis").is_dir(),
        "ioredis is not installed in {}",
        modules.display()
    );
    let (script, lua) = (folder.join("cluster.js"), folder.join("claim.lua"));
    std::fs::write(&script, CLUSTER_JS)?;
    std::fs::write(&lua, CLAIM_LUA)?;
    let mut command = Command::new(program("node", "/usr/bin/node"));
    command.arg(&script).args([address.port().to_string(), cores().to_string()]);
    command.arg(&redis.socket).arg(&lua).arg(RIVAL_OFFER);
    command.args([filler.accepted.to_string(), filler.refused.to_string()]);
    Owned::start(command.env("NODE_PATH", modules).env("NODE_ENV", "production").stdin(Stdio::null()))
}

/// What one refusal and one accept weigh as they are.
fn answer_bytes(redis: &mut Redis, address: SocketAddr) -> anyhow::Result<AnswerBytes> {
    redis.open_sale(1)?;
    let (status, accepted) = ask_once(address, "a-first-buyer-00")?;
    ensure!(status == "202", "the first buyer was answered {status}");
    let (status, refused) = ask_once(address, "another-buyer-00")?;
    ensure!(status == "409", "the second buyer was answered {status}");
    ensure!(redis.orders()? == 1, "the order did not reach Redis");
    Ok(AnswerBytes { refused, accepted })
}

/// Whether a buyer who tries again and again is told so.
fn is_slowed_down(address: SocketAddr) -> anyhow::Result<bool> {
    let statuses = (0..TOO_MANY).map(|_| ask_once(address, "a-fast-buyer-000").map(|(status, _)| status));
    let statuses = statuses.collect::<anyhow::Result<Vec<_>>>()?;
    Ok(statuses.iter().any(|status| status == "429"))
}

fn ask_once(address: SocketAddr, buyer: &str) -> anyhow::Result<(String, usize)> {
    let mut stream = TcpStream::connect(address)?;
    let mut request = Vec::new();
    RivalRequests::render(&address.to_string(), buyer, 0, &mut request);
    stream.write_all(&request)?;
    let mut reader = BufReader::new(stream);
    let (mut bytes, mut length, mut status) = (0, 0, String::new());
    loop {
        let mut line = String::new();
        bytes += reader.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        if status.is_empty() {
            status = line.split(' ').nth(1).unwrap_or("nothing").to_owned();
        }
        if let Some(value) = line.strip_prefix("content-length: ") {
            length = value.parse()?;
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((status, bytes + length))
}

/// A private Redis without a port.
struct Redis {
    process: Owned,
    socket: PathBuf,
    sha: String,
    connection: BufReader<UnixStream>,
}

impl Redis {
    fn start(folder: &Path, keeping: Keeping) -> anyhow::Result<Self> {
        let socket = folder.join("redis.sock");
        let mut command = Command::new(program("redis-server", "/usr/bin/redis-server"));
        command.args(["--port", "0", "--save", "", "--daemonize", "no", "--loglevel", "warning"]);
        command.arg("--unixsocket").arg(&socket).arg("--dir").arg(folder);
        match keeping {
            Keeping::Nothing => command.args(["--appendonly", "no"]),
            Keeping::Always => command.args(["--appendonly", "yes", "--appendfsync", "always"]),
        };
        let process = Owned::start(command.stdin(Stdio::null()).stdout(Stdio::null()))?;
        let began = Instant::now();
        let connection = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break BufReader::new(stream),
                Err(error) => {
                    ensure!(began.elapsed() < START_LIMIT, "Redis does not answer: {error}");
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
        };
        let mut redis = Self { process, socket, sha: String::new(), connection };
        redis.sha = redis.call(&["SCRIPT", "LOAD", CLAIM_LUA])?;
        Ok(redis)
    }

    fn open_sale(&mut self, stock: u32) -> anyhow::Result<()> {
        self.call(&["FLUSHALL"])?;
        self.call(&["HSET", &key("sale"), "opens_ms", "0", "closes_ms", "9000000000000"])?;
        self.call(&["SET", &key("stock"), &stock.to_string()])?;
        Ok(())
    }

    fn orders(&mut self) -> anyhow::Result<u64> {
        Ok(self.call(&["XLEN", &key("orders")])?.parse()?)
    }

    /// One command; the answer is a status, a number or a short text.
    fn call(&mut self, words: &[&str]) -> anyhow::Result<String> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.connection.get_mut().write_all(request.as_bytes())?;
        let mut line = String::new();
        self.connection.read_line(&mut line)?;
        let line = line.trim_end();
        match line.split_at_checked(1) {
            Some(("+" | ":", rest)) => Ok(rest.to_owned()),
            Some(("$", length)) => {
                let mut text = vec![0; length.parse::<usize>()? + 2];
                self.connection.read_exact(&mut text)?;
                Ok(String::from_utf8(text)?.trim_end().to_owned())
            }
            _ => bail!("Redis answered {line:?} to {words:?}"),
        }
    }
}

/// One of the keys of the offer that is asked for.
fn key(name: &str) -> String {
    format!("{name}:{RIVAL_OFFER}")
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// A program of the search path; Debian keeps servers where not everybody's path leads.
fn program(name: &str, otherwise: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    found.unwrap_or_else(|| otherwise.into())
}

/// What is installed, for the conditions.
pub fn versions() -> serde_json::Value {
    serde_json::json!({
        "nginx": processes::version_of(&program("nginx", "/usr/sbin/nginx"), "-v"),
        "redis": processes::version_of(&program("redis-server", "/usr/bin/redis-server"), "--version"),
        "node": processes::version_of(&program("node", "/usr/bin/node"), "--version"),
    })
}
