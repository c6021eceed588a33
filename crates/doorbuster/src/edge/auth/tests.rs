//! Tokens that must not pass, tokens that must, and keys that come, go and fail to come. Tokens are put
//! together by hand and signed by the crypto library, so that no library under test helps to forge them.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair,
};
use aws_lc_rs::{hmac, rsa};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use proptest::prelude::*;
use rules::time::UnixMs;
use serde_json::{Value, json};

use super::published::{MAX_SET_BYTES, RENEW_EVERY_MS, Refresh, Source, TRY_EVERY_MS};
use super::*;

const SECRET: &str = "one secret of the shop, more than 32 bytes long";
const ISSUER: &str = "https://login.shop.example";
const AUDIENCE: &str = "doorbuster";

/// 2026-12-01T12:00:00Z.
const NOW_S: i64 = 1_796_126_400;

struct Signer {
    id: Option<&'static str>,
    algorithm: &'static str,
    key: SigningKey,
}

enum SigningKey {
    Hmac(Box<hmac::Key>),
    Rsa(Box<RsaKeyPair>),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

impl Signer {
    fn hs256(secret: &[u8]) -> Self {
        let key = SigningKey::Hmac(Box::new(hmac::Key::new(hmac::HMAC_SHA256, secret)));
        Self { id: None, algorithm: "HS256", key }
    }

    fn rs256(id: &'static str) -> Self {
        let pair = RsaKeyPair::generate(rsa::KeySize::Rsa2048).unwrap();
        Self { id: Some(id), algorithm: "RS256", key: SigningKey::Rsa(Box::new(pair)) }
    }

    fn es256(id: &'static str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap();
        Self { id: Some(id), algorithm: "ES256", key: SigningKey::Ec(pair) }
    }

    fn eddsa(id: &'static str) -> Self {
        Self { id: Some(id), algorithm: "EdDSA", key: SigningKey::Ed(Ed25519KeyPair::generate().unwrap()) }
    }

    fn signature(&self, message: &[u8]) -> Vec<u8> {
        match &self.key {
            SigningKey::Hmac(key) => hmac::sign(key, message).as_ref().to_vec(),
            SigningKey::Ec(pair) => pair.sign(&SystemRandom::new(), message).unwrap().as_ref().to_vec(),
            SigningKey::Ed(pair) => pair.sign(message).as_ref().to_vec(),
            SigningKey::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
                signature
            }
        }
    }

    fn header(&self) -> Value {
        match self.id {
            Some(id) => json!({"typ": "JWT", "alg": self.algorithm, "kid": id}),
            None => json!({"typ": "JWT", "alg": self.algorithm}),
        }
    }

