//! Who the buyer is. Owns the check of the shop's tokens and the keys they are checked with; knows
//! nothing of requests, headers or answers: a token comes in as text, a buyer or a refusal goes out.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, decode_header};
use rules::buyer::{BuyerId, BuyerIdError};
use rules::time::UnixMs;
use secrecy::ExposeSecret;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::AuthSettings;

mod keys;

mod published;

#[cfg(test)]
mod tests;

use keys::{ClaimChecks, VerifyingKey};
use published::PublishedKeys;

/// The longest token that is looked at, in bytes. Real ones have about one KiB.
pub const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// Why a token says nothing about who asks. The code is `unauthorized` whatever the reason; the sentence is
/// [`TokenRefusal::told`].
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
    #[error("the token's `exp` is missing or no time")]
    Expiry,
    #[error("the token's `sub` is missing or no text")]
    Subject,
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

impl TokenRefusal {
    /// What the one who sent the token is told. Nothing of it helps to forge one: whatever concerns keys and algorithms
    /// is one sentence, and claims are looked at only when the signature fits.
    #[must_use]
    pub const fn told(self) -> &'static str {
        match self {
            Self::TooLong => "The token is longer than 8 KiB.",
            Self::Malformed => "This is no token (JWT) of the kind that is taken here.",
            Self::CriticalHeader => "The token's header demands an extension (crit) that is not known here.",
            Self::Algorithm | Self::UnknownKey | Self::Signature => {
                "The token's signature does not match: is it signed with the key that this server was given?"
            }
            Self::Expiry => "The token's `exp` is needed: seconds since 1970, as a number.",
            Self::Subject => "The token's `sub` is needed: the buyer's id, as text.",
            Self::Claim => "A claim of the token is missing, there twice, or of the wrong type.",
            Self::Issuer => "The token's `iss` is not the issuer that is expected here.",
            Self::Audience => "The token's `aud` does not name this shop.",
            Self::Expired => "The token has expired.",
            Self::NotYet => "The token is not valid yet (nbf).",
            Self::Buyer(_) => "The token's `sub` must have 1 to 128 bytes and no control characters.",
        }
    }
}

/// The buyer of a good token, and when it ends, the leeway included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bearer {
    pub buyer: BuyerId,
    pub until: UnixMs,
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
    /// Loads the keys. The settings were checked as a whole before.
    ///
    /// A file that cannot be used is an error, since a person is there to mend it. A URL that does not
    /// answer is not: the shop's issuer may start after us, and [`Authenticator::refresh_loop`] keeps asking.
    pub async fn from_settings(settings: &AuthSettings, clock: Clock) -> anyhow::Result<Self> {
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
        self.bearer(token).map(|bearer| bearer.buyer)
    }

    /// The same, with the time up to which the token is good: what lasts must not outlast it.
    pub fn bearer(&self, token: &str) -> Result<Bearer, TokenRefusal> {
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
        let buyer = BuyerId::parse(&claims.sub).map_err(TokenRefusal::Buyer)?;
        Ok(Bearer { buyer, until: claims.until() })
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

/// Whether published keys can come from there; the reason reads on after the setting's name.
pub fn check_jwks(jwks: &str) -> Result<(), String> {
    published::Source::check(jwks)
}

#[derive(Serialize)]
struct DemoClaims<'a> {
    sub: &'a str,
    exp: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aud: Option<&'a str>,
}

/// Signs a token for the demo's login, as a shop's issuer would: one that these settings let in. They must have a secret.
pub fn sign_demo_token(
    settings: &AuthSettings,
    buyer: &BuyerId,
    ttl: Duration,
    clock: &Clock,
) -> anyhow::Result<String> {
    install_crypto();
    let secret = settings.hs256_secret.as_ref().context("no auth.hs256_secret is set to sign with")?;
    let ttl_s = i64::try_from(ttl.as_secs()).context("the token would outlive the calendar")?;
    let exp = (clock.now().0 / 1_000).saturating_add(ttl_s);
    let key = EncodingKey::from_secret(secret.expose_secret().as_bytes());
    let (iss, aud) = (settings.issuer.as_deref(), settings.audience.as_deref());
    let claims = DemoClaims { sub: buyer.as_str(), exp, iss, aud };
    jsonwebtoken::encode(&Header::new(Algorithm::HS256), &claims, &key).context("the token cannot be signed")
}

/// The library panics at first use when a dependency has switched on a second provider, so ours is named.
/// Only the first call of a process takes effect.
fn install_crypto() {
    let _already_installed = jsonwebtoken::crypto::aws_lc::DEFAULT_PROVIDER.install_default();
}
