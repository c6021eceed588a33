//! The issuer's published keys. Owns fetching them, when to fetch again, and that the last good set stays.
//! Does not know what a key verifies.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Context;
use arc_swap::ArcSwap;
use jsonwebtoken::Header;
use parking_lot::Mutex;
use reqwest::{Client, Url};
use rules::time::UnixMs;
use tokio::io::AsyncReadExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::TokenRefusal;
use super::keys::{ClaimChecks, Claims, KeySet};
use crate::clock::Clock;

/// At most one try in this time, whoever asks for keys we do not have, in milliseconds.
pub(super) const TRY_EVERY_MS: u64 = 30_000;

/// A URL is fetched again after this time even if nobody asks: a withdrawn key must go. In milliseconds.
pub(super) const RENEW_EVERY_MS: u64 = 10 * 60_000;

/// How often the worker looks whether a try is due.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long the issuer may take for its whole answer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// How often the issuer may send us elsewhere.
const MAX_REDIRECTS: usize = 3;

/// The largest document that is read, in bytes.
pub(super) const MAX_SET_BYTES: usize = 256 * 1024;

#[derive(Debug)]
pub(super) enum Source {
    File(PathBuf),
    Url { url: Url, client: Client },
}

impl Source {
    /// Whether keys can come from there; the reason reads on after the setting's name.
    pub fn check(jwks: &str) -> Result<(), String> {
        if !jwks.contains("://") {
            return Ok(());
        }
        match Url::parse(jwks) {
            Ok(url) if url.scheme() == "https" => Ok(()),
            Ok(_) => Err("must be a file or an https:// address.".into()),
            Err(error) => Err(format!("is no address: {error}.")),
        }
    }

    pub fn parse(jwks: &str) -> anyhow::Result<Self> {
        Self::check(jwks).map_err(|why| anyhow::anyhow!("`auth.jwks` {why}"))?;
        if !jwks.contains("://") {
            return Ok(Self::File(PathBuf::from(jwks)));
        }
        // `https_only` also holds for every redirect.
        let client = client().https_only(true).build().context("no HTTPS client for `auth.jwks`")?;
        Ok(Self::Url { url: Url::parse(jwks)?, client })
    }

    fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Url { url, .. } => url.to_string(),
        }
    }
}

/// Every fetch opens its own connection: fetches are rare, and one lost on a connection the issuer has just
/// closed would keep a new key unknown for another half minute.
pub(super) fn client() -> reqwest::ClientBuilder {
    Client::builder()
        .redirect(reqwest::redirect::Policy::limited(MAX_REDIRECTS))
        .timeout(FETCH_TIMEOUT)
        .pool_max_idle_per_host(0)
}

#[derive(Debug)]
pub(super) struct PublishedKeys {
    source: Source,
    checks: ClaimChecks,
    set: ArcSwap<KeySet>,
    wanted: AtomicBool,
    wake: Notify,
    last: Mutex<Last>,
}

