//! Signatures by Standard Webhooks (standardwebhooks.com): how a receiver knows that an event is ours and new. Owns the
//! secrets' form and the signed text; sends nothing.

use std::fmt;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Headers of every delivery.
pub const ID: &str = "webhook-id";
pub const TIMESTAMP: &str = "webhook-timestamp";
pub const SIGNATURE: &str = "webhook-signature";

const PREFIX: &str = "whsec_";

/// Length of the secrets we make, in bytes; the standard allows 24 to 64.
const SECRET_BYTES: usize = 32;

/// A webhook's signing secret. Shown to whoever made it, once, and never by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl Secret {
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random::<[u8; SECRET_BYTES]>().to_vec())
    }

    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// `whsec_…`, as receivers' libraries take it.
    #[must_use]
    pub fn reveal(&self) -> String {
        format!("{PREFIX}{}", STANDARD.encode(&self.0))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// The value of [`SIGNATURE`]: one signature per secret, any of which is enough for the receiver. `id` must hold no
/// full stop, or two different messages could be signed alike.
#[must_use]
pub fn sign<'a>(
    secrets: impl IntoIterator<Item = &'a Secret>,
    id: &str,
    timestamp_s: i64,
    body: &[u8],
) -> String {
    let head = format!("{id}.{timestamp_s}.");
    let signatures = secrets.into_iter().map(|secret| {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &secret.0);
        let mut context = hmac::Context::with_key(&key);
        context.update(head.as_bytes());
        context.update(body);
        format!("v1,{}", STANDARD.encode(context.sign()))
    });
    signatures.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Vectors {
        made_with: String,
        messages: Vec<Message>,
    }

    #[derive(Deserialize)]
    struct Message {
        secrets: Vec<String>,
        id: String,
        timestamp: i64,
        body: String,
        signature: String,
    }

    fn vectors() -> Vectors {
        serde_json::from_str(include_str!("../../tests/vectors/webhooks/vectors.json")).unwrap()
    }

    fn parse(text: &str) -> Secret {
        Secret::from_bytes(STANDARD.decode(text.strip_prefix(PREFIX).unwrap()).unwrap())
    }

    #[test]
    fn signatures_are_those_of_the_reference_library() {
        let Vectors { made_with, messages } = vectors();
        assert!(made_with.starts_with("standardwebhooks") && messages.len() >= 8, "{made_with}");
        for message in messages {
            let secrets: Vec<Secret> = message.secrets.iter().map(|text| parse(text)).collect();
            let signed = sign(&secrets, &message.id, message.timestamp, message.body.as_bytes());
            assert_eq!(signed, message.signature, "{}", message.id);
        }
    }

    #[test]
    fn a_secret_is_shown_as_libraries_take_it_and_hidden_otherwise() {
        let secret = Secret::random();
        assert_eq!(parse(&secret.reveal()), secret);
        assert_eq!(secret.as_bytes().len(), SECRET_BYTES);
        assert_ne!(secret, Secret::random());
        assert_eq!(format!("{secret:?}"), "Secret(hidden)");
    }
}
