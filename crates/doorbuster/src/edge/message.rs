//! Answers as the bytes of an HTTP/1.1 message, for the shortcut. All other answers are written by hyper.

use std::cell::RefCell;
use std::io::Write as _;
use std::sync::LazyLock;
use std::time::{Duration, UNIX_EPOCH};

use http::{HeaderMap, Response, StatusCode};
use rules::id::{self, OfferId, OrderId};
use rules::time::UnixMs;

use super::answer::{self, Body};

/// The head of every accepted try, up to what differs.
static ACCEPTED: LazyLock<Vec<u8>> =
    LazyLock::new(|| head(StatusCode::ACCEPTED, &answer::usual_headers(answer::JSON)));

/// Status line and headers, without the empty line: [`length`] and [`end`] add the rest.
pub fn head(status: StatusCode, headers: &HeaderMap) -> Vec<u8> {
    let reason = status.canonical_reason().unwrap_or_default();
    let mut head = format!("HTTP/1.1 {} {reason}\r\n", status.as_str()).into_bytes();
    for (name, value) in headers {
        for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
            head.extend_from_slice(part);
        }
    }
    head
}

/// Adds a body's length to a head.
pub fn length(message: &mut Vec<u8>, body: &[u8]) {
    // Writing to a vector cannot fail.
    let _ = write!(message, "content-length: {}\r\n", body.len());
}

/// Adds the date to a head that tells its body's length, and the body.
pub fn end(message: &mut Vec<u8>, now: UnixMs, body: &[u8]) {
    message.extend_from_slice(b"date: ");
    with_date(now, |date| message.extend_from_slice(date));
    message.extend_from_slice(b"\r\n\r\n");
    message.extend_from_slice(body);
}

fn finish(message: &mut Vec<u8>, now: UnixMs, body: &[u8]) {
    length(message, body);
    end(message, now, body);
}

/// The answer to an accepted try; the same as [`answer::order_json`].
pub fn accepted(message: &mut Vec<u8>, order: OrderId, offer: OfferId, now: UnixMs, json: &[u8]) {
    message.extend_from_slice(&ACCEPTED);
    message.extend_from_slice(b"location: /api/v1/orders/");
    message.extend_from_slice(&id::encode(order.0));
    message.extend_from_slice(b"?offer=");
    message.extend_from_slice(&id::encode(offer.0));
    message.extend_from_slice(b"\r\n");
    finish(message, now, json);
}

/// Any answer whose body is all there.
pub fn response(message: &mut Vec<u8>, response: Response<Body>, now: UnixMs) {
    let (parts, body) = response.into_parts();
    message.extend_from_slice(&head(parts.status, &parts.headers));
    finish(message, now, &answer::whole(body));
}

/// The date of the second, written once per second and thread.
fn with_date(now: UnixMs, take: impl FnOnce(&[u8])) {
    thread_local! {
        static DATE: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    let second = u64::try_from(now.0 / 1_000).unwrap_or(0);
    DATE.with_borrow_mut(|(of, text)| {
        if *of != second || text.is_empty() {
            *of = second;
            text.clear();
            let date = httpdate::HttpDate::from(UNIX_EPOCH + Duration::from_secs(second));
            // Writing to a string cannot fail, and its room is used again.
            let _ = std::fmt::Write::write_fmt(text, format_args!("{date}"));
        }
        take(text.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use rules::wire::Code;

    use super::*;

    #[test]
    fn a_message_says_what_the_answer_says() {
        let answer = answer::refuse(Code::Busy);
        let headers = answer.headers().clone();
        let mut message = Vec::new();
        response(&mut message, answer, UnixMs(784_887_151_999));
        let text = String::from_utf8(message).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut lines = head.lines();
        assert_eq!(lines.next(), Some("HTTP/1.1 503 Service Unavailable"));
        let mut expected: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        expected.push(format!("content-length: {}", body.len()));
        expected.push("date: Tue, 15 Nov 1994 08:12:31 GMT".into());
        assert_eq!(lines.collect::<Vec<_>>(), expected);
        assert!(body.contains(r#""code":"busy""#), "{body}");
    }

    #[test]
    fn an_accepted_try_is_told_the_same_by_both_writers() {
        let (order, offer, now) = (OrderId(7), OfferId(9), UnixMs(1_000));
        let mut ours = Vec::new();
        accepted(&mut ours, order, offer, now, b"{}");
        let mut general = Vec::new();
        let answer = answer::order_json(StatusCode::ACCEPTED, order, offer, bytes::Bytes::from_static(b"{}"));
        response(&mut general, answer, now);
        let sorted = |message: Vec<u8>| {
            let text = String::from_utf8(message).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            let mut lines: Vec<_> = head.lines().map(str::to_owned).collect();
            lines.sort_unstable();
            (lines, body.to_owned())
        };
        assert_eq!(sorted(ours), sorted(general));
    }

    #[test]
    fn the_date_moves_with_the_clock() {
        let date = |ms| {
            let mut message = Vec::new();
            finish(&mut message, UnixMs(ms), b"");
            String::from_utf8(message).unwrap()
        };
        assert!(date(0).contains("date: Thu, 01 Jan 1970 00:00:00 GMT\r\n"));
        assert!(date(999).contains("00:00:00 GMT"));
        assert!(date(1_000).contains("00:00:01 GMT"));
    }
}
