//! Proof of work by the ALTCHA protocol. Owns the sealing and checking of its challenges; the protocol's
//! puzzles and signatures are the `altcha` crate's.

use std::collections::BTreeMap;
use std::fmt;

use altcha::{
    CreateChallengeOptions, HmacAlgorithm, Payload, VerifySolutionOptions, create_challenge, sign_challenge,
    verify_solution,
};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rules::time::UnixMs;
use serde::Deserialize;
use serde_json::Value;
use subtle::ConstantTimeEq;

use super::{Bearer, ChallengeId, ChallengeRefusal, Checked, derive_key};

/// Browsers have it built in, so a page gains no less from its processor than a bot from a program.
const ALGORITHM: &str = "PBKDF2/SHA-256";

/// Where the challenge's free data holds the seal.
const SEAL: &str = "for";

pub(super) struct Pow {
    cost: u32,
    tries: u32,
    challenge_secret: String,
    key_secret: String,
    seal: hmac::Key,
}

impl Pow {
    pub fn new(cost: u32, tries: u32, root: &hmac::Key) -> Self {
        Self {
            cost,
            tries,
            // The protocol's secrets are text.
            challenge_secret: URL_SAFE_NO_PAD.encode(derive_key(root, "challenge/pow/signature/1")),
            key_secret: URL_SAFE_NO_PAD.encode(derive_key(root, "challenge/pow/key/1")),
            seal: hmac::Key::new(hmac::HMAC_SHA256, derive_key(root, "challenge/pow/seal/1").as_ref()),
        }
    }

    /// Hides a number the buyer has to find by trying upwards. Choosing it ourselves bounds the buyer's
    /// work from both sides and lets the check do without the slow function.
    pub fn issue(
        &self,
        bearer: Bearer<'_>,
        expires_at: UnixMs,
    ) -> Result<altcha::Challenge, ChallengeRefusal> {
        let least = self.tries / 2;
        let most = self.tries.saturating_add(least);
        create_challenge(CreateChallengeOptions {
            algorithm: ALGORITHM.to_owned(),
            cost: self.cost,
            counter: Some(rand::random_range(least..=most)),
            data: Some(BTreeMap::from([(SEAL.to_owned(), Value::String(self.seal_of(bearer)))])),
            expires_at: Some(expires_at.0 / 1_000),
            hmac_signature_secret: Some(self.challenge_secret.clone()),
            hmac_key_signature_secret: Some(self.key_secret.clone()),
            ..CreateChallengeOptions::default()
        })
        .map_err(|error| {
            tracing::error!(%error, "no proof of work can be made");
            ChallengeRefusal::Busy
        })
    }

    pub fn check(
        &self,
        bearer: Bearer<'_>,
        solution: &Value,
        now: UnixMs,
    ) -> Result<Checked, ChallengeRefusal> {
        let payload = read(solution).ok_or(ChallengeRefusal::Malformed)?;
        if !self.is_ours(&payload.challenge) {
            return Err(ChallengeRefusal::Malformed);
        }
        if !self.is_for(bearer, &payload.challenge) {
            return Err(ChallengeRefusal::NotYours);
        }
        let challenge = id_of(&payload.challenge).ok_or(ChallengeRefusal::Malformed)?;
        if challenge.expires_at <= now {
            return Err(ChallengeRefusal::Expired);
        }
        if !self.is_solved(&payload) {
            return Err(ChallengeRefusal::Wrong);
        }
        Ok(Checked { challenge, right: true })
    }

    fn is_ours(&self, challenge: &altcha::Challenge) -> bool {
        let Some(signature) = &challenge.signature else { return false };
        let mut parameters = challenge.parameters.clone();
        sign_challenge(&HmacAlgorithm::Sha256, &mut parameters, None, &self.challenge_secret, None)
            .ok()
            .and_then(|expected| expected.signature)
            .is_some_and(|expected| expected.as_bytes().ct_eq(signature.as_bytes()).into())
    }

    fn is_for(&self, bearer: Bearer<'_>, challenge: &altcha::Challenge) -> bool {
        let told = challenge.parameters.data.as_ref().and_then(|data| data.get(SEAL)).and_then(Value::as_str);
        told.is_some_and(|told| told.as_bytes().ct_eq(self.seal_of(bearer).as_bytes()).into())
    }

    /// The crate would judge the expiry by the system's clock. The signature has been checked and the expiry
    /// is judged by our clock, so the crate is shown the same challenge without one, signed again.
    fn is_solved(&self, payload: &Payload) -> bool {
        let mut parameters = payload.challenge.parameters.clone();
        parameters.expires_at = None;
        let timeless =
            sign_challenge(&HmacAlgorithm::Sha256, &mut parameters, None, &self.challenge_secret, None);
        let Ok(timeless) = timeless else { return false };
        let mut options =
            VerifySolutionOptions::new(&timeless, &payload.solution, self.challenge_secret.as_str());
        options.hmac_key_signature_secret = Some(self.key_secret.clone());
        verify_solution(options).is_ok_and(|result| result.verified)
    }

    fn seal_of(&self, bearer: Bearer<'_>) -> String {
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.seal, &bearer.seal_input()))
    }
}

impl fmt::Debug for Pow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pow").field("cost", &self.cost).field("tries", &self.tries).finish_non_exhaustive()
    }
}

/// The widget sends its payload as base64 of JSON; programs may send the JSON itself.
fn read(solution: &Value) -> Option<Payload> {
    match solution {
        Value::String(text) => serde_json::from_slice(&STANDARD.decode(text).ok()?).ok(),
        other => Payload::deserialize(other).ok(),
    }
}

fn id_of(challenge: &altcha::Challenge) -> Option<ChallengeId> {
    let random = u128::from_str_radix(&challenge.parameters.nonce, 16).ok()?;
    let expires_at = UnixMs(challenge.parameters.expires_at?.checked_mul(1_000)?);
    Some(ChallengeId { expires_at, random })
}
