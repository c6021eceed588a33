//! One key and what it vouches for. Owns the choice of algorithm, which belongs to the key and never to
//! the token, and the reading of claims. Does not know where keys come from.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::jwk::{
    AlgorithmParameters, CommonParameters, EllipticCurve, Jwk, KeyAlgorithm, KeyOperations, PublicKeyUse,
};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation};
use rules::time::UnixMs;
use serde::{Deserialize, Deserializer};

use super::TokenRefusal;

/// How far the issuer's clock may be off, in milliseconds.
const LEEWAY_MS: i64 = 5_000;

/// The latest `exp` and `nbf` that are taken for times: the end of the year 9999, in milliseconds.
const LATEST_MS: i64 = 253_402_300_799_999;

/// How many keys of a set are kept. Issuers publish two to five.
const MAX_KEYS: usize = 64;

/// What a token must say beside who and until when.
#[derive(Clone, Debug)]
pub(super) struct ClaimChecks {
    pub issuer: Option<String>,
    pub audience: Option<String>,
}

#[derive(Debug)]
pub(super) struct VerifyingKey {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
    validation: Validation,
}

impl VerifyingKey {
    pub fn new(id: Option<String>, algorithm: Algorithm, key: DecodingKey, checks: &ClaimChecks) -> Self {
        Self { id, algorithm, key, validation: validation(algorithm, checks) }
    }

    /// Checks signature, issuer and audience; times are [`Claims::check_time`]'s.
    pub fn verify(&self, token: &str, header: &Header) -> Result<Claims, TokenRefusal> {
        if header.alg != self.algorithm {
            return Err(TokenRefusal::Algorithm);
        }
        let data = jsonwebtoken::decode::<Claims>(token, &self.key, &self.validation)
            .map_err(|error| refusal(error.kind()).named(token))?;
        Ok(data.claims)
    }

    fn from_jwk(jwk: &Jwk, checks: &ClaimChecks) -> Option<Self> {
        if !is_for_signatures(&jwk.common) {
            return None;
        }
        let algorithm = algorithm_of(jwk)?;
        let key = DecodingKey::from_jwk(jwk).ok()?;
        Some(Self::new(jwk.common.key_id.clone(), algorithm, key, checks))
    }
}

fn validation(algorithm: Algorithm, checks: &ClaimChecks) -> Validation {
    let mut validation = Validation::new(algorithm);
    // The library reads the system's clock itself. We have one clock, so times are checked by `Claims`.
    validation.validate_exp = false;
    validation.validate_nbf = false;
    let mut required = vec!["sub", "exp"];
    if let Some(issuer) = &checks.issuer {
        validation.set_issuer(&[issuer]);
        required.push("iss");
    }
    validation.validate_aud = checks.audience.is_some();
    if let Some(audience) = &checks.audience {
        validation.set_audience(&[audience]);
        required.push("aud");
    }
    validation.set_required_spec_claims(&required);
    validation
}

fn refusal(kind: &ErrorKind) -> TokenRefusal {
    match kind {
        ErrorKind::InvalidSignature => TokenRefusal::Signature,
        ErrorKind::InvalidAlgorithm => TokenRefusal::Algorithm,
        ErrorKind::InvalidIssuer => TokenRefusal::Issuer,
        ErrorKind::InvalidAudience => TokenRefusal::Audience,
        // The signature was good, so a payload that does not read is a claim of the wrong type.
        ErrorKind::MissingRequiredClaim(_) | ErrorKind::Json(_) => TokenRefusal::Claim,
        // The library's list is open-ended; whatever it adds is a refusal.
        _ => TokenRefusal::Malformed,
    }
}

impl TokenRefusal {
    /// Says which claim it is, where that can be told. The signature fits by then.
    fn named(self, token: &str) -> Self {
        let payload = || {
            let bytes = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
            serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&bytes).ok()
        };
        let Some(claims) = (self == Self::Claim).then(payload).flatten() else { return self };
        let is_time = |exp: &serde_json::Value| NumericDate::deserialize(exp).is_ok();
        if !claims.get("exp").is_some_and(is_time) {
            Self::Expiry
        } else if !claims.get("sub").is_some_and(serde_json::Value::is_string) {
            Self::Subject
        } else {
            self
        }
    }
}