/// What the last tries brought.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    tried_at: Option<UnixMs>,
    loaded_at: Option<UnixMs>,
    failed: bool,
    stamp: Option<FileStamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStamp {
    modified: SystemTime,
    bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refresh {
    NotDue,
    Unchanged,
    Loaded,
    /// The last good set stays.
    Failed,
}

impl PublishedKeys {
    pub async fn load(source: Source, checks: ClaimChecks, clock: &Clock) -> anyhow::Result<Self> {
        let keys = Self {
            source,
            checks,
            set: ArcSwap::default(),
            wanted: AtomicBool::new(false),
            wake: Notify::new(),
            last: Mutex::default(),
        };
        if let Err(error) = keys.attempt(clock.now()).await {
            let told = format!("the keys of `auth.jwks` at {} cannot be used", keys.source.name());
            match keys.source {
                Source::File(_) => return Err(error.context(told)),
                Source::Url { .. } => tracing::warn!(error = format!("{error:#}"), "{told}; trying again"),
            }
        }
        Ok(keys)
    }

    pub fn verify(&self, token: &str, header: &Header) -> Result<Claims, TokenRefusal> {
        let set = self.set.load();
        let key = set.find(header).inspect_err(|refusal| {
            if *refusal == TokenRefusal::UnknownKey {
                self.want();
            }
        })?;
        key.verify(token, header)
    }

    /// Wakes the worker once; a flood of unknown keys is one wish.
    fn want(&self) {
        if !self.wanted.swap(true, Ordering::AcqRel) {
            self.wake.notify_one();
        }
    }

    pub async fn refresh_loop(&self, clock: &Clock, shutdown: CancellationToken) {
        let refreshing = async {
            loop {
                self.refresh_if_due(clock.now()).await;
                let _either = tokio::time::timeout(LOOK_EVERY, self.wake.notified()).await;
            }
        };
        shutdown.run_until_cancelled(refreshing).await;
    }

    pub async fn refresh_if_due(&self, now: UnixMs) -> Refresh {
        if !self.is_due(now) {
            return Refresh::NotDue;
        }
        match self.attempt(now).await {
            Ok(refresh) => refresh,
            Err(error) => {
                let (from, error) = (self.source.name(), format!("{error:#}"));
                tracing::warn!(from, error, "published keys not refreshed; the last good ones stay");
                Refresh::Failed
            }
        }
    }

    fn is_due(&self, now: UnixMs) -> bool {
        let last = *self.last.lock();
        let since = |at: Option<UnixMs>| at.map_or(u64::MAX, |at| at.ms_until(now));
        let asked_for = match self.source {
            // Looking at a file's date costs nothing, so nobody has to ask.
            Source::File(_) => true,
            Source::Url { .. } => {
                last.failed || self.wanted.load(Ordering::Acquire) || since(last.loaded_at) >= RENEW_EVERY_MS
            }
        };
        asked_for && since(last.tried_at) >= TRY_EVERY_MS
    }

    async fn attempt(&self, now: UnixMs) -> anyhow::Result<Refresh> {
        // Lowered first: a key wished for while we read is a new wish.
        self.wanted.store(false, Ordering::Release);
        self.last.lock().tried_at = Some(now);
        let outcome = self.read_and_swap(now).await;
        self.last.lock().failed = outcome.is_err();
        outcome
    }

    async fn read_and_swap(&self, now: UnixMs) -> anyhow::Result<Refresh> {
        let (json, stamp) = match &self.source {
            Source::File(path) => {
                let stamp = stamp_of(path).await?;
                let last = *self.last.lock();
                if last.stamp == Some(stamp) && !last.failed {
                    return Ok(Refresh::Unchanged);
                }
                (read_file(path).await?, Some(stamp))
            }
            Source::Url { url, client } => (fetch(client, url).await?, None),
        };
        let set = KeySet::parse(&json, &self.checks)?;
        tracing::info!(from = self.source.name(), keys = set.len(), ids = ?set.ids(), "published keys loaded");
        self.set.store(std::sync::Arc::new(set));
        let mut last = self.last.lock();
        last.loaded_at = Some(now);
        last.stamp = stamp;
        Ok(Refresh::Loaded)
    }
}

async fn stamp_of(path: &PathBuf) -> anyhow::Result<FileStamp> {
    let metadata = tokio::fs::metadata(path).await?;
    Ok(FileStamp { modified: metadata.modified()?, bytes: metadata.len() })
}

async fn read_file(path: &PathBuf) -> anyhow::Result<Vec<u8>> {
    let mut json = Vec::new();
    let limit = u64::try_from(MAX_SET_BYTES)?.saturating_add(1);
    tokio::fs::File::open(path).await?.take(limit).read_to_end(&mut json).await?;
    anyhow::ensure!(json.len() <= MAX_SET_BYTES, "it is larger than {MAX_SET_BYTES} bytes");
    Ok(json)
}

/// Counts what arrives instead of trusting the announced length, which may be missing or a lie.
async fn fetch(client: &Client, url: &Url) -> anyhow::Result<Vec<u8>> {
    let mut response = client.get(url.clone()).send().await?.error_for_status()?;
    let mut json = Vec::new();
    while let Some(chunk) = response.chunk().await? {
        anyhow::ensure!(json.len() + chunk.len() <= MAX_SET_BYTES, "it is larger than {MAX_SET_BYTES} bytes");
        json.extend_from_slice(&chunk);
    }
    Ok(json)
}
