//! Answers that may be kept for a while: prepared bytes with a tag, and `304` for whoever has them already. Knows
//! nothing of what the bytes say.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, StatusCode};
use hyper::body::{Frame, SizeHint};

use super::answer;

/// JSON in pieces that others share: nothing is copied, and everybody may keep it for `max_age_s` seconds.
#[must_use]
pub fn json(request: &HeaderMap, etag: &str, max_age_s: u64, pieces: Vec<Bytes>) -> Response {
    let known = is_known(request, etag);
    let mut response = if known {
        Response::new(Body::empty())
    } else {
        Response::new(Body::new(Pieces(VecDeque::from(pieces))))
    };
    let headers = response.headers_mut();
    let text = |text: String| HeaderValue::from_maybe_shared(Bytes::from(text)).ok();
    headers.extend(text(format!("public, max-age={max_age_s}")).map(|value| (CACHE_CONTROL, value)));
    headers.extend(text(etag.to_owned()).map(|value| (ETAG, value)));
    if known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        response.headers_mut().insert(CONTENT_TYPE, answer::JSON);
    }
    response
}

/// Whether the client says that it has these bytes (RFC 9110, 13.1.2).
pub fn is_known(request: &HeaderMap, etag: &str) -> bool {
    let lines = request.get_all(IF_NONE_MATCH).iter().filter_map(|line| line.to_str().ok());
    let mut tags = lines.flat_map(|line| line.split(',')).map(str::trim);
    tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

/// A body of several shared pieces, whose length is known.
struct Pieces(VecDeque<Bytes>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let length: usize = self.0.iter().map(Bytes::len).sum();
        u64::try_from(length).map_or_else(|_| SizeHint::default(), SizeHint::with_exact)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_recognised_in_every_form_a_cache_sends() {
        let known = |line: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(IF_NONE_MATCH, HeaderValue::from_static(line));
            is_known(&headers, "\"abc\"")
        };
        assert!(known("\"abc\"") && known("W/\"abc\"") && known("\"x\", \"abc\"") && known("*"));
        assert!(!known("\"x\"") && !known("abc"));
        assert!(!is_known(&HeaderMap::new(), "\"abc\""));
    }
}
