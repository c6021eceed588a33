//! The ceiling: a bare hyper server that reads the same request bytes and answers the same number of bytes, with our
//! allocator and profile, in both layouts a server can have. Above it, what no server can exceed that reads and writes
//! once per request: one that does nothing else.

use std::convert::Infallible;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::processes::{self, Owned};

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Layout {
    MultiThread,
    ThreadPerCore,
    /// A thread per core that answers whatever comes with the same bytes and does not know HTTP: what is left is the
    /// kernel's work.
    Echo,
}

/// A ceiling server in a process of its own.
pub struct Ceiling {
    process: Owned,
    pub address: SocketAddr,
}

impl Ceiling {
    /// Starts one whose answers have so many bytes, headers included.
    pub fn start(layout: Layout, answer_bytes: usize) -> anyhow::Result<Self> {
        let layout = match layout {
            Layout::MultiThread => "multi-thread",
            Layout::ThreadPerCore => "thread-per-core",
            Layout::Echo => "echo",
        };
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--ceiling", layout, "--answer-bytes", &answer_bytes.to_string()]);
        let mut process = Owned::start(command.stdout(Stdio::piped()))?;
        let mut line = String::new();
        BufReader::new(process.child().stdout.take().context("no output")?).read_line(&mut line)?;
        let address = line.trim().parse().with_context(|| format!("not an address: {line:?}"))?;
        Ok(Self { process, address })
    }

    pub fn cpu(&self) -> Duration {
        processes::cpu_of(self.process.id())
    }

    pub fn command(&self) -> String {
        self.process.line.clone()
    }
}

/// Runs until it is killed.
pub fn serve(layout: Layout, answer_bytes: usize) -> anyhow::Result<()> {
    // What hyper adds itself: status line, content-length, date.
    let head = "HTTP/1.1 409 Conflict\r\ncontent-length: 000\r\ndate: Tue, 15 Nov 1994 08:12:31 GMT\r\n\r\n";
    let body = Bytes::from(vec![b'x'; answer_bytes.saturating_sub(head.len())]);
    let answer = match layout {
        Layout::MultiThread | Layout::ThreadPerCore => Answer::Http(body),
        Layout::Echo => {
            let head = head.replace("000", &format!("{:03}", body.len()));
            Answer::Bytes([head.as_bytes(), &body].concat().into())
        }
    };
    let cores = std::thread::available_parallelism()?.get();
    match layout {
        Layout::MultiThread => {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(cores).enable_all().build()?;
            runtime.block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                println!("{}", listener.local_addr()?);
                accept(listener, answer).await
            })
        }
        Layout::ThreadPerCore | Layout::Echo => {
            let first = reuse_port("127.0.0.1:0".parse()?)?;
            let address = first.local_addr()?;
            let mut threads = Vec::new();
            for _ in 0..cores {
                let answer = answer.clone();
                let socket = reuse_port(address)?;
                threads.push(std::thread::spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                    runtime.block_on(async { accept(socket.listen(1_024)?, answer).await })
                }));
            }
            drop(first);
            println!("{address}");
            for thread in threads {
                thread.join().expect("a ceiling thread ended")?;
            }
            Ok(())
        }
    }
}

fn reuse_port(address: SocketAddr) -> anyhow::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseport(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// What a connection is answered with.
#[derive(Clone)]
enum Answer {
    /// By hyper, with this body.
    Http(Bytes),
    /// With these bytes, whatever came.
    Bytes(Bytes),
}

async fn accept(listener: TcpListener, answer: Answer) -> anyhow::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        match answer.clone() {
            Answer::Http(body) => tokio::spawn(http(stream, body)),
            Answer::Bytes(bytes) => tokio::spawn(echo(stream, bytes)),
        };
    }
}

async fn http(stream: TcpStream, body: Bytes) {
    let service = service_fn(move |request: Request<Incoming>| {
        let body = body.clone();
        async move {
            // The request's bytes are read, as ours must.
            let _ = request.into_body().collect().await;
            let mut response = Response::new(Full::new(body));
            *response.status_mut() = hyper::StatusCode::CONFLICT;
            Ok::<_, Infallible>(response)
        }
    });
    let http = hyper::server::conn::http1::Builder::new();
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

async fn echo(mut stream: TcpStream, answer: Bytes) {
    let mut request = [0; 1_024];
    while stream.read(&mut request).await.is_ok_and(|bytes| bytes > 0) {
        if stream.write_all(&answer).await.is_err() {
            return;
        }
    }
}
