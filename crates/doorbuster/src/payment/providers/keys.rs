//! Reads the keys that providers hand out, and signs and verifies with them. Owns the formats of keys and the one
//! signature both Chinese providers use (RSA PKCS#1 with SHA-256). Does not know what is signed.

use std::fmt;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ParsedPublicKey, RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer};
use webpki::EndEntityCert;

const PEM_START: &str = "-----BEGIN ";

/// The shortest RSA key of a provider: 2048 bits, in bytes. Shorter ones can be broken.
const SHORTEST_MODULUS_BYTES: usize = 256;

/// A public key of a provider.
#[derive(Clone)]
pub(super) struct VerifyingKey(ParsedPublicKey);

impl VerifyingKey {
    /// Reads PEM (`PUBLIC KEY`), or the bare base64 that Alipay shows in its console.
    pub fn read(text: &str) -> Option<Self> {
        if text.contains(PEM_START) {
            let key = SubjectPublicKeyInfoDer::from_pem_slice(text.as_bytes()).ok()?;
            return Self::from_der(&key);
        }
        Self::from_der(&bare(text)?)
    }

    fn from_der(der: &[u8]) -> Option<Self> {
        // Parsing does not look at the length; verifying refuses short keys, but then it is too late for the operator.
        let length = aws_lc_rs::rsa::PublicKey::from_der(der).ok()?.modulus_len();
        let key = ParsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, der).ok()?;
        (length >= SHORTEST_MODULUS_BYTES).then_some(Self(key))
    }

    /// Is this the key's signature, in base64, over the message?
    pub fn verifies(&self, message: &[u8], signature: &str) -> bool {
        STANDARD.decode(signature).is_ok_and(|signature| self.0.verify_sig(message, &signature).is_ok())
    }
}

/// A certificate of a provider: its public key and the serial number it is known by.
pub(super) struct Certificate {
    /// Hexadecimal, upper case, without leading zeros.
    pub serial: String,
    pub key: VerifyingKey,
}

impl Certificate {
    /// Reads PEM. The certificate's chain and dates are not judged: the operator put it there.
    pub fn read(pem: &str) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        let certificate = EndEntityCert::try_from(&der).ok()?;
        let serial = certificate.serial().iter().map(|byte| format!("{byte:02X}")).collect::<String>();
        let key = VerifyingKey::from_der(&certificate.subject_public_key_info())?;
        Some(Self { serial: canonical_serial(&serial), key })
    }
}

/// One spelling per serial number: upper case, no leading zeros.
pub(super) fn canonical_serial(serial: &str) -> String {
    serial.trim_start_matches('0').to_ascii_uppercase()
}

/// Our private key at a provider.
pub(super) struct SigningKey(RsaKeyPair);

impl SigningKey {
    /// Reads PEM (PKCS#8 or PKCS#1), or the bare base64 of either, as Alipay's tool writes it.
    pub fn read(text: &str) -> Option<Self> {
        // The library itself refuses private keys below 2048 bits.
        if text.contains(PEM_START) {
            match PrivateKeyDer::from_pem_slice(text.as_bytes()).ok()? {
                PrivateKeyDer::Pkcs8(key) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).ok().map(Self),
                PrivateKeyDer::Pkcs1(key) => RsaKeyPair::from_der(key.secret_pkcs1_der()).ok().map(Self),
                _ => None,
            }
        } else {
            let der = bare(text)?;
            RsaKeyPair::from_pkcs8(&der).or_else(|_| RsaKeyPair::from_der(&der)).ok().map(Self)
        }
    }

    /// The signature over the message, in base64; `None` only if the library fails.
    pub fn sign(&self, message: &[u8]) -> Option<String> {
        let mut signature = vec![0; self.0.public_modulus_len()];
        self.0.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).ok()?;
        Some(STANDARD.encode(signature))
    }
}

impl fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("VerifyingKey")
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(hidden)")
    }
}

/// Base64 that may be broken into lines.
fn bare(text: &str) -> Option<Vec<u8>> {
    let text: String = text.split_whitespace().collect();
    STANDARD.decode(text).ok().filter(|der| !der.is_empty())
}
