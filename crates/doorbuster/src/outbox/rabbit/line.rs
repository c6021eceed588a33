//! The way to a RabbitMQ server: one connection over TCP or TLS, its channels, and a switch that ends it. Owns the
//! socket, so that nothing is left behind when the other side stops answering in the middle of anything: the library
//! alone would wait for a polite end that never comes. Does not know what is sent.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use async_rs::traits::Reactor;
use async_rs::util::RuntimeParts;
use async_rs::{Runtime, Tokio};
use futures_util::Stream;
use lapin::uri::AMQPUri;
use lapin::{AsyncTcpStream, Channel, Connection, ConnectionProperties};
use parking_lot::Mutex;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use rustls_platform_verifier::Verifier;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_util::compat::{Compat, TokioAsyncReadCompatExt as _};
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};

/// A connection. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Line {
    connection: Connection,
    /// Channels on which nothing is under way; never more than were under way at once.
    idle: Mutex<Vec<Channel>>,
    cut: CancellationToken,
    _end: DropGuard,
}

impl Line {
    /// Connects and logs in. Giving up in between leaves nothing behind.
    pub(super) async fn connect(address: &AMQPUri, tls: Option<&Tls>) -> lapin::Result<Self> {
        let cut = CancellationToken::new();
        let end = cut.clone().drop_guard();
        let runtime = Runtime::new(RuntimeParts::new(Tokio::current(), Sockets(Tokio::current())));
        let (tls, switch) = (tls.cloned(), cut.clone());
        let dial = async move |address: AMQPUri, _| {
            let stream = dial(&address, tls.as_ref()).await?;
            lapin::Result::Ok(AsyncTcpStream::Plain(Socket::new(stream, switch.clone()).compat()))
        };
        let properties = ConnectionProperties::default().with_connection_name("doorbuster".into());
        let connection = Connection::connector(address.clone(), runtime, dial, properties).await?;
        Ok(Self { connection, idle: Mutex::default(), cut, _end: end })
    }

    pub(super) fn is_up(&self) -> bool {
        self.connection.status().connected() && !self.cut.is_cancelled()
    }

    /// Whether the server said that it takes nothing for now.
    pub(super) fn is_blocked(&self) -> bool {
        self.connection.status().blocked()
    }

    /// Ends it at once, whatever is under way.
    pub(super) fn cut(&self) {
        self.cut.cancel();
    }

    pub(super) async fn open_channel(&self) -> lapin::Result<Channel> {
        self.connection.create_channel().await
    }

    pub(super) fn take_idle(&self) -> Option<Channel> {
        let mut idle = self.idle.lock();
        std::iter::from_fn(|| idle.pop()).find(|channel| channel.status().connected())
    }

    /// Whatever was under way on it has ended.
    pub(super) fn give_back(&self, channel: Channel) {
        self.idle.lock().push(channel);
    }
}

/// How to know the server by its certificate: authorities of the system, and of `broker.ca_file`.
#[derive(Clone)]
pub(super) struct Tls(TlsConnector);

impl Tls {
    pub(super) fn new(ca_file: Option<&str>) -> anyhow::Result<Self> {
        let provider = Arc::new(aws_lc_rs::default_provider());
        let further = match ca_file {
            None => Vec::new(),
            Some(path) => CertificateDer::pem_file_iter(path)
                .and_then(Iterator::collect)
                .with_context(|| format!("broker.ca_file: cannot read {path}"))?,
        };
        let verifier =
            Verifier::new_with_extra_roots(further, Arc::clone(&provider)).context("broker.ca_file")?;
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("no TLS for RabbitMQ")?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }
}

async fn dial(address: &AMQPUri, tls: Option<&Tls>) -> io::Result<Box<dyn Duplex>> {
    let host = address.authority.host.as_str();
    let tcp = TcpStream::connect((host, address.authority.port)).await?;
    tcp.set_nodelay(true)?;
    let Some(Tls(connector)) = tls else { return Ok(Box::new(tcp)) };
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(connector.connect(name, tcp).await?))
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A stream that breaks when its switch is thrown.
struct Socket {
    stream: Box<dyn Duplex>,
    thrown: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Socket {
    fn new(stream: Box<dyn Duplex>, switch: CancellationToken) -> Self {
        Self { stream, thrown: Box::pin(switch.cancelled_owned()) }
    }

    /// Also wakes the reader when it is thrown later.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.thrown.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::ConnectionAborted.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Socket")
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Tokio's, except that connections are [`Socket`]s, which only [`dial`] makes.
#[derive(Clone, Debug)]
struct Sockets(Tokio);

#[expect(refining_impl_trait, reason = "nothing is registered here, so there is a type but never a value")]
impl Reactor for Sockets {
    type TcpStream = Compat<Socket>;
    type Sleep = tokio::time::Sleep;

    fn register<H: io::Read + io::Write + Send + 'static>(&self, _: H) -> io::Result<Self::TcpStream> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    fn interval(&self, duration: Duration) -> impl Stream<Item = Instant> + Send + 'static {
        self.0.interval(duration)
    }

    fn tcp_connect_addr(
        &self,
        _: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
