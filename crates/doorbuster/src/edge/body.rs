//! Reading a request's body: bounded in bytes and in time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::HeaderMap;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http_body_util::BodyExt as _;
use hyper::body::Body;
use rules::wire::Code;

use crate::config::LimitsSettings;

/// Why a body could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadError {
    NotJson,
    TooLarge,
    /// Cut off, or not all there in time.
    Incomplete,
}

impl ReadError {
    #[must_use]
    pub const fn code(self) -> Code {
        match self {
            Self::NotJson => Code::UnsupportedMediaType,
            Self::TooLarge => Code::TooLarge,
            Self::Incomplete => Code::Malformed,
        }
    }
}

/// Whether the sender says that the body is JSON.
#[must_use]
pub fn is_json(headers: &HeaderMap) -> bool {
    headers.get(CONTENT_TYPE).is_some_and(|content_type| says_json(content_type.as_bytes()))
}

const APPLICATION_JSON: &[u8] = b"application/json";

/// Whether a `Content-Type` is JSON, whatever its parameters.
#[must_use]
pub fn says_json(content_type: &[u8]) -> bool {
    // Nearly always nothing else is said.
    if content_type == APPLICATION_JSON {
        return true;
    }
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(APPLICATION_JSON)
}

/// The whole JSON body. A body that is already there costs no timer.
pub async fn read(
    mut body: impl Body<Data = Bytes> + Unpin,
    headers: &HeaderMap,
    limits: &LimitsSettings,
) -> Result<Bytes, ReadError> {
    if !is_json(headers) {
        return Err(ReadError::NotJson);
    }
    let told = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if told.is_some_and(|length| length > limits.body_bytes) {
        return Err(ReadError::TooLarge);
    }
    let mut first = std::pin::pin!(collect(&mut body, limits.body_bytes));
    if let Some(result) = first.as_mut().now_or_never() {
        return result;
    }
    let patience = Duration::from_secs(limits.body_timeout_s.into());
    // Boxed: a timer is large, and nearly nobody needs it.
    Box::pin(tokio::time::timeout(patience, first)).await.unwrap_or(Err(ReadError::Incomplete))
}

async fn collect(body: &mut (impl Body<Data = Bytes> + Unpin), limit: usize) -> Result<Bytes, ReadError> {
    let mut whole = Bytes::new();
    let mut parts = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ReadError::Incomplete)?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + parts.len() + data.len() > limit {
            return Err(ReadError::TooLarge);
        }
        // Nearly every body is one frame and is not copied.
        if whole.is_empty() && parts.is_empty() {
            whole = data;
        } else {
            parts.extend_from_slice(&std::mem::take(&mut whole));
            parts.extend_from_slice(&data);
        }
    }
    Ok(if parts.is_empty() { whole } else { parts.freeze() })
}
