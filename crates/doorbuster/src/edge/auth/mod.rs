//! Who the buyer is. Owns the check of the shop's tokens and the keys they are checked with; knows
//! nothing of requests, headers or answers: a token comes in as text, a buyer or a refusal goes out.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, decode_header};
use rules::buyer::{BuyerId, BuyerIdError};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

mod keys;

mod published;

#[cfg(test)]
mod tests;

use keys::{ClaimChecks, VerifyingKey};
use published::PublishedKeys;

/// The longest token that is looked at, in bytes. Real ones have about one KiB.
pub const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// The shortest HS256 secret, in bytes: as long as the digest, or it is weaker than the signature.
const MIN_SECRET_BYTES: usize = 32;

/// Where buyers' tokens come from. Exactly one of `hs256_secret` and `jwks` is set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuthSettings {
    /// The secret shared with the shop's issuer, at least 32 bytes.
    pub hs256_secret: Option<SecretString>,
    /// The issuer's published keys: an https URL or the path of a file.
    pub jwks: Option<String>,
    /// When set, the token's `iss` must be this.
    pub issuer: Option<String>,
    /// When set, the token's `aud` must be or contain this. Required with `jwks`: an issuer signs tokens
    /// for many audiences with the same keys.
    pub audience: Option<String>,
    /// Where pages send a buyer who has no token.
    pub login_url: Option<String>,
}

impl AuthSettings {
    /// Says in one sentence what is wrong, naming the setting.
    pub fn check(&self) -> Result<(), String> {
        match (&self.hs256_secret, &self.jwks) {
            (Some(secret), None) => check_secret(secret)?,
            (None, Some(jwks)) => self.check_jwks(jwks)?,
            (None, None) => {
                return Err("buyers cannot be told apart: set `auth.hs256_secret` or `auth.jwks`".into());
            }
            (Some(_), Some(_)) => {
                return Err("`auth.hs256_secret` and `auth.jwks` are both set: keep exactly one".into());
            }
        }
        check_not_empty("auth.issuer", self.issuer.as_deref())?;
        check_not_empty("auth.audience", self.audience.as_deref())?;
        check_login_url(self.login_url.as_deref())
    }

    fn check_jwks(&self, jwks: &str) -> Result<(), String> {
        check_not_empty("auth.jwks", Some(jwks))?;
        published::Source::check(jwks)?;
        if self.audience.is_none() {
            return Err("`auth.jwks` needs `auth.audience`: the same keys sign tokens for others too".into());
        }
        Ok(())
    }
}

fn check_secret(secret: &SecretString) -> Result<(), String> {
    let bytes = secret.expose_secret().len();
    if bytes < MIN_SECRET_BYTES {
        return Err(format!("`auth.hs256_secret` has {bytes} bytes; it needs at least {MIN_SECRET_BYTES}"));
    }
    Ok(())
}

fn check_not_empty(name: &str, value: Option<&str>) -> Result<(), String> {
    match value {
        Some(text) if text.trim().is_empty() => Err(format!("`{name}` is set but empty")),
        _ => Ok(()),
    }
}

/// Pages turn this into a link, so a scheme that runs script must not get in.
fn check_login_url(login_url: Option<&str>) -> Result<(), String> {
    let Some(url) = login_url else { return Ok(()) };
    let is_path = url.starts_with('/') && !url.starts_with("//");
    let is_web = url.starts_with("https://") || url.starts_with("http://");
    if (is_path || is_web) && !url.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Ok(());
    }
    Err("`auth.login_url` must be an http(s) URL or a path that starts with one `/`".into())
}

/// Why a token says nothing about who asks. Buyers hear `unauthorized` whatever the reason; the reason is
/// for logs and metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenRefusal {
    #[error("the token is longer than 8 KiB")]
    TooLong,
    #[error("this is no token of the kind we read")]
    Malformed,
    #[error("the token demands an extension we do not know")]
    CriticalHeader,
    #[error("the token's algorithm is not its key's")]
    Algorithm,
    #[error("no published key fits the token")]
    UnknownKey,
    #[error("the signature does not fit")]
    Signature,
    #[error("a required claim is missing or has the wrong type")]
    Claim,
    #[error("the token comes from another issuer")]
    Issuer,
    #[error("the token is meant for another audience")]
    Audience,
    #[error("the token has expired")]
    Expired,
    #[error("the token is not valid yet")]
    NotYet,
    #[error("the token's `sub` {0}")]
    Buyer(BuyerIdError),
}

