//! Copies of the offers' images: fetched when a sale is published, kept in the data folder under the hash of their
//! content, and shown to buyers instead of the source. So a crowd asks one server only, and a page does not change
//! because somebody else's file did. Owns where images may come from and which bytes are one; knows no HTTP answers.

use std::collections::{BTreeSet, HashMap};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt as _};
use parking_lot::Mutex;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Url};
use rules::sale::Sale;
use tokio::time::Instant;

use crate::app::App;
use crate::config::Settings;
use crate::guard::{PublicOnly, names_private_address};
use crate::ledger::{ImageCopy, LedgerResult};

/// Where buyers find the copies.
pub const PATH: &str = "/images/";

/// The folder of the copies in the data folder.
const FOLDER: &str = "images";

/// The largest image, in bytes: four times what a good picture of a product needs.
const BYTES_MAX: usize = 2 * 1_024 * 1_024;

/// How long one image may take.
const ONE_WITHIN: Duration = Duration::from_secs(10);

/// How long all images of a sale may take; what is not there by then is told, and the next preheat tries again.
const ALL_WITHIN: Duration = Duration::from_secs(15);

/// Images fetched at once.
const AT_ONCE: usize = 8;

/// How often the other side may send us elsewhere.
const REDIRECTS_MAX: usize = 3;

const PRIVATE: &str = "its address is not a public one (images.private_addresses allows that)";

/// What images may be, by their first bytes: what a server says about them is not asked. No SVG: it can carry scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Png,
    Jpeg,
    Gif,
    Webp,
    Avif,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Png, Self::Jpeg, Self::Gif, Self::Webp, Self::Avif];

    fn of(bytes: &[u8]) -> Option<Self> {
        let is = |kind: &Self| match kind {
            Self::Png => bytes.starts_with(b"\x89PNG\r\n\x1a\n"),
            Self::Jpeg => bytes.starts_with(b"\xff\xd8\xff"),
            Self::Gif => bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a"),
            Self::Webp => bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(&b"WEBP"[..]),
            Self::Avif => matches!(bytes.get(4..12), Some(b"ftypavif" | b"ftypavis")),
        };
        Self::ALL.into_iter().find(is)
    }

    const fn ending(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg => "jpg",
            Self::Gif => "gif",
            Self::Webp => "webp",
            Self::Avif => "avif",
        }
    }

    const fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Gif => "image/gif",
            Self::Webp => "image/webp",
            Self::Avif => "image/avif",
        }
    }
}

/// The copies of one data folder.
#[derive(Debug)]
pub struct Images {
    folder: PathBuf,
    client: Client,
    private_addresses: bool,
    /// By source.
    known: Mutex<HashMap<String, ImageCopy>>,
}

/// A copy to be served.
#[derive(Clone, Debug)]
pub struct Image {
    pub bytes: Bytes,
    pub media_type: &'static str,
}

impl Images {
    /// With what the ledger remembers of earlier copies.
    pub fn new(settings: &Settings, known: Vec<ImageCopy>) -> anyhow::Result<Self> {
        let known = known.into_iter().map(|copy| (copy.source.clone(), copy)).collect();
        Ok(Self {
            folder: settings.data_dir.join(FOLDER),
            client: client(settings)?,
            private_addresses: settings.images.private_addresses,
            known: Mutex::new(known),
        })
    }

    /// What is known about the copy of this source.
    #[must_use]
    pub fn copy_of(&self, source: &str) -> Option<ImageCopy> {
        self.known.lock().get(source).cloned()
    }

    /// Where buyers find an image: a path of this server stays, of everything else they get our copy or nothing.
    #[must_use]
    pub fn address(&self, image: &str) -> Option<String> {
        if !is_foreign(image) {
            return Some(image.to_owned());
        }
        self.copy_of(image)?.name.map(|name| format!("{PATH}{name}"))
    }

    /// The sale as buyers see it: with our copies.
    #[must_use]
    pub fn shown(&self, sale: &Sale) -> Sale {
        let mut shown = sale.clone();
        for offer in &mut shown.offers {
            offer.image = offer.image.as_deref().and_then(|image| self.address(image));
        }
        shown
    }