fn is_for_signatures(common: &CommonParameters) -> bool {
    let by_use = matches!(common.public_key_use, None | Some(PublicKeyUse::Signature));
    let by_operations =
        common.key_operations.as_ref().is_none_or(|operations| operations.contains(&KeyOperations::Verify));
    by_use && by_operations
}

/// The one algorithm a published key may be used with. A symmetric key has no place in a public set, and
/// accepting one would let a reader of the set sign tokens.
fn algorithm_of(jwk: &Jwk) -> Option<Algorithm> {
    let (by_type, name) = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => (Algorithm::RS256, KeyAlgorithm::RS256),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
            (Algorithm::ES256, KeyAlgorithm::ES256)
        }
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
            (Algorithm::EdDSA, KeyAlgorithm::EdDSA)
        }
        _ => return None,
    };
    jwk.common.key_algorithm.is_none_or(|told| told == name).then_some(by_type)
}

/// The usable keys of a published set.
#[derive(Debug, Default)]
pub(super) struct KeySet(Vec<VerifyingKey>);

#[derive(Deserialize)]
struct WireSet {
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    /// Reads a JWKS document. Keys we cannot use are passed over, since issuers publish keys for other
    /// purposes beside ours; a set without any usable key is an error, so that it never replaces a good one.
    pub fn parse(json: &[u8], checks: &ClaimChecks) -> anyhow::Result<Self> {
        let wire: WireSet =
            serde_json::from_slice(json).map_err(|_| anyhow::anyhow!("it is no JWKS document"))?;
        let told = wire.keys.len();
        let keys: Vec<_> = wire
            .keys
            .into_iter()
            .filter_map(|key| serde_json::from_value::<Jwk>(key).ok())
            .filter_map(|jwk| VerifyingKey::from_jwk(&jwk, checks))
            .take(MAX_KEYS)
            .collect();
        anyhow::ensure!(!keys.is_empty(), "none of its {told} keys can verify RS256, ES256 or EdDSA");
        Ok(Self(keys))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The key a token names. A token that names none is accepted only when there is no choice.
    pub fn find(&self, header: &Header) -> Result<&VerifyingKey, TokenRefusal> {
        let Some(id) = &header.kid else {
            return match self.0.as_slice() {
                [only] => Ok(only),
                _ => Err(TokenRefusal::UnknownKey),
            };
        };
        let mut named = self.0.iter().filter(|key| key.id.as_ref() == Some(id)).peekable();
        if named.peek().is_none() {
            return Err(TokenRefusal::UnknownKey);
        }
        // RFC 7517 4.5 lets keys of different types share an id.
        named.find(|key| key.algorithm == header.alg).ok_or(TokenRefusal::Algorithm)
    }

    pub fn ids(&self) -> Vec<&str> {
        self.0.iter().filter_map(|key| key.id.as_deref()).collect()
    }
}

/// The claims we read. A claim that is told twice fails to read.
#[derive(Debug, Deserialize)]
pub(super) struct Claims {
    pub sub: String,
    exp: NumericDate,
    #[serde(default, deserialize_with = "present")]
    nbf: Option<NumericDate>,
}

impl Claims {
    /// From here on the token is refused.
    pub fn until(&self) -> UnixMs {
        self.exp.0.plus_ms(LEEWAY_MS)
    }

    pub fn check_time(&self, now: UnixMs) -> Result<(), TokenRefusal> {
        if now >= self.until() {
            return Err(TokenRefusal::Expired);
        }
        if self.nbf.is_some_and(|nbf| now.plus_ms(LEEWAY_MS) < nbf.0) {
            return Err(TokenRefusal::NotYet);
        }
        Ok(())
    }
}

/// Seconds since 1970, whole or with a fraction (RFC 7519 part 2); text and absurd numbers are refused.
#[derive(Clone, Copy, Debug)]
struct NumericDate(UnixMs);

impl<'de> Deserialize<'de> for NumericDate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let seconds = f64::deserialize(deserializer)?;
        Duration::try_from_secs_f64(seconds)
            .ok()
            .and_then(|since| i64::try_from(since.as_millis()).ok())
            .filter(|ms| *ms <= LATEST_MS)
            .map(|ms| Self(UnixMs(ms)))
            .ok_or_else(|| serde::de::Error::custom("is no time"))
    }
}

/// Unlike a plain `Option`, refuses `null`: a claim is either left out or of its type.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<NumericDate>, D::Error> {
    NumericDate::deserialize(deserializer).map(Some)
}