/// Turns tokens into buyers. Cheap to clone; all clones see the same keys.
#[derive(Clone, Debug)]
pub struct Authenticator(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    clock: Clock,
    keys: Keys,
}

#[derive(Debug)]
enum Keys {
    Secret(Box<VerifyingKey>),
    Published(Box<PublishedKeys>),
}

impl Authenticator {
    /// Checks the settings and loads the keys.
    ///
    /// A file that cannot be used is an error, since a person is there to mend it. A URL that does not
    /// answer is not: the shop's issuer may start after us, and [`Authenticator::refresh_loop`] keeps asking.
    pub async fn from_settings(settings: &AuthSettings, clock: Clock) -> anyhow::Result<Self> {
        settings.check().map_err(anyhow::Error::msg)?;
        install_crypto();
        let checks = ClaimChecks { issuer: settings.issuer.clone(), audience: settings.audience.clone() };
        let keys = if let Some(secret) = &settings.hs256_secret {
            let key = DecodingKey::from_secret(secret.expose_secret().as_bytes());
            Keys::Secret(Box::new(VerifyingKey::new(None, Algorithm::HS256, key, &checks)))
        } else {
            let jwks = settings.jwks.as_deref().context("neither a secret nor published keys are set")?;
            let source = published::Source::parse(jwks)?;
            Keys::Published(Box::new(PublishedKeys::load(source, checks, &clock).await?))
        };
        Ok(Self(Arc::new(Inner { clock, keys })))
    }

    /// The buyer a token speaks for. Waits for nothing: an unknown key is refused now and fetched by
    /// [`Authenticator::refresh_loop`], so that strangers cannot make a request wait for the issuer.
    pub fn buyer(&self, token: &str) -> Result<BuyerId, TokenRefusal> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenRefusal::TooLong);
        }
        let header = decode_header(token).map_err(|_| TokenRefusal::Malformed)?;
        // RFC 7515 4.1.11: what is marked critical and not understood makes the token invalid. We
        // understand no extension.
        if header.crit.is_some() {
            return Err(TokenRefusal::CriticalHeader);
        }
        let claims = match &self.0.keys {
            Keys::Secret(key) => key.verify(token, &header)?,
            Keys::Published(keys) => keys.verify(token, &header)?,
        };
        claims.check_time(self.0.clock.now())?;
        BuyerId::parse(&claims.sub).map_err(TokenRefusal::Buyer)
    }

    /// Keeps published keys fresh until `shutdown`. With a secret there is nothing to keep fresh, and it
    /// only waits, so that a supervisor can treat both alike.
    pub async fn refresh_loop(&self, shutdown: CancellationToken) {
        match &self.0.keys {
            Keys::Secret(_) => shutdown.cancelled().await,
            Keys::Published(keys) => keys.refresh_loop(&self.0.clock, shutdown).await,
        }
    }
}

#[derive(Serialize)]
struct DemoClaims<'a> {
    sub: &'a str,
    exp: i64,
}

/// Signs a token for the demo's login, as a shop's issuer would.
pub fn sign_demo_token(
    secret: &SecretString,
    buyer: &BuyerId,
    ttl: Duration,
    clock: &Clock,
) -> anyhow::Result<String> {
    install_crypto();
    let ttl_s = i64::try_from(ttl.as_secs()).context("the token would outlive the calendar")?;
    let exp = (clock.now().0 / 1_000).saturating_add(ttl_s);
    let key = EncodingKey::from_secret(secret.expose_secret().as_bytes());
    let claims = DemoClaims { sub: buyer.as_str(), exp };
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).context("the token cannot be signed")
}

/// The library panics at first use when a dependency has switched on a second provider, so ours is named.
/// Only the first call of a process takes effect.
fn install_crypto() {
    let _already_installed = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
}