    /// A copy by its name; `None` also for what can be no name of ours.
    pub async fn read(&self, name: &str) -> Option<Image> {
        let (hash, ending) = name.split_once('.')?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.ending() == ending)?;
        let is_hash = hash.len() == 64 && hash.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let bytes = if is_hash { tokio::fs::read(self.folder.join(name)).await.ok()? } else { return None };
        Some(Image { bytes: bytes.into(), media_type: kind.media_type() })
    }

    /// Fetches and keeps one image. When that fails, an earlier copy stays.
    async fn copy(&self, source: String, deadline: Instant) -> ImageCopy {
        let kept = tokio::time::timeout_at(deadline, self.fetch_and_keep(&source)).await;
        let outcome = kept.unwrap_or_else(|_| Err(anyhow::anyhow!("there was no time left for it")));
        match outcome {
            Ok(name) => ImageCopy { source, name: Some(name), problem: None },
            Err(error) => {
                let problem = format!("{error:#}");
                tracing::warn!(%source, %problem, "an image could not be copied; preheat the sale to try again");
                let name = self.copy_of(&source).and_then(|before| before.name);
                ImageCopy { source, name, problem: Some(problem) }
            }
        }
    }

    async fn fetch_and_keep(&self, source: &str) -> anyhow::Result<String> {
        let bytes = self.fetch(source).await?;
        let kind = Kind::of(&bytes).context("it is no PNG, JPEG, GIF, WebP or AVIF")?;
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &bytes);
        let hash: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("{hash}.{}", kind.ending());
        let (folder, file) = (self.folder.clone(), self.folder.join(&name));
        tokio::task::spawn_blocking(move || keep(&folder, &file, &bytes)).await??;
        Ok(name)
    }

    /// Counts what arrives instead of trusting the announced length, which may be missing or a lie.
    async fn fetch(&self, source: &str) -> anyhow::Result<Vec<u8>> {
        let url = Url::parse(source).context("it is no address")?;
        ensure!(self.private_addresses || !names_private_address(&url), PRIVATE);
        let mut response = self.client.get(url).send().await?.error_for_status()?;
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            ensure!(bytes.len() + chunk.len() <= BYTES_MAX, "it is larger than {BYTES_MAX} bytes");
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

impl App {
    /// Copies the images of a published sale and shows them: all of them when it is published, else those that are
    /// missing. The sale sells meanwhile; what could not be copied is told with the offer.
    pub async fn copy_images(self: &Arc<Self>, sale: &Sale, which: Which) -> LedgerResult<()> {
        let wanted = |image: &String| {
            is_foreign(image) && (which == Which::All || self.images.address(image).is_none())
        };
        let sources: BTreeSet<String> =
            sale.offers.iter().filter_map(|offer| offer.image.clone()).filter(wanted).collect();
        if sources.is_empty() {
            return Ok(());
        }
        let (app, id) = (Arc::clone(self), sale.id);
        self.to_the_end(async move {
            let deadline = Instant::from_std(app.clock.instant()) + ALL_WITHIN;
            let copying = stream::iter(sources).map(|source| {
                let app = Arc::clone(&app);
                async move { app.images.copy(source, deadline).await }
            });
            let copies: Vec<ImageCopy> = copying.buffer_unordered(AT_ONCE).collect().await;
            app.ledger.note_image_copies(copies.clone(), app.clock.now()).await?;
            app.images.known.lock().extend(copies.into_iter().map(|copy| (copy.source.clone(), copy)));
            let _turn = app.operator_turn.lock().await;
            if let Some(sale) = app.ledger.sale(id).await? {
                app.preheat(&sale).await?;
            }
            Ok(())
        })
        .await
    }

    /// The same without waiting for it: a slow server of images must not hold up whoever publishes.
    pub(crate) fn copy_images_soon(self: &Arc<Self>, sale: Sale) {
        let app = Arc::clone(self);
        let copying = async move {
            if let Err(error) = app.copy_images(&sale, Which::All).await {
                tracing::warn!(sale_id = %sale.id, %error, "the copies of its images could not be noted");
            }
        };
        self.tasks.spawn_on(copying, &self.runtime);
    }
}

/// Which images of a sale are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    All,
    Missing,
}

fn is_foreign(image: &str) -> bool {
    !image.starts_with('/')
}

/// Whole or not at all, and still there after a power cut.
fn keep(folder: &Path, file: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if file.exists() {
        return Ok(());
    }
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let mut draft = tempfile::NamedTempFile::new_in(folder).context("cannot be kept")?;
    draft.write_all(bytes).context("cannot be kept")?;
    draft.as_file().sync_all().context("cannot be kept")?;
    draft.persist(file).context("cannot be kept")?;
    std::fs::File::open(folder)?.sync_all().context("cannot be kept")
}

fn client(settings: &Settings) -> anyhow::Result<Client> {
    let private = settings.images.private_addresses;
    // No proxy: it would look up names for us, and nobody would see where they lead.
    let mut client = Client::builder().https_only(true).no_proxy().timeout(ONE_WITHIN);
    client = client.pool_max_idle_per_host(0).redirect(Policy::custom(move |attempt| {
        if attempt.previous().len() > REDIRECTS_MAX {
            attempt.error("it sends us elsewhere too often")
        } else if !private && names_private_address(attempt.url()) {
            attempt.error(PRIVATE)
        } else {
            attempt.follow()
        }
    }));
    if !private {
        client = client.dns_resolver(PublicOnly::or(PRIVATE));
    }
    if let Some(path) = &settings.images.ca_file {
        let pem = std::fs::read(path).with_context(|| format!("images.ca_file: cannot read {path}"))?;
        let certificates = Certificate::from_pem_bundle(&pem).context("images.ca_file")?;
        client = client.tls_certs_merge(certificates);
    }
    client.build().context("no HTTPS client for images")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_known_by_its_bytes() {
        assert_eq!(Kind::of(b"\x89PNG\r\n\x1a\n....").unwrap(), Kind::Png);
        assert_eq!(Kind::of(b"\xff\xd8\xff\xe0").unwrap(), Kind::Jpeg);
        assert_eq!(Kind::of(b"GIF89a").unwrap(), Kind::Gif);
        assert_eq!(Kind::of(b"RIFF\0\0\0\0WEBPVP8 ").unwrap(), Kind::Webp);
        assert_eq!(Kind::of(b"\0\0\0\x20ftypavif").unwrap(), Kind::Avif);
        for none in
            [&b"<svg xmlns='http://www.w3.org/2000/svg'/>"[..], b"<!doctype html>", b"", b"RIFF\0\0\0\0WAVE"]
        {
            assert_eq!(Kind::of(none), None);
        }
    }
}