    fn public_bytes(&self) -> Vec<u8> {
        match &self.key {
            SigningKey::Hmac(_) => unreachable!("a secret has no public half"),
            SigningKey::Rsa(pair) => pair.public_key().as_ref().to_vec(),
            SigningKey::Ec(pair) => pair.public_key().as_ref().to_vec(),
            SigningKey::Ed(pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    fn jwk(&self) -> Value {
        let bytes = self.public_bytes();
        let mut jwk = match &self.key {
            SigningKey::Hmac(_) => unreachable!("a secret is not published"),
            // `SEQUENCE { INTEGER n, INTEGER 65537 }`: for 2048 bits, n lies at a fixed place.
            SigningKey::Rsa(_) => json!({"kty": "RSA", "n": b64(&bytes[9..265]), "e": "AQAB"}),
            SigningKey::Ec(_) => {
                json!({"kty": "EC", "crv": "P-256", "x": b64(&bytes[1..33]), "y": b64(&bytes[33..])})
            }
            SigningKey::Ed(_) => json!({"kty": "OKP", "crv": "Ed25519", "x": b64(&bytes)}),
        };
        jwk["kid"] = json!(self.id);
        jwk["use"] = json!("sig");
        jwk
    }

    fn token(&self, claims: &Value) -> String {
        self.raw(self.header().to_string().as_bytes(), claims.to_string().as_bytes())
    }

    fn raw(&self, header: &[u8], payload: &[u8]) -> String {
        let message = format!("{}.{}", b64(header), b64(payload));
        format!("{message}.{}", b64(&self.signature(message.as_bytes())))
    }

    fn good(&self) -> String {
        self.token(&claims())
    }
}

fn b64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn claims() -> Value {
    json!({"sub": "ann", "exp": NOW_S + 600, "iss": ISSUER, "aud": AUDIENCE})
}

fn claims_with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn claims_without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

fn clock() -> Clock {
    Clock::manual(UnixMs(NOW_S * 1_000))
}

fn strict() -> AuthSettings {
    AuthSettings { issuer: Some(ISSUER.into()), audience: Some(AUDIENCE.into()), ..AuthSettings::default() }
}

fn with_secret() -> AuthSettings {
    AuthSettings { hs256_secret: Some(SECRET.into()), ..strict() }
}

fn with_file(path: &Path) -> AuthSettings {
    AuthSettings { jwks: Some(path.to_str().unwrap().into()), ..strict() }
}

fn set_of(signers: &[&Signer]) -> String {
    json!({"keys": signers.iter().map(|signer| signer.jwk()).collect::<Vec<_>>()}).to_string()
}

/// The same document, one byte larger than we read.
fn padded(json: &str) -> String {
    format!("{json}{}", " ".repeat(MAX_SET_BYTES + 1 - json.len()))
}

async fn by_secret() -> Authenticator {
    Authenticator::from_settings(&with_secret(), clock()).await.unwrap()
}

async fn by_set(json: &str) -> Authenticator {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), json).unwrap();
    Authenticator::from_settings(&with_file(file.path()), clock()).await.unwrap()
}

/// Every way we accept tokens, each with a signer whose tokens it must accept.
async fn all_ways() -> Vec<(Authenticator, Signer)> {
    let (rs, es, ed) = (Signer::rs256("rs"), Signer::es256("es"), Signer::eddsa("ed"));
    let published = by_set(&set_of(&[&rs, &es, &ed])).await;
    vec![
        (by_secret().await, Signer::hs256(SECRET.as_bytes())),
        (published.clone(), rs),
        (published.clone(), es),
        (published, ed),
    ]
}

#[track_caller]
fn assert_refused(auth: &Authenticator, what: &str, token: &str, why: TokenRefusal) {
    assert_eq!(auth.buyer(token), Err(why), "{what}: {token:?}");
}

/// Claims no token may pass with, however well it is signed.
fn bad_claims() -> Vec<(&'static str, Value, TokenRefusal)> {
    use TokenRefusal::{Audience, Buyer, Claim, Expired, Expiry, Issuer, NotYet, Subject};
    vec![
        ("sub missing", claims_without("sub"), Subject),
        ("sub null", claims_with("sub", Value::Null), Subject),
        ("sub a number", claims_with("sub", json!(7)), Subject),
        ("sub a list", claims_with("sub", json!(["ann"])), Subject),
        ("sub an object", claims_with("sub", json!({"id": "ann"})), Subject),
        ("sub empty", claims_with("sub", json!("")), Buyer(BuyerIdError::Empty)),
        ("sub of 129 bytes", claims_with("sub", json!("a".repeat(129))), Buyer(BuyerIdError::TooLong)),
        (
            "sub of 65 letters in 130 bytes",
            claims_with("sub", json!("é".repeat(65))),
            Buyer(BuyerIdError::TooLong),
        ),
        ("sub with NUL", claims_with("sub", json!("ann\0")), Buyer(BuyerIdError::ControlCharacter)),
        ("sub with a newline", claims_with("sub", json!("ann\nbob")), Buyer(BuyerIdError::ControlCharacter)),
        ("sub with DEL", claims_with("sub", json!("ann\u{7f}")), Buyer(BuyerIdError::ControlCharacter)),
        (
            "sub with a C1 control",
            claims_with("sub", json!("ann\u{9b}")),
            Buyer(BuyerIdError::ControlCharacter),
        ),
        ("exp missing", claims_without("exp"), Expiry),
        ("exp null", claims_with("exp", Value::Null), Expiry),
        ("exp as text", claims_with("exp", json!((NOW_S + 600).to_string())), Expiry),
        ("exp as a word", claims_with("exp", json!("never")), Expiry),
        ("exp true", claims_with("exp", json!(true)), Expiry),
        ("exp a list", claims_with("exp", json!([NOW_S + 600])), Expiry),
        ("exp an object", claims_with("exp", json!({"at": NOW_S + 600})), Expiry),
        ("exp huge", claims_with("exp", json!(1e300)), Expiry),
        ("exp beyond the year 9999", claims_with("exp", json!(253_402_300_800_i64)), Expiry),
        ("exp in milliseconds of a far year", claims_with("exp", json!(u64::MAX)), Expiry),
        ("exp negative", claims_with("exp", json!(-1)), Expiry),
        ("exp zero", claims_with("exp", json!(0)), Expired),
        ("exp past by the leeway", claims_with("exp", json!(NOW_S - 5)), Expired),
        ("exp past by a day", claims_with("exp", json!(NOW_S - 86_400)), Expired),
        ("exp past with a fraction", claims_with("exp", json!(1_796_126_394.5)), Expired),
        ("nbf beyond the leeway", claims_with("nbf", json!(NOW_S + 6)), NotYet),
        ("nbf as text", claims_with("nbf", json!("0")), Claim),
        ("nbf null", claims_with("nbf", Value::Null), Claim),
        ("nbf huge", claims_with("nbf", json!(1e300)), Claim),
        ("iss missing", claims_without("iss"), Claim),
        ("iss wrong", claims_with("iss", json!("https://evil.example")), Issuer),
        ("iss with a slash more", claims_with("iss", json!(format!("{ISSUER}/"))), Issuer),
        ("iss in capitals", claims_with("iss", json!(ISSUER.to_uppercase())), Issuer),
        ("iss a number", claims_with("iss", json!(1)), Claim),
        ("aud missing", claims_without("aud"), Claim),
        ("aud wrong", claims_with("aud", json!("another shop")), Audience),
        ("aud a list without us", claims_with("aud", json!(["one", "two"])), Audience),
        ("aud an empty list", claims_with("aud", json!([])), Audience),
        ("aud a number", claims_with("aud", json!(1)), Claim),
    ]
}

/// Payloads that are no claims at all, however well signed.
fn bad_payloads() -> Vec<(&'static str, Vec<u8>, TokenRefusal)> {
    use TokenRefusal::Claim;
    let twice = |name: &str, value: &str| {
        let claims = claims().to_string();
        format!("{},\"{name}\":{value}}}", claims.strip_suffix('}').unwrap()).into_bytes()
    };
    let mut not_utf8 = claims().to_string().replace("ann", "a?n").into_bytes();
    let at = not_utf8.iter().position(|byte| *byte == b'?').unwrap();
    not_utf8[at] = 0xff;
    vec![
        ("sub twice", twice("sub", "\"bob\""), Claim),
        ("exp twice", twice("exp", "9999999999"), Claim),
        ("iss twice", twice("iss", &format!("\"{ISSUER}\"")), Claim),
        ("aud twice", twice("aud", &format!("\"{AUDIENCE}\"")), Claim),
        ("not UTF-8", not_utf8, Claim),
        ("empty", vec![], Claim),
        ("no JSON", b"sub=ann&exp=9999999999".to_vec(), Claim),
        ("a JSON text", br#""ann""#.to_vec(), Claim),
        ("a JSON list", br#"["ann", 9999999999]"#.to_vec(), Claim),
        ("JSON and something after", [claims().to_string().as_bytes(), b"{}"].concat(), Claim),
        ("cut JSON", br#"{"sub":"ann","exp":9999999999"#.to_vec(), Claim),
        ("infinite exp", br#"{"sub":"ann","exp":1e999}"#.to_vec(), Claim),
        ("NaN exp", br#"{"sub":"ann","exp":NaN}"#.to_vec(), Claim),
    ]
}

/// Headers that must not pass although the signature fits them.
fn bad_headers(signer: &Signer) -> Vec<(&'static str, Value, TokenRefusal)> {
    use TokenRefusal::{Algorithm, CriticalHeader, Malformed};
    let with = |name: &str, value: Value| {
        let mut header = signer.header();
        header[name] = value;
        header
    };
    let mut without_alg = signer.header();
    without_alg.as_object_mut().unwrap().remove("alg");
    vec![
        ("alg missing", without_alg, Malformed),
        ("alg null", with("alg", Value::Null), Malformed),
        ("alg a list", with("alg", json!([signer.algorithm])), Malformed),
        ("alg none", with("alg", json!("none")), Malformed),
        ("alg None", with("alg", json!("None")), Malformed),
        ("alg nOnE", with("alg", json!("nOnE")), Malformed),
        ("alg empty", with("alg", json!("")), Malformed),
        ("alg in small letters", with("alg", json!(signer.algorithm.to_lowercase())), Malformed),
        ("alg of an unknown kind", with("alg", json!("ES256K")), Malformed),
        ("alg HS384", with("alg", json!("HS384")), Algorithm),
        ("alg HS512", with("alg", json!("HS512")), Algorithm),
        ("alg PS256", with("alg", json!("PS256")), Algorithm),
        ("alg RS512", with("alg", json!("RS512")), Algorithm),
        ("alg ES384", with("alg", json!("ES384")), Algorithm),
        ("kid a number", with("kid", json!(1)), Malformed),
        ("crit", with("crit", json!(["b64"])), CriticalHeader),
        ("crit empty", with("crit", json!([])), CriticalHeader),
        ("crit of what we do read", with("crit", json!(["exp"])), CriticalHeader),
    ]
}

/// What is left when a good token is bent.
fn bent(good: &str, signer: &Signer) -> Vec<(&'static str, String, TokenRefusal)> {
    use TokenRefusal::{Malformed, Signature, TooLong};
    let [header, payload, signature]: [&str; 3] = good.split('.').collect::<Vec<_>>().try_into().unwrap();
    let bytes = |part: &str| URL_SAFE_NO_PAD.decode(part).unwrap();
    let unsigned = b64(br#"{"alg":"none","typ":"JWT"}"#);
    let other_payload = b64(claims_with("sub", json!("bob")).to_string().as_bytes());
    let mut twice_alg = signer.header().to_string();
    twice_alg.replace_range(0..1, "{\"alg\":\"none\",");
    let short = bytes(signature);
    vec![
        ("nothing", String::new(), Malformed),
        ("one dot", ".".into(), Malformed),
        ("two dots", "..".into(), Malformed),
        ("three dots", "...".into(), Malformed),
        ("no dots", good.replace('.', ""), Malformed),
        ("header alone", header.into(), Malformed),
        ("without signature part", format!("{header}.{payload}"), Malformed),
        ("signature empty", format!("{header}.{payload}."), Signature),
        ("payload empty", format!("{header}..{signature}"), Signature),
        ("header empty", format!(".{payload}.{signature}"), Malformed),
        ("none and no signature", format!("{unsigned}.{payload}."), Malformed),
        ("none and a signature", format!("{unsigned}.{payload}.{signature}"), Malformed),
        ("five parts", format!("{good}.{payload}.{signature}"), Malformed),
        ("four parts", format!("{good}.{signature}"), Malformed),
        ("payload swapped", format!("{header}.{other_payload}.{signature}"), Signature),
        ("parts swapped", format!("{payload}.{header}.{signature}"), Malformed),
        (
            "signature cut by a byte",
            format!("{header}.{payload}.{}", b64(&short[..short.len() - 1])),
            Signature,
        ),
        (
            "signature longer by a byte",
            format!("{header}.{payload}.{}", b64(&[&short[..], &[0]].concat())),
            Signature,
        ),
        ("signature of zeros", format!("{header}.{payload}.{}", b64(&vec![0; short.len()])), Signature),
        ("signature cut to a base64 stump", format!("{header}.{payload}.A"), Malformed),
        ("signature padded", format!("{good}="), Malformed),
        ("signature padded twice", format!("{good}=="), Malformed),
        ("header padded", format!("{header}=.{payload}.{signature}"), Malformed),
        (
            "signature in the standard alphabet",
            format!("{header}.{payload}.{}", STANDARD.encode([0xfb; 64])),
            Malformed,
        ),
        ("alg told twice", signer.raw(twice_alg.as_bytes(), claims().to_string().as_bytes()), Malformed),
        ("header no JSON", signer.raw(b"alg=none", claims().to_string().as_bytes()), Malformed),
        ("blank before", format!(" {good}"), Malformed),
        ("blank after", format!("{good} "), Malformed),
        ("newline after", format!("{good}\n"), Malformed),
        ("blank inside", format!("{header}. {payload}.{signature}"), Signature),
        ("NUL after", format!("{good}\0"), Malformed),
        ("with its scheme", format!("Bearer {good}"), Malformed),
        ("in quotes", format!("\"{good}\""), Malformed),
        ("percent-encoded", good.replace('.', "%2E"), Malformed),
        ("full-width dots", good.replace('.', "．"), Malformed),
        ("unicode", "секрет.票.🎟".into(), Malformed),
        ("two tokens", format!("{good},{good}"), Malformed),
        ("very long", format!("{header}.{}.{signature}", "A".repeat(MAX_TOKEN_BYTES)), TooLong),
    ]
}

#[tokio::test]
async fn every_bad_token_is_refused_for_its_own_reason() {
    for (auth, signer) in all_ways().await {
        assert_eq!(auth.buyer(&signer.good()).unwrap().as_str(), "ann", "{}", signer.algorithm);
        let mut tokens = bent(&signer.good(), &signer);
        tokens.extend(bad_claims().into_iter().map(|(what, claims, why)| (what, signer.token(&claims), why)));
        let header = signer.header().to_string();
        tokens.extend(
            bad_payloads()
                .into_iter()
                .map(|(what, bytes, why)| (what, signer.raw(header.as_bytes(), &bytes), why)),
        );
        tokens.extend(bad_headers(&signer).into_iter().map(|(what, header, why)| {
            (what, signer.raw(header.to_string().as_bytes(), claims().to_string().as_bytes()), why)
        }));
        assert!(tokens.len() >= 100);
        for (what, token, why) in tokens {
            assert_refused(&auth, &format!("{} {what}", signer.algorithm), &token, why);
        }
    }
}

#[tokio::test]
async fn a_token_signed_by_a_stranger_is_refused_even_if_it_brings_its_key() {
    let stranger = Signer::es256("es");
    let published = by_set(&set_of(&[&Signer::es256("es"), &Signer::rs256("rs")])).await;
    let payload = claims().to_string();
    for (name, value) in [
        ("jwk", stranger.jwk()),
        ("jku", json!("https://evil.example/jwks.json")),
        ("x5u", json!("https://evil.example/cert.pem")),
        ("x5c", json!([STANDARD.encode(stranger.public_bytes())])),
        ("typ", json!("JWT")),
    ] {
        let mut header = stranger.header();
        header[name] = value;
        let token = stranger.raw(header.to_string().as_bytes(), payload.as_bytes());
        assert_refused(&published, name, &token, TokenRefusal::Signature);
    }
    for secret in [&b"secret"[..], b"", &SECRET.as_bytes()[1..], SECRET.to_uppercase().as_bytes()] {
        assert_refused(&by_secret().await, "secret", &Signer::hs256(secret).good(), TokenRefusal::Signature);
    }
}

#[tokio::test]
async fn a_public_key_is_never_taken_for_a_secret() {
    let (rs, es, ed) = (Signer::rs256("rs"), Signer::es256("es"), Signer::eddsa("ed"));
    let published = by_set(&set_of(&[&rs, &es, &ed])).await;
    for signer in [&rs, &es, &ed] {
        let jwk = signer.jwk().to_string().into_bytes();
        for secret in [signer.public_bytes(), jwk, b64(&signer.public_bytes()).into_bytes()] {
            let forger = Signer { id: signer.id, ..Signer::hs256(&secret) };
            assert_refused(&published, signer.algorithm, &forger.good(), TokenRefusal::Algorithm);
        }
    }
    for algorithm in ["RS256", "ES256", "EdDSA", "PS256"] {
        let forger = Signer { algorithm, ..Signer::hs256(SECRET.as_bytes()) };
        assert_refused(&by_secret().await, algorithm, &forger.good(), TokenRefusal::Algorithm);
    }
}

#[tokio::test]
async fn a_key_works_only_under_its_own_id_and_algorithm() {
    let (rs, es, ed) = (Signer::rs256("rs"), Signer::es256("es"), Signer::eddsa("ed"));
    let published = by_set(&set_of(&[&rs, &es, &ed])).await;
    let payload = claims().to_string();
    let under = |header: Value| es.raw(header.to_string().as_bytes(), payload.as_bytes());
    let cases = [
        ("no id among several", json!({"alg": "ES256"}), TokenRefusal::UnknownKey),
        ("unknown id", json!({"alg": "ES256", "kid": "gone"}), TokenRefusal::UnknownKey),
        ("empty id", json!({"alg": "ES256", "kid": ""}), TokenRefusal::UnknownKey),
        ("id in capitals", json!({"alg": "ES256", "kid": "ES"}), TokenRefusal::UnknownKey),
        ("id like a path", json!({"alg": "ES256", "kid": "../../dev/null"}), TokenRefusal::UnknownKey),
        ("another key's id", json!({"alg": "ES256", "kid": "rs"}), TokenRefusal::Algorithm),
        ("another key's id and algorithm", json!({"alg": "RS256", "kid": "rs"}), TokenRefusal::Signature),
        ("another algorithm", json!({"alg": "EdDSA", "kid": "es"}), TokenRefusal::Algorithm),
    ];
    for (what, header, why) in cases {
        assert_refused(&published, what, &under(header), why);
    }
}

#[tokio::test]
async fn good_tokens_pass_in_all_their_forms() {
    let forms = [
        claims(),
        claims_with("aud", json!(["other", AUDIENCE])),
        claims_with("exp", json!(NOW_S + 1)),
        claims_with("exp", json!(NOW_S - 4)),
        claims_with("exp", json!(1_796_126_400.5)),
        claims_with("exp", json!(253_402_300_799_i64)),
        claims_with("nbf", json!(NOW_S + 5)),
        claims_with("nbf", json!(NOW_S - 600)),
        claims_with("iat", json!("whenever")),
        claims_with("roles", json!({"deep": [[[1]]]})),
    ];
    for (auth, signer) in all_ways().await {
        for form in &forms {
            assert_eq!(auth.buyer(&signer.token(form)).unwrap().as_str(), "ann", "{form}");
        }
        for buyer in ["a".repeat(128), "安娜 🎟".into(), "Ann@Shop.example".into(), " ".into(), "\"\\".into()]
        {
            let token = signer.token(&claims_with("sub", json!(buyer)));
            assert_eq!(auth.buyer(&token).unwrap().as_str(), buyer);
        }
    }
}

#[tokio::test]
async fn issuer_and_audience_are_free_when_not_set() {
    let settings = AuthSettings { hs256_secret: Some(SECRET.into()), ..AuthSettings::default() };
    let auth = Authenticator::from_settings(&settings, clock()).await.unwrap();
    let signer = Signer::hs256(SECRET.as_bytes());
    for claims in
        [claims(), claims_without("aud"), claims_without("iss"), claims_with("aud", json!(["x", "y"]))]
    {
        assert!(auth.buyer(&signer.token(&claims)).is_ok(), "{claims}");
    }
}

#[tokio::test]
async fn a_token_dies_by_our_clock() {
    let clock = clock();
    let auth = Authenticator::from_settings(&with_secret(), clock.clone()).await.unwrap();
    let token = Signer::hs256(SECRET.as_bytes()).good();
    clock.advance(Duration::from_millis(604_999));
    assert!(auth.buyer(&token).is_ok());
    clock.advance(Duration::from_millis(1));
    assert_eq!(auth.buyer(&token), Err(TokenRefusal::Expired));
}

#[tokio::test]
async fn a_demo_token_says_who_and_until_when() {
    let bare = AuthSettings { hs256_secret: Some(SECRET.into()), ..AuthSettings::default() };
    let strict =
        AuthSettings { issuer: Some("the shop".into()), audience: Some("drops".into()), ..bare.clone() };
    for settings in [bare, strict] {
        let clock = clock();
        let auth = Authenticator::from_settings(&settings, clock.clone()).await.unwrap();
        let ann = BuyerId::parse("ann").unwrap();
        let token = sign_demo_token(&settings, &ann, Duration::from_secs(60), &clock).unwrap();
        assert_eq!(auth.buyer(&token), Ok(ann));
        clock.advance(Duration::from_secs(65));
        assert_eq!(auth.buyer(&token), Err(TokenRefusal::Expired));
    }
}

proptest! {
    #[test]
    fn no_single_changed_character_passes(at in 0_usize..1_000, put in "[A-Za-z0-9_.=+/ -]") {
        let auth = futures_util::FutureExt::now_or_never(by_secret()).unwrap();
        let good = Signer::hs256(SECRET.as_bytes()).good();
        let at = at % good.len();
        let mut changed = good.clone();
        changed.replace_range(at..=at, &put);
        prop_assert_eq!(auth.buyer(&changed).is_ok(), changed == good);
    }

    #[test]
    fn no_garbage_passes(garbage in "\\PC{0,200}", dotted in "[A-Za-z0-9_-]{0,60}\\.[A-Za-z0-9_-]{0,60}\\.[A-Za-z0-9_-]{0,60}") {
        let auth = futures_util::FutureExt::now_or_never(by_secret()).unwrap();
        prop_assert!(auth.buyer(&garbage).is_err());
        prop_assert!(auth.buyer(&dotted).is_err());
    }
}

// Settings.

#[test]
fn the_secret_is_never_shown() {
    assert!(!format!("{:?}", with_secret()).contains("one secret of the shop"));
    let auth = futures_util::FutureExt::now_or_never(by_secret()).unwrap();
    assert!(!format!("{auth:?}").contains("one secret of the shop"));
}

// Published keys.

fn published(auth: &Authenticator) -> &PublishedKeys {
    match &auth.0.keys {
        Keys::Published(keys) => keys,
        Keys::Secret(_) => panic!("these are published keys"),
    }
}

#[tokio::test]
async fn only_keys_for_our_signatures_are_taken_from_a_set() {
    let signer = Signer::es256("es");
    let changed = |name: &str, value: Value| {
        let mut jwk = signer.jwk();
        jwk[name] = value;
        json!({"keys": [jwk]}).to_string()
    };
    let unusable = [
        ("for encryption", changed("use", json!("enc"))),
        ("for another operation", changed("key_ops", json!(["encrypt"]))),
        ("of another algorithm", changed("alg", json!("ES384"))),
        ("of a symmetric algorithm", changed("alg", json!("HS256"))),
        ("of an unknown algorithm", changed("alg", json!("ES256K"))),
        ("on another curve", changed("crv", json!("P-384"))),
        (
            "symmetric",
            json!({"keys": [{"kty": "oct", "kid": "es", "alg": "HS256", "k": b64(SECRET.as_bytes())}]})
                .to_string(),
        ),
        ("of an unknown type", json!({"keys": [{"kty": "new", "kid": "es"}]}).to_string()),
        ("no key", json!({"keys": [7, "x", null, {}]}).to_string()),
        ("empty set", json!({"keys": []}).to_string()),
        ("no set", signer.jwk().to_string()),
        ("no JSON", "-----BEGIN PUBLIC KEY-----".into()),
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    for (what, json) in unusable {
        std::fs::write(file.path(), json).unwrap();
        let error = Authenticator::from_settings(&with_file(file.path()), clock()).await.expect_err(what);
        assert!(format!("{error:#}").contains("cannot be used"), "{what}: {error:#}");
    }
    let mixed = json!({"keys": [{"kty": "new"}, {"kty": "oct", "k": "AAAA"}, signer.jwk()]}).to_string();
    assert!(by_set(&mixed).await.buyer(&signer.good()).is_ok());
}

#[tokio::test]
async fn a_lone_key_needs_no_id() {
    let signer = Signer::eddsa("ed");
    let auth = by_set(&set_of(&[&signer])).await;
    let nameless = signer.raw(br#"{"alg":"EdDSA"}"#, claims().to_string().as_bytes());
    assert!(auth.buyer(&nameless).is_ok());
}

#[tokio::test]
async fn keys_of_different_types_may_share_an_id() {
    let (rs, es) = (Signer::rs256("one"), Signer::es256("one"));
    let auth = by_set(&set_of(&[&rs, &es])).await;
    assert!(auth.buyer(&rs.good()).is_ok());
    assert!(auth.buyer(&es.good()).is_ok());
}

#[tokio::test]
async fn a_missing_file_ends_the_start_with_its_name() {
    let settings = with_file(Path::new("/nowhere/keys.json"));
    let error = Authenticator::from_settings(&settings, clock()).await.unwrap_err();
    assert!(format!("{error:#}").contains("/nowhere/keys.json"), "{error:#}");
}

#[tokio::test]
async fn a_changed_file_is_read_again_and_a_broken_one_is_not_believed() {
    let (old, new) = (Signer::es256("old"), Signer::eddsa("new"));
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), set_of(&[&old])).unwrap();
    let clock = clock();
    let auth = Authenticator::from_settings(&with_file(file.path()), clock.clone()).await.unwrap();
    let keys = published(&auth);

    clock.advance(Duration::from_millis(TRY_EVERY_MS - 1));
    assert_eq!(keys.refresh_if_due(clock.now()).await, Refresh::NotDue);
    clock.advance(Duration::from_millis(1));
    assert_eq!(keys.refresh_if_due(clock.now()).await, Refresh::Unchanged);

    std::fs::write(file.path(), "{\"keys\":").unwrap();
    clock.advance(Duration::from_millis(TRY_EVERY_MS));
    assert_eq!(keys.refresh_if_due(clock.now()).await, Refresh::Failed);
    assert!(auth.buyer(&old.good()).is_ok());

    std::fs::write(file.path(), padded(&set_of(&[&new]))).unwrap();
    clock.advance(Duration::from_millis(TRY_EVERY_MS));
    assert_eq!(keys.refresh_if_due(clock.now()).await, Refresh::Failed);

    std::fs::write(file.path(), set_of(&[&new])).unwrap();
    clock.advance(Duration::from_millis(TRY_EVERY_MS));
    assert_eq!(keys.refresh_if_due(clock.now()).await, Refresh::Loaded);
    assert!(auth.buyer(&new.good()).is_ok());
    assert_eq!(auth.buyer(&old.good()), Err(TokenRefusal::UnknownKey));
}

/// An issuer on loopback that answers every request with the same bytes and counts them.
struct Issuer {
    address: SocketAddr,
    answer: Arc<Mutex<Vec<u8>>>,
    asked: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Issuer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (answer, asked, stop) = <(Arc<Mutex<Vec<u8>>>, Arc<AtomicUsize>, Arc<AtomicBool>)>::default();
        let thread = std::thread::spawn({
            let (answer, asked, stop) = (answer.clone(), asked.clone(), stop.clone());
            move || {
                while let Ok((mut stream, _)) = listener.accept() {
                    if stop.load(Ordering::Acquire) {
                        return;
                    }
                    asked.fetch_add(1, Ordering::AcqRel);
                    let _request = stream.read(&mut [0; 4_096]);
                    let bytes = answer.lock().clone();
                    let _sent = stream.write_all(&bytes);
                }
            }
        });
        Self { address, answer, asked, stop, thread: Some(thread) }
    }

    fn serve(&self, body: &str) {
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
        *self.answer.lock() = (head + body).into_bytes();
    }

    fn serve_raw(&self, answer: &[u8]) {
        *self.answer.lock() = answer.to_vec();
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Acquire)
    }

    /// Loopback without TLS, which the settings would refuse.
    async fn authenticator(&self, clock: &Clock) -> Authenticator {
        let url = format!("http://{}/keys", self.address).parse().unwrap();
        let source = Source::Url { url, client: published::client().no_proxy().build().unwrap() };
        install_crypto();
        let checks = ClaimChecks { issuer: Some(ISSUER.into()), audience: Some(AUDIENCE.into()) };
        let keys = PublishedKeys::load(source, checks, clock).await.unwrap();
        Authenticator(Arc::new(Inner { clock: clock.clone(), keys: Keys::Published(Box::new(keys)) }))
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let _woken = TcpStream::connect(self.address);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[tokio::test]
async fn an_unknown_key_is_asked_for_at_most_once_per_half_minute() {
    let (old, new) = (Signer::es256("old"), Signer::es256("new"));
    let (issuer, clock) = (Issuer::start(), clock());
    issuer.serve(&set_of(&[&old]));
    let auth = issuer.authenticator(&clock).await;
    issuer.serve(&set_of(&[&old, &new]));
    for _ in 0..1_000 {
        assert_eq!(auth.buyer(&new.good()), Err(TokenRefusal::UnknownKey));
        assert_eq!(published(&auth).refresh_if_due(clock.now()).await, Refresh::NotDue);
    }
    clock.advance(Duration::from_millis(TRY_EVERY_MS));
    assert_eq!(published(&auth).refresh_if_due(clock.now()).await, Refresh::Loaded);
    assert!(auth.buyer(&new.good()).is_ok());
    assert_eq!(issuer.asked(), 2);
}

#[tokio::test]
async fn known_keys_are_fetched_again_every_ten_minutes_only() {
    let (issuer, clock, signer) = (Issuer::start(), clock(), Signer::es256("es"));
    issuer.serve(&set_of(&[&signer]));
    let auth = issuer.authenticator(&clock).await;
    clock.advance(Duration::from_millis(RENEW_EVERY_MS - 1));
    assert!(auth.buyer(&signer.token(&claims_with("exp", json!(NOW_S + 6_000)))).is_ok());
    assert_eq!(published(&auth).refresh_if_due(clock.now()).await, Refresh::NotDue);
    clock.advance(Duration::from_millis(1));
    assert_eq!(published(&auth).refresh_if_due(clock.now()).await, Refresh::Loaded);
}

#[tokio::test]
async fn the_last_good_set_outlives_every_bad_answer() {
    let (issuer, clock, signer) = (Issuer::start(), clock(), Signer::rs256("rs"));
    issuer.serve(&set_of(&[&signer]));
    let auth = issuer.authenticator(&clock).await;
    let token = signer.token(&claims_with("exp", json!(NOW_S + 86_400)));
    let endless = ["HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n", &padded(&set_of(&[&signer]))].concat();
    let bad: [&[u8]; 6] = [
        b"",
        b"no HTTP at all",
        b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 11\r\nconnection: close\r\n\r\n{\"keys\":[]}",
        b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\nconnection: close\r\n\r\n{\"keys\":",
        endless.as_bytes(),
    ];
    clock.advance(Duration::from_millis(RENEW_EVERY_MS));
    for answer in bad {
        issuer.serve_raw(answer);
        assert_eq!(published(&auth).refresh_if_due(clock.now()).await, Refresh::Failed);
        assert!(auth.buyer(&token).is_ok());
        clock.advance(Duration::from_millis(TRY_EVERY_MS));
    }
    issuer.serve(&set_of(&[&signer]));
    assert_eq!(published(&auth).refresh_if_due(clock.now()).await, Refresh::Loaded);
}

#[tokio::test]
async fn an_issuer_that_starts_after_us_is_found_by_the_worker() {
    let (issuer, clock, signer) = (Issuer::start(), clock(), Signer::eddsa("ed"));
    issuer.serve_raw(b"HTTP/1.1 503 Not yet\r\ncontent-length: 0\r\n\r\n");
    let auth = issuer.authenticator(&clock).await;
    assert_eq!(auth.buyer(&signer.good()), Err(TokenRefusal::UnknownKey));

    issuer.serve(&set_of(&[&signer]));
    clock.advance(Duration::from_millis(TRY_EVERY_MS));
    let shutdown = CancellationToken::new();
    let known = async {
        while auth.buyer(&signer.good()).is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        shutdown.cancel();
    };
    let both = async { tokio::join!(auth.refresh_loop(shutdown.clone()), known) };
    tokio::time::timeout(Duration::from_secs(30), both).await.expect("found and stopped in time");
}

#[tokio::test]
async fn with_a_secret_the_worker_waits_for_the_end() {
    let shutdown = CancellationToken::new();
    let auth = by_secret().await;
    let mut working = Box::pin(auth.refresh_loop(shutdown.clone()));
    assert!(futures_util::FutureExt::now_or_never(&mut working).is_none());
    shutdown.cancel();
    working.await;
}

#[tokio::test]
async fn the_client_for_settings_speaks_only_https() {
    let Source::Url { client, .. } = Source::parse("https://issuer.example/keys").unwrap() else {
        panic!("this is a URL");
    };
    let issuer = Issuer::start();
    issuer.serve("{}");
    assert!(client.get(format!("http://{}/", issuer.address)).send().await.is_err());
    assert_eq!(issuer.asked(), 0);
}
